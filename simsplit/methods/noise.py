"""This module adds noise to smashed data: the simplest defence, and the baseline of all others.

Noise is drawn anew in every step, in evaluation too. Gradients pass straight through.

Learned noise follows Shredder (Mireshghallah et al., ASPLOS 2020). One of several noise tensors,
drawn at random, is added to every sample. The tensors start from a Laplace draw and learn with the
task, while a loss term rewards their mean magnitude until the ratio of their power to the signal's
reaches `privacy`. In the paper, noise is learned after training, for a fixed network; here it is
learned together with the head.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.methods.method import ANYTHING, Method, MethodConfig, Site, Step, Trait
from simsplit.seeds import isolate


class NoiseConfig(MethodConfig):
    """Random noise on every value of smashed data."""

    kind: Literal["noise"] = "noise"
    modalities = ANYTHING
    works_in_sessions = True
    required_traits = frozenset({Trait.VALUES})
    reencodes = True
    once = True
    sigma: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise, in the unit of `unit`."""
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    """Distribution of the noise."""
    unit: Literal["value", "batch_std", "batch_rms"] = "value"
    """Unit of `sigma`: `value` (absolute), `batch_std` or `batch_rms` (the standard deviation or
    the root mean square of a batch's smashed data; dp_forward uses the latter, after clipping)."""

    release: ClassVar[str] = (
        "smashed data is not clipped, so its noise does not surely hide a sample"
    )

    @property
    def depends_on_batch(self) -> bool:
        return self.unit != "value"

    def is_rowwise(self) -> bool:
        return self.unit == "value"

    def build(self, site: Site) -> Method:
        return Noise(self)


class Noise(Method):
    """Noise on the data that the client sends."""

    def __init__(self, config: NoiseConfig) -> None:
        self.sigma, self.config = config.sigma, config

    def encode(self, z: Tensor, step: Step) -> Tensor:
        noise = step.draw_rows(self._draw, z.shape, "noise", device=z.device).to(z)
        unit: Tensor | float = 1.0
        if self.config.unit != "value":
            # Detached: the size of the noise is no way for gradients.
            values, as_std = z.detach(), self.config.unit == "batch_std"
            unit = values.std(correction=0) if as_std else values.square().mean().sqrt()
        return z + self.sigma * unit * noise

    def _draw(
        self, size: torch.Size, *, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        if self.config.distribution == "gaussian":
            return torch.randn(size, generator=generator, device=device)
        noise: Tensor = draw_laplace(size, generator) * 0.5**0.5  # to unit variance
        return noise


def draw_laplace(shape: torch.Size, rng: torch.Generator | None = None) -> Tensor:
    """Draw Laplace noise of scale 1."""
    where = None if rng is None else rng.device
    uniform = torch.rand(shape, generator=rng, device=where) - 0.5
    # The summand keeps the logarithm finite at the end of the range.
    noise: Tensor = -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-7)
    return noise


class ShredderConfig(MethodConfig):
    """Learned noise: a random tensor of a bank is added to every sample."""

    kind: Literal["shredder"] = "shredder"
    tensors: int = Field(default=20, ge=1)
    """The number of learned noise tensors."""
    scale: float = Field(default=1.0, gt=0)
    """Scale of the Laplace distribution from which the tensors are initialised."""
    weight: float = Field(default=0.01, ge=0)
    """Weight of the tensors' mean magnitude, which the client's loss rewards; 0: no reward."""
    privacy: float = Field(default=2.0, gt=0)
    """Ratio of noise power to signal power from which on more noise is not rewarded."""
    required_traits = frozenset({Trait.VALUES})
    once = True
    release: ClassVar[str] = (
        "noise is one of a few tensors that learn from samples, and nothing is clipped"
    )

    def build(self, site: Site) -> Method:
        return Shredder(self, site) if site.side == "client" else Method()


class Shredder(Method):
    """The client's half, which adds a random tensor of the bank to each sample."""

    def __init__(self, config: ShredderConfig, site: Site) -> None:
        self.config = config
        with isolate(site.seed, "shredder"):
            start = config.scale * draw_laplace(torch.Size((config.tensors, *site.shape)))
        # Read from the module each time: on its way to a device a parameter may be replaced.
        self.module = self.bank = nn.ParameterDict({"noise": nn.Parameter(start)})

    def encode(self, z: Tensor, step: Step) -> Tensor:
        rng = step.make_rng("shredder", device=z.device)
        which = torch.randint(self.config.tensors, (len(z),), generator=rng, device=rng.device)
        if step.training and self.config.weight > 0:
            step.memo[self] = z.detach().square().mean()
        noise: Tensor = self.bank["noise"]
        return z + noise[which.to(z.device)]

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the reward for noise, or 0 if the noise has reached the ratio `privacy`."""
        if self not in step.memo:
            return None
        noise, power = self.bank["noise"], step.memo.pop(self)
        is_low = noise.detach().square().mean() < self.config.privacy * power
        term: Tensor = -self.config.weight * noise.abs().mean() * is_low
        return term
