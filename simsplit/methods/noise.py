"""Noise on what is sent: the plainest of defences, and the yardstick for all others.

Drawn anew for every step, in evaluation too. Gradients pass straight through.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait


class NoiseConfig(MethodConfig):
    """Adds random noise to every value that is sent."""

    kind: Literal["noise"] = "noise"
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    passes: ClassVar[bool] = True
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    reencodes: ClassVar[bool] = True
    sigma: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise."""
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    """Distribution of the noise."""
    unit: Literal["value", "batch_std", "batch_rms"] = "value"
    """Unit of `sigma`: values, or the standard deviation or root mean square of what is sent for a
    batch; the latter is dp_forward's, without its clipping."""

    @property
    def release(self) -> str:
        """No guarantee: nothing bounds what the noise is to hide."""
        return "what is sent is not clipped, so no noise is sure to hide a sample"

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return Noise(self)


class Noise(Method):
    """Adds noise to what the client sends."""

    def __init__(self, config: NoiseConfig) -> None:
        self.sigma, self.config = config.sigma, config

    def encode(self, z: Tensor, step: Step) -> Tensor:
        drawn = self._drawn(z, step.rng("noise")).to(z)
        return z + self.sigma * self._spread(z.detach()) * drawn

    def _spread(self, z: Tensor) -> Tensor | float:
        if self.config.unit == "batch_std":
            return z.std(correction=0)
        return z.square().mean().sqrt() if self.config.unit == "batch_rms" else 1.0

    def _drawn(self, z: Tensor, rng: torch.Generator) -> Tensor:
        if self.config.distribution == "gaussian":
            return torch.randn(z.shape, generator=rng)
        drawn: Tensor = laplace(z.shape, rng) * 0.5**0.5  # of unit variance
        return drawn


def laplace(shape: torch.Size, rng: torch.Generator | None = None) -> Tensor:
    """Laplace noise of scale 1."""
    uniform = torch.rand(shape, generator=rng) - 0.5
    drawn: Tensor = -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-7)
    return drawn
