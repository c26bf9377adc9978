"""Views of a held-out image whose outputs are averaged: mirrored, and moved by a pixel.

Test-time augmentation as airbench94 has it: the image counts half, and the two that are moved
diagonally, up and left and down and right, a quarter each; each as the mean with its mirror image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Views:
    """Which views there are; an image's stand a batch apart."""

    mirrored: bool = False
    shifted: bool = False

    @property
    def weights(self) -> tuple[float, ...]:
        """Of each view's outputs; they sum to one."""
        each = (0.5, 0.25, 0.25) if self.shifted else (1.0,)
        copies = 1 + self.mirrored
        return tuple(weight / copies for weight in each for _ in range(copies))

    def of(self, images_BCHW: Tensor) -> Tensor:
        """All views of a batch, view by view."""
        moved = [images_BCHW]
        if self.shifted:
            height, width = images_BCHW.shape[-2:]
            bordered = pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
            moved += [bordered[..., :height, :width], bordered[..., 2:, 2:]]
        return torch.cat([v for each in moved for v in (each, each.flip(-1))[: 1 + self.mirrored]])

    def mean(self, outputs: Tensor) -> Tensor:
        """The mean of all views' outputs."""
        if len(self.weights) == 1:
            return outputs
        weights = torch.tensor(self.weights, dtype=outputs.dtype, device=outputs.device)
        return torch.einsum("v...,v->...", outputs.unflatten(0, (len(weights), -1)), weights)


PLAIN = Views()
"""The image alone."""
