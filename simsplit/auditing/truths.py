"""The truth of a transcript as samples, which judges compare with what attacks recover.

Images become 8 bits a value, as judges score them; texts are padded to the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.data.samples import IGNORED, Samples, TextInfo
from simsplit.errors import DataError


@dataclass(frozen=True)
class PixelScale:
    """How values of recorded images become pixels: value x std + mean, by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    note: str = ""
    """What a reader of the figures should know, where the scale was not recorded."""

    def to_pixels(self, values: Tensor) -> Tensor:
        """Return images as pixels of 8 bits."""
        if values.dtype == torch.uint8:
            return values
        std, mean = (torch.tensor(each).view(-1, 1, 1) for each in (self.std, self.mean))
        return ((values.float() * std + mean).clamp(0, 1) * 255).round().byte()


def choose_scale(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> PixelScale:
    """Choose the scale of recorded images: the recorded one, or one by which all values fit."""
    channels = images.shape[1] if images.ndim == 4 else 0
    if channels not in (1, 3):
        raise DataError(
            "truth: images must be N x C x H x W with 1 or 3 channels, got "
            f"{' x '.join(map(str, images.shape))}"
        )
    if mean or std:
        if not len(mean) == len(std) == channels:
            raise DataError(
                f"image: mean and std need a number for each channel ({channels}), got "
                f"{len(mean)} and {len(std)}"
            )
        return PixelScale(tuple(mean), tuple(std))
    if images.dtype == torch.uint8 or (float(images.min()) >= 0 and float(images.max()) <= 1):
        return PixelScale((0.0,) * channels, (1.0,) * channels)
    low, high = float(images.min()), float(images.max())
    width = high - low or 1.0
    note = (
        f"images have values from {low:.3g} to {high:.3g} and no mean and std were recorded; "
        "these values are drawn and scored as black to white"
    )
    return PixelScale((-low / width,) * channels, (1 / width,) * channels, note)


def make_image_samples(images: Tensor, labels: Tensor | None, scale: PixelScale) -> Samples:
    """Make samples of images, N x C x H x W."""
    return Samples(scale.to_pixels(images), _fill_labels(labels, len(images)))


def make_row_samples(rows: Tensor, labels: Tensor | None) -> Samples:
    """Make samples of rows of numbers."""
    values = rows.float().reshape(len(rows), -1)
    # An error of twice the largest value must not overflow: infinite errors say nothing.
    if not bool((2 * values).square().sum(1).isfinite().all()):
        raise DataError(
            f"truth: inputs have values up to {float(values.abs().max()):.3g}, whose squared "
            "errors are too large for float32; divide them, such as by each column's largest value"
        )
    return Samples(values, _fill_labels(labels, len(rows)))


def make_text_samples(texts: Sequence[Tensor], labels: Tensor | None, pad: int) -> Samples:
    """Make samples of texts, which are padded on the right; each is predicted token by token."""
    for text in texts:
        if text.dim() != 1 or not len(text) or bool((text != text.long()).any() | (text < 0).any()):
            raise DataError(
                "truth: each text must be a row of token ids, which are whole numbers from 0 on; "
                f"got {text.flatten()[:5].tolist()} of shape {list(text.shape)}"
            )
    lengths = torch.tensor([len(text) for text in texts])
    inputs = torch.full((len(texts), max(2, int(lengths.max()))), pad)
    targets = torch.full_like(inputs, IGNORED)
    for row, text in enumerate(texts):
        inputs[row, : len(text)] = text
        targets[row, : len(text) - 1] = text[1:]
    groups = _fill_labels(labels, len(texts))
    return Samples(inputs, targets, TextInfo(lengths, torch.zeros_like(lengths), groups))


def _fill_labels(labels: Tensor | None, count: int) -> Tensor:
    """Return labels as whole numbers; zeros where none were recorded."""
    return torch.zeros(count, dtype=torch.int64) if labels is None else labels.long().flatten()
