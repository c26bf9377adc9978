"""This module makes mini-batches from images that are kept on the device once, for all clients.

There can be hundreds of clients with small batches, so a loader with workers, or a transform per
sample, would cost more than the training step. Here a client's part is index arithmetic on one
uint8 tensor that all clients of a process share, and every draw depends only on (seed, client,
epoch).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from simsplit.data.samples import Samples
from simsplit.seeds import rng_for

Augmentation = Literal["crop", "shift", "flip", "alternate"]

SHIFT = 2
"""The largest number of pixels by which `shift` moves an image."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A mini-batch: what a head takes, the labels, and the rows of the samples."""

    inputs: Tensor
    """Normalised images, or tokens."""
    labels: Tensor
    indices: Tensor
    mask: Tensor | None = None
    """True for tokens that are not padding. It is set for texts padded on the left and for all
    texts that an encoder reads: with causal attention, padding on the right needs no mask."""
    lengths: Tensor | None = None
    """The number of tokens of each text without padding; None: no text is padded. It never
    crosses the cut."""

    @property
    def context(self) -> tuple[Tensor, ...]:
        """The tensors that all three segments take besides their input."""
        return () if self.mask is None else (self.mask,)

    def take(self, rows: slice) -> "Batch":
        """Return some of the rows."""
        mask = None if self.mask is None else self.mask[rows]
        lengths = None if self.lengths is None else self.lengths[rows]
        return Batch(self.inputs[rows], self.labels[rows], self.indices[rows], mask, lengths)

    @property
    def real(self) -> Tensor:
        """Mask of the tokens that are not padding, for texts padded on the right."""
        if self.lengths is None:
            return torch.ones_like(self.inputs, dtype=torch.bool)
        places = torch.arange(self.inputs.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]


def pad_tokens(x_BL: Tensor, length: int, value: int) -> Tensor:
    """Pad rows of tokens, labels or a mask on the right to `length`."""
    return pad(x_BL, (0, length - x_BL.shape[1]), value=value)


class Batches:
    """Batches of samples as they are, such as rows of numbers, which are kept on a device."""

    augments = False

    def __init__(self, samples: Samples, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._inputs = samples.inputs.to(self.device)
        self.labels = samples.labels.to(self.device)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None, epoch: int = 0) -> Batch:
        """Return the rows `indices`; what can be augmented is, with draws from `rng` if given."""
        rows = indices.to(self.device, non_blocking=True)
        inputs = self._inputs.index_select(0, rows)
        return Batch(inputs, self.labels.index_select(0, rows), indices)

    def get_lengths(self, rows: Tensor) -> Tensor | None:
        """Return the number of tokens of each row; None if the samples are not texts."""
        return None


class Batcher(Batches):
    """Batches of images.

    `mean` and `std` are those of each channel, of pixels scaled to [0, 1]. `augment`: "crop" pads
    with black by an eighth of the height and crops at random; "shift" pads by two pixels, reflected
    at the edges, and crops at random; "flip" mirrors left and right with probability one half;
    "alternate" mirrors one half of the images in even epochs and the other half in odd ones.
    With `channels_last` inputs have torch's memory format of this name.
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
        super().__init__(samples, device)
        self._inputs = self._inputs.contiguous()
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
        """Return the rows `indices`; with `rng`, a CPU generator, they are augmented."""
        rows = indices.to(self.device, non_blocking=True)
        images = self._inputs.index_select(0, rows)
        if rng is not None and (self._pad or self._flip):
            mirrored = choose_mirrored(indices, epoch) if self._alternates else None
            images = crop_and_mirror(
                images, self._pad, self._flip, rng, mirrored=mirrored, reflects=self._reflects
            )
        if self._channels_last:
            # while pixels are still bytes: four times less to move about than as floats
            images = images.contiguous(memory_format=torch.channels_last)
        inputs = images.float().mul_(self._scale).add_(self._shift)
        return Batch(inputs, self.labels.index_select(0, rows), indices)


def choose_mirrored(rows: Tensor, epoch: int) -> Tensor:
    """Return 1 for each image that is mirrored in this epoch, else 0.

    Each image is mirrored in every second epoch, half of the images in the first. So two epochs
    show each image once either way, whereas independent draws show half of them the same way twice
    (Jordan, 2024). A hash of the row decides which half begins, so every process agrees on it.
    """
    scrambled = (rows.cpu() * 2654435761) >> 16  # Knuth's multiplicative hash
    return (scrambled + epoch) % 2


def crop_and_mirror(
    images_BCHW: Tensor,
    pad: int,
    flip: bool,
    rng: torch.Generator,
    *,
    mirrored: Tensor | None = None,
    reflects: bool = False,
) -> Tensor:
    """Crop each image at random from a border `pad` wide, and mirror half of them if `flip`.

    The border is black, or `reflects` the image. `mirrored` says which images are mirrored; without
    it they are drawn.

    All crops are one `index_select` of whole pixel rows from a flat view in which a window of W
    pixels starts at every position. The windows overlap in memory, so only the result is copied,
    about ten times faster than gathering single pixels.
    """
    batch, channels, height, width = images_BCHW.shape
    bordered = _add_border(images_BCHW, pad, flip, reflects)
    high, wide = bordered.shape[2:]
    down, right = torch.randint(2 * pad + 1, (2, batch), generator=rng)
    if mirrored is None:
        mirrored = torch.randint(1 + flip, (batch,), generator=rng)
    # one number an image: how far its window starts from the border's corner. So all draws reach
    # the device in one small transfer that does not block
    offset = (mirrored * batch * channels * high + down) * wide + right
    lines = torch.arange(0, batch * channels * high * wide, wide, device=bordered.device)
    corners_BCH = lines.view(batch, channels, high)[:, :, :height]
    starts_BCH = corners_BCH + offset.to(bordered.device, non_blocking=True)[:, None, None]
    windows = bordered.as_strided((bordered.numel() - width + 1, width), (1, 1))
    return windows.index_select(0, starts_BCH.flatten()).view(images_BCHW.shape)


def _add_border(images_BCHW: Tensor, pad: int, flip: bool, reflects: bool) -> Tensor:
    """Return the images with a border; with `flip`, followed by their mirror images."""
    if reflects:
        images_BCHW = images_BCHW[:, :, _reflect_places(images_BCHW.shape[2], pad)]
        images_BCHW = images_BCHW[..., _reflect_places(images_BCHW.shape[3], pad)]
        pad = 0
    batch, channels, height, width = images_BCHW.shape
    copies = 1 + flip
    bordered = images_BCHW.new_zeros((copies * batch, channels, height + 2 * pad, width + 2 * pad))
    inner = bordered[:, :, pad : pad + height, pad : pad + width]
    inner[:batch] = images_BCHW
    if flip:
        inner[batch:] = images_BCHW.flip(-1)
    return bordered


def _reflect_places(size: int, pad: int) -> Tensor:
    """Return the pixel at each place of a row with `pad` reflected pixels more at either end."""
    places = torch.arange(-pad, size + pad).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places)


ALIKE = 50
"""Number of batches whose texts are sorted by length together: little padding, still shuffled."""


def draw_batches(
    part: Tensor,
    batch_size: int,
    seed: int,
    client: int,
    epoch: int,
    *,
    drop_last: bool,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Shuffle a client's rows for this epoch and cut them into batches; the same on every call.

    `drop_last` leaves out a last batch that is not full, unless it is the only one: a client with
    fewer samples than `batch_size` would otherwise never train. With `lengths` (one for each row of
    `part`) a batch holds texts of similar length; batches still come in random order.
    """
    rng = rng_for(seed, "batches", client, epoch)
    order = torch.randperm(len(part), generator=rng)
    # before sorting by length: the rows left out must be random
    if drop_last and len(part) > batch_size:
        order = order[: len(part) - len(part) % batch_size]
    if lengths is None:
        return torch.split(part[order], batch_size) if len(part) else ()
    chunks = order.split(ALIKE * batch_size)
    order = torch.cat([rows[lengths[rows].argsort(descending=True)] for rows in chunks])
    batches = torch.split(part[order], batch_size)
    return tuple(batches[place] for place in torch.randperm(len(batches), generator=rng))


def compute_rate(samples: int, batch_size: int) -> float:
    """Return the probability with which each sample is in a drawn batch."""
    return min(1.0, batch_size / max(1, samples))


def draw_sample(part: Tensor, batch_size: int, seed: int, number: int) -> Tensor:
    """Draw batch `number`: each of a client's rows is in it with the same probability.

    `seed` is the client's own: who does not know it does not know who is in a batch.
    """
    rng = rng_for(seed, "poisson", number)
    draws = torch.rand(len(part), generator=rng, dtype=torch.float64)
    return part[draws < compute_rate(len(part), batch_size)]


def measure_channels(samples: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, of pixels scaled to [0, 1].

    The result is exact and needs no float copy of the data: 256 counts per channel suffice.
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
