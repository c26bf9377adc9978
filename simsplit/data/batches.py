"""Mini-batches out of uint8 images that lie on the device once, for all clients.

Clients number in the hundreds and their batches are small, so a loader with workers, or a transform
per sample, would cost more than the training step. Here a client's part is index arithmetic on one
tensor that all clients of a process share, and every draw depends only on (seed, client, epoch).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from simsplit.data.samples import Samples
from simsplit.seeds import rng_for

Augmentation = Literal["crop", "shift", "flip", "alternate"]

SHIFT = 2
"""Pixels that `shift` moves an image by at most."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a head takes, the labels, and the rows of the samples they came from."""

    inputs: Tensor
    """Normalised images, or tokens."""
    labels: Tensor
    indices: Tensor
    mask: Tensor | None = None
    """Which tokens are real: of texts padded on the left, and of all that an encoder reads. Padding
    on the right needs none where tokens look back alone."""
    lengths: Tensor | None = None
    """How many tokens of each text are real; null: all of them. It stays with the client."""

    @property
    def context(self) -> tuple[Tensor, ...]:
        """What all three segments are given beside their input."""
        return () if self.mask is None else (self.mask,)

    @property
    def real(self) -> Tensor:
        """Mask of the tokens that are no padding, of texts that are padded on the right."""
        if self.lengths is None:
            return torch.ones_like(self.inputs, dtype=torch.bool)
        places = torch.arange(self.inputs.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]


def padded(x_BL: Tensor, length: int, value: int) -> Tensor:
    """Rows of tokens, labels or a mask, made longer on the right."""
    return pad(x_BL, (0, length - x_BL.shape[1]), value=value)


class Batches(Protocol):
    """Whatever makes batches out of rows."""

    device: torch.device
    augments: bool

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """The rows `indices`; augmented with draws from `rng`, plain without."""

    def lengths(self, rows: Tensor) -> Tensor | None:
        """The number of tokens of each row; None of images."""


class Batcher:
    """Makes batches out of samples that it keeps on `device`.

    Args:
        samples: Moved to the device once; `indices` count its rows.
        mean: Per channel, of pixels scaled to [0, 1].
        std: Likewise.
        augment: "crop" pads with black by an eighth of the height and crops at random, "shift" by
            two pixels with what is reflected at the edges; "flip" mirrors left and right with
            probability one half, "alternate" one half of the images in even epochs and the other in
            odd ones.
        device: Where batches are made.
        channels_last: Whether inputs have that memory format.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Sequence[Augmentation] = (),
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self._inputs = samples.inputs.to(self.device).contiguous()
        self.labels = samples.labels.to(self.device)
        self._pad = max(1, samples.inputs.shape[2] // 8) if "crop" in augment else 0
        self._reflects = "shift" in augment
        if self._reflects:
            self._pad = SHIFT
        self._alternates = "alternate" in augment
        self._flip = self._alternates or "flip" in augment
        self._channels_last = channels_last
        self.augments = bool(augment)
        # (pixel / 255 - mean) / std as one multiplication and one addition
        means, stds = (torch.tensor(list(each), dtype=torch.float64) for each in (mean, std))
        assert means.shape == stds.shape == self._inputs.shape[1:2]
        self._scale = (1 / (255 * stds)).float().view(-1, 1, 1).to(self.device)
        self._shift = (-means / stds).float().view(-1, 1, 1).to(self.device)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """The rows `indices`; augmented with draws from `rng` (a CPU generator), plain without."""
        rows = indices.to(self.device, non_blocking=True)
        images = self._inputs.index_select(0, rows)
        if rng is not None and (self._pad or self._flip):
            mirrored = alternating(indices, epoch) if self._alternates else None
            images = shifted(
                images, self._pad, self._flip, rng, mirrored=mirrored, reflects=self._reflects
            )
        if self._channels_last:
            # while pixels are still bytes: four times less to move about than as floats
            images = images.contiguous(memory_format=torch.channels_last)
        inputs = images.float().mul_(self._scale).add_(self._shift)
        return Batch(inputs, self.labels.index_select(0, rows), indices)

    def lengths(self, rows: Tensor) -> None:
        """None: images are all of one size."""
        del rows


class NumberBatcher:
    """Makes batches out of numbers, as they are."""

    augments = False

    def __init__(self, samples: Samples, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._inputs = samples.inputs.to(self.device)
        self.labels = samples.labels.to(self.device)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """The rows `indices`; numbers are never augmented."""
        del rng, epoch
        rows = indices.to(self.device, non_blocking=True)
        inputs = self._inputs.index_select(0, rows)
        return Batch(inputs, self.labels.index_select(0, rows), indices)

    def lengths(self, rows: Tensor) -> None:
        """None: only texts have lengths."""
        del rows


def alternating(rows: Tensor, epoch: int) -> Tensor:
    """Which images are mirrored in an epoch: each in every second one, half of them in the first.

    Two epochs then show each image once either way, where draws show a half of them twice alike
    (Jordan, 2024). Which half begins is read off the rows' numbers, so it is known everywhere.
    """
    scrambled = (rows.cpu() * 2654435761) >> 16  # Knuth's multiplicative hash
    return (scrambled + epoch) % 2


def shifted(
    images_BCHW: Tensor,
    pad: int,
    flip: bool,
    rng: torch.Generator,
    *,
    mirrored: Tensor | None = None,
    reflects: bool = False,
) -> Tensor:
    """Each image cropped at random out of a border `pad` wide, and mirrored half the time.

    The border is black, or `reflects` the image; which images are mirrored is drawn, unless told.

    One `index_select` of whole pixel rows, out of a flat view in which a window of W pixels starts
    at every position: the windows overlap in memory, so nothing is copied but what is kept, and
    that some ten times faster than by gathering single pixels.
    """
    batch, channels, height, width = images_BCHW.shape
    bordered = _bordered(images_BCHW, pad, flip, reflects)
    high, wide = bordered.shape[2:]
    down, right = torch.randint(2 * pad + 1, (2, batch), generator=rng)
    if mirrored is None:
        mirrored = torch.randint(1 + flip, (batch,), generator=rng)
    # one number an image says how far its window starts from the border's corner, so that one
    # small transfer, which nobody waits for, takes all draws to the device
    offset = (mirrored * batch * channels * high + down) * wide + right
    lines = torch.arange(0, batch * channels * high * wide, wide, device=bordered.device)
    corners_BCH = lines.view(batch, channels, high)[:, :, :height]
    starts_BCH = corners_BCH + offset.to(bordered.device, non_blocking=True)[:, None, None]
    windows = bordered.as_strided((bordered.numel() - width + 1, width), (1, 1))
    return windows.index_select(0, starts_BCH.flatten()).view(images_BCHW.shape)


def _bordered(images_BCHW: Tensor, pad: int, flip: bool, reflects: bool) -> Tensor:
    """The images in a border; with `flip`, followed by their mirror images."""
    if reflects:
        images_BCHW = images_BCHW[:, :, _reflected(images_BCHW.shape[2], pad)]
        images_BCHW = images_BCHW[..., _reflected(images_BCHW.shape[3], pad)]
        pad = 0
    batch, channels, height, width = images_BCHW.shape
    copies = 1 + flip
    bordered = images_BCHW.new_zeros((copies * batch, channels, height + 2 * pad, width + 2 * pad))
    inner = bordered[:, :, pad : pad + height, pad : pad + width]
    inner[:batch] = images_BCHW
    if flip:
        inner[batch:] = images_BCHW.flip(-1)
    return bordered


def _reflected(size: int, pad: int) -> Tensor:
    """The places of a row of pixels with `pad` more at either end, as in a mirror at its edges."""
    places = torch.arange(-pad, size + pad).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places)


ALIKE = 50
"""Batches that are sorted by length at once: enough for little padding, and still a shuffle."""


def batch_indices(
    part: Tensor,
    batch_size: int,
    seed: int,
    client: int,
    epoch: int,
    *,
    drop_last: bool,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A client's rows in this epoch's order, cut into batches; the same on every call.

    `drop_last` leaves out a last batch that is not full, unless it is the only one: a client with
    fewer samples than `batch_size` would otherwise never train. With `lengths` (one for each row of
    `part`) a batch holds texts of like length; batches still come in random order.
    """
    rng = rng_for(seed, "batches", client, epoch)
    order = torch.randperm(len(part), generator=rng)
    if drop_last and len(part) > batch_size:
        order = order[: len(part) - len(part) % batch_size]
    if lengths is None:
        return torch.split(part[order], batch_size) if len(part) else ()
    some = order.split(ALIKE * batch_size)
    order = torch.cat([rows[lengths[rows].argsort(descending=True)] for rows in some])
    batches = torch.split(part[order], batch_size)
    return tuple(batches[place] for place in torch.randperm(len(batches), generator=rng))


def channel_statistics(samples: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1].

    Exact, and without a float copy of the data: 256 counts a channel say all there is to know.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(samples.inputs.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for chunk in torch.split(samples.inputs[:, channel], 4096):
            counts += torch.bincount(chunk.flatten(), minlength=256)
        weights = counts.double() / counts.sum()
        mean = (weights * values).sum()
        means.append(mean.item())
        stds.append((weights * (values - mean) ** 2).sum().sqrt().item())
    return tuple(means), tuple(stds)
