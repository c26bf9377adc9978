"""This module adds noise to smashed data: the simplest defence, and the baseline of all others.

Noise is drawn anew in every step, in evaluation too. Gradients pass straight through.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.method import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait


class NoiseConfig(MethodConfig):
    """Random noise on every value of smashed data."""

    kind: Literal["noise"] = "noise"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    works_in_sessions: ClassVar[bool] = True
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    reencodes: ClassVar[bool] = True
    sigma: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise, in the unit of `unit`."""
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    """Distribution of the noise."""
    unit: Literal["value", "batch_std", "batch_rms"] = "value"
    """Unit of `sigma`: `value` (absolute), `batch_std` or `batch_rms` (the standard deviation or
    the root mean square of a batch's smashed data; dp_forward uses the latter, after clipping)."""

    @property
    def release(self) -> str:
        """The reason why there is no guarantee: the noised values are not bounded."""
        return "smashed data is not clipped, so its noise does not surely hide a sample"

    def build(self, site: Site) -> Method:
        return Noise(self)


class Noise(Method):
    """Noise on the data that the client sends."""

    def __init__(self, config: NoiseConfig) -> None:
        self.sigma, self.config = config.sigma, config

    def encode(self, z: Tensor, step: Step) -> Tensor:
        noise = self._draw(z, step.make_rng("noise")).to(z)
        # The unit is detached: the size of the noise is no way for gradients.
        return z + self.sigma * self._compute_unit(z.detach()) * noise

    def _compute_unit(self, z: Tensor) -> Tensor | float:
        if self.config.unit == "batch_std":
            return z.std(correction=0)
        return z.square().mean().sqrt() if self.config.unit == "batch_rms" else 1.0

    def _draw(self, z: Tensor, rng: torch.Generator) -> Tensor:
        if self.config.distribution == "gaussian":
            return torch.randn(z.shape, generator=rng)
        noise: Tensor = draw_laplace(z.shape, rng) * 0.5**0.5  # to unit variance
        return noise


def draw_laplace(shape: torch.Size, rng: torch.Generator | None = None) -> Tensor:
    """Draw Laplace noise of scale 1."""
    uniform = torch.rand(shape, generator=rng) - 0.5
    # The summand keeps the logarithm finite at the end of the range.
    noise: Tensor = -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-7)
    return noise
