"""This module decodes images into uint8 tensors, and makes the views of test images.

Pillow decodes one image after another: measured on 32x32 JPEGs, two threads took longer than one,
since so small an image keeps the interpreter's lock for most of its decoding.
"""

import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from simsplit.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image


Channels = Literal[1, 3]

MOST_PIXELS = 64_000_000
"""Pixels of an image, at most: eight thousand squared."""
_GREY_MODES = frozenset({"1", "L", "LA"})
_COLOUR_MODES = frozenset({"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"})


@dataclass(frozen=True)
class Form:
    """The form to which all images of a data set are converted."""

    channels: Channels
    height: int
    width: int
    resize: bool
    """Whether an image of another size is resized rather than refused."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image: channels, height, width."""
        return self.channels, self.height, self.width


def choose_form(first: "Image", size: int | None, channels: Channels | None, where: str) -> Form:
    """Choose the form: `size` and `channels` if given, else those of the first image."""
    grey = _is_grey(first, where)
    width, height = (size, size) if size else first.size
    return Form(channels or (1 if grey else 3), height, width, resize=size is not None)


def open_image(source: "bytes | Path", where: str) -> "Image":
    """Open the image in `source` without decoding its pixels; raise DataError if it is too large.

    Its size is what its header says, whatever there is behind it.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except Image.DecompressionBombError as error:
        raise DataError(f"{where}: too large an image ({error})") from error
    except Exception as error:  # Pillow's many readers raise a dozen types for damaged files
        raise DataError(f"{where}: not an image that Pillow can read ({error})") from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        image.close()
        raise DataError(
            f"{where}: {width}x{height} pixels, more than {MOST_PIXELS:,}; replace the "
            "file, or make it smaller"
        )
    return image


def convert_image(image: "Image", form: Form, where: str, *, strict: bool = True) -> np.ndarray:
    """Convert `image` to `form`, as H x W or H x W x 3; with `strict`, colour never turns grey."""
    from PIL import Image

    grey = _is_grey(image, where)
    if strict and form.channels == 1 and not grey:
        raise DataError(
            f"{where}: mode {image.mode} among grey images; set data.source.channels to 1 or 3"
        )
    try:
        plain = image.convert("L" if form.channels == 1 else "RGB")
    except Exception as error:
        raise DataError(f"{where}: cannot be decoded ({error}); replace the file") from error
    if plain.size != (form.width, form.height):
        if not form.resize:
            raise DataError(
                f"{where}: {plain.width}x{plain.height} (width x height) where the first image is "
                f"{form.width}x{form.height}; set data.source.size to resize all of them"
            )
        plain = plain.resize((form.width, form.height), Image.Resampling.BILINEAR)
    return np.asarray(plain)


def stack_images(
    images: Iterable["tuple[bytes | Path, str]"], count: int, form: Form, *, strict: bool = True
) -> Tensor:
    """Stack `count` images (each with its origin for messages) as a uint8 tensor N x C x H x W."""
    stack = np.empty((count, *form.shape), dtype=np.uint8)
    for row, (source, where) in enumerate(images):
        plain = convert_image(open_image(source, where), form, where, strict=strict)
        stack[row] = plain if form.channels == 1 else plain.transpose(2, 0, 1)
    return torch.from_numpy(stack)


def _is_grey(image: "Image", where: str) -> bool:
    if image.mode in _GREY_MODES:
        return True
    if image.mode in _COLOUR_MODES:
        return False
    # Pillow would clip 16-bit and float images to 0..255 without a warning
    raise DataError(f"{where}: mode {image.mode} is not 8 bits a channel; convert the images first")


@dataclass(frozen=True)
class Views:
    """The views of each image in a batch; views of one image are a whole batch apart.

    This is the test-time augmentation of airbench94: the image counts one half, the two copies that
    are moved diagonally (up and left, down and right) one quarter each; each is averaged with its
    mirror image.
    """

    mirrored: bool = False
    shifted: bool = False

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each view's outputs; the weights sum to one."""
        each = (0.5, 0.25, 0.25) if self.shifted else (1.0,)
        copies = 1 + self.mirrored
        return tuple(weight / copies for weight in each for _ in range(copies))

    def stack_views(self, images_BCHW: Tensor) -> Tensor:
        """Return all views of a batch, one view of all images after another."""
        moved = [images_BCHW]
        if self.shifted:
            height, width = images_BCHW.shape[-2:]
            bordered = pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
            moved += [bordered[..., :height, :width], bordered[..., 2:, 2:]]
        return torch.cat([v for each in moved for v in (each, each.flip(-1))[: 1 + self.mirrored]])

    def average(self, outputs: Tensor) -> Tensor:
        """Return the weighted mean of all views' outputs."""
        if len(self.weights) == 1:
            return outputs
        weights = torch.tensor(self.weights, dtype=outputs.dtype, device=outputs.device)
        return torch.einsum("v...,v->...", outputs.unflatten(0, (len(weights), -1)), weights)


PLAIN = Views()
"""The image alone, without further views."""
