"""Attacks on images that see a target in several epochs average what was sent for it.

A client that draws fresh noise for each packet sends other noise in the next epoch, so the mean
over k epochs has 1 / sqrt(k) of it. Where nothing is drawn afresh, a mean changes nothing.
Encodings are averaged rather than reconstructions: a map that is fitted to means suits their lower
noise, so it reads more than the mean of what a map of single encodings reads.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from simsplit.packets import Packet

Queries = Sequence[tuple[Packet, Tensor]]
"""Packets of public images with their pixels, one epoch after another."""


def average_epochs(packets: Sequence[Packet], read: Callable[[Packet], Tensor]) -> Iterator[Tensor]:
    """Read packets batch by batch, each as the mean over the epochs, which have other rounds."""
    for batch in zip(*_divide_by_epoch(packets), strict=True):
        yield _average([read(packet) for packet in batch])


def average_queries(
    queries: Queries, read: Callable[[Packet], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows of queries, averaged over the epochs, with their pixels."""
    pixels = [pixels for _, pixels in queries]
    rows = average_epochs([packet for packet, _ in queries], read)
    # all epochs have the same images, in the same order
    yield from zip(rows, pixels, strict=False)


def take_first_epoch(packets: Sequence[Packet]) -> list[Packet]:
    """Return the packets of the first epoch."""
    return next(iter(_divide_by_epoch(packets)), [])


def _divide_by_epoch(packets: Sequence[Packet]) -> list[list[Packet]]:
    epochs: dict[int, list[Packet]] = {}
    for packet in packets:
        epochs.setdefault(packet.round, []).append(packet)
    return list(epochs.values())


def _average(values: Sequence[Tensor]) -> Tensor:
    """Average tensors; equal ones give themselves to the bit, which a sum in fp32 would not."""
    if len(values) == 1:
        return values[0]
    mean = torch.stack([value.double() for value in values]).sum(0) / len(values)
    return mean.to(values[0])
