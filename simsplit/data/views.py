"""This module makes views of test images, whose outputs are averaged: mirrored, moved by a pixel.

This is the test-time augmentation of airbench94: the image counts one half, the two copies that are
moved diagonally (up and left, down and right) one quarter each; each is averaged with its mirror
image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Views:
    """The views of each image in a batch; views of one image are a whole batch apart."""

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
