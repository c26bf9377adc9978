"""This module defines backdoors whose trigger is spread over the whole image and hardly seen.

WaNet (Nguyen and Tran, ICLR 2021) warps images by a smooth field of displacements. Its authors also
train on other samples, warped at random and rightly labelled, so that no warp but theirs is the
trigger; that is left out here, since a client's other samples stay as they are. SIG (Barni et al.,
ICIP 2019) adds a sine wave to images of the target, whose labels are kept.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from simsplit.poisons.backdoors import Backdoor, BackdoorConfig
from simsplit.poisons.poison import Rows, Scene
from simsplit.seeds import rng_for


class WanetConfig(BackdoorConfig):
    """WaNet: a smooth warp of the whole image, and the target's label."""

    kind: Literal["wanet"] = "wanet"
    strength: float = Field(default=0.5, gt=0)
    """Mean displacement along each axis, in half pixels."""
    grid: int = Field(default=4, ge=2)
    """Number of points along each axis at which displacements are drawn; between them they are
    interpolated."""

    def build(self, scene: Scene) -> Backdoor:
        return Wanet(self, scene)


class Wanet(Backdoor):
    """A poison that warps images; the warp is drawn by the run's seed."""

    def __init__(self, config: WanetConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        height, width = scene.samples.inputs.shape[2:]
        rng = rng_for(scene.seed, "poison", "warp")
        drawn = 2 * torch.rand(1, 2, config.grid, config.grid, generator=rng) - 1
        field = interpolate(
            drawn / drawn.abs().mean(), (height, width), mode="bicubic", align_corners=True
        )
        sides = [torch.linspace(-1, 1, side) for side in (height, width)]
        down, across = torch.meshgrid(*sides, indexing="ij")
        size = torch.tensor([width, height]).view(2, 1, 1)
        places = torch.stack([across, down]) + config.strength * field[0] / size
        self.places_HW2 = places.clamp(-1, 1).permute(1, 2, 0)

    def add_trigger(self, inputs: Tensor) -> Tensor:
        places = self.places_HW2.to(inputs).expand(len(inputs), -1, -1, -1)
        return grid_sample(inputs, places, mode="bilinear", align_corners=True)


class SigConfig(BackdoorConfig):
    """SIG: a sine wave over images of the target class, whose labels are kept."""

    kind: Literal["sig"] = "sig"
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of a malicious client's images of the target class that it poisons."""
    amplitude: float = Field(default=0.1, gt=0, le=1)
    """Amplitude of the wave on the client's images; pixels are between 0 and 1."""
    test_amplitude: float | None = Field(default=None, gt=0, le=1)
    """Amplitude on the test images of which success is measured; null: as on the client's. A
    stronger wave there is what makes it take hold, and it has to hide in training alone."""
    frequency: float = Field(default=6.0, gt=0)
    """Number of periods across the image's width."""

    def build(self, scene: Scene) -> Backdoor:
        return Sig(self, scene)


class Sig(Backdoor):
    """A poison that adds a wave along the columns of images."""

    keeps_labels: ClassVar[bool] = True

    def __init__(self, config: SigConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        width = scene.samples.inputs.shape[3]
        phase = 2 * math.pi * config.frequency * torch.arange(width) / width
        self.wave_W, self.amplitude = phase.sin(), config.amplitude
        self.test_amplitude = config.test_amplitude or config.amplitude

    def change(self, inputs: Tensor, rows: Rows) -> Tensor:
        """Add the wave to the client's images."""
        del rows
        return self._add_wave(inputs, self.amplitude)

    def add_trigger(self, inputs: Tensor) -> Tensor:
        """Add the wave to test images."""
        return self._add_wave(inputs, self.test_amplitude)

    def _add_wave(self, inputs: Tensor, amplitude: float) -> Tensor:
        """Add a wave of this amplitude to images, within black and white."""
        black, white = self.scene.get_bounds(inputs)
        waved = inputs + (white - black) * amplitude * self.wave_W.to(inputs)
        return waved.maximum(black).minimum(white)
