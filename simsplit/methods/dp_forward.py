"""DP-Forward (Du et al., CCS 2023): what is sent is clipped and noised, text by text.

The noise is that of the analytic Gaussian mechanism (Balle and Wang, 2018), exact for (epsilon,
delta) at a sensitivity of twice the clipping norm (a text replaced by another). A norm of 1 over a
whole text would erase it, so clipping is relative: to the norm that texts of the batch have on
average. That average is the clients' own data's; take `relative: false` for the letter of the
guarantee. `sigma` skips all that: noise of so many times the values' root mean square.
"""

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Site, Step


class DpForwardConfig(MethodConfig):
    """Clips and noises the smashed data of texts."""

    kind: Literal["dp_forward"] = "dp_forward"
    epsilon: float | None = Field(default=None, gt=0)
    """Privacy budget of one text in one step; null: the noise is set by `sigma`."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability that the budget is exceeded."""
    sigma: float | None = Field(default=None, ge=0)
    """Noise in units of the values' root mean square, instead of a budget; null: 1 without a
    budget."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm."""
    relative: bool = True
    """Whether `clip` is relative to the batch's mean norm, or absolute."""
    per: Literal["text", "token"] = "text"
    """What is clipped and protected: a whole text, or each token."""
    inference: bool = True
    """Whether noise is added in evaluation too."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    once: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.epsilon is not None and self.sigma is not None:
            raise ValueError("epsilon and sigma: both say how much noise there is, give one")
        return self

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return DpForward(self) if site.side == "client" else Method()


class DpForward(Method):
    """Clips, and adds noise that is drawn anew each step."""

    def __init__(self, config: DpForwardConfig) -> None:
        self.config = config
        self.scale = 0.0
        if config.epsilon is not None:
            self.scale = 2 * gaussian_sigma(config.epsilon, config.delta)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Clip, then add Gaussian noise."""
        config = self.config
        if not (step.training or config.inference):
            return z
        axes = tuple(range(1 if config.per == "text" else 2, z.dim()))
        norms = z.detach().square().sum(axes, keepdim=True).sqrt()
        limit = config.clip * (norms.mean() if config.relative else 1.0)
        clipped = z * (limit / norms.clamp_min(1e-12)).clamp(max=1.0)
        if config.epsilon is None:
            sigma = 1.0 if config.sigma is None else config.sigma
            size = sigma * clipped.detach().square().mean().sqrt()
        else:
            size = self.scale * torch.as_tensor(limit)
        draws = torch.randn(z.shape, generator=step.rng("dp_forward"))
        return clipped + size * draws.to(z)


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest noise that is (epsilon, delta)-private at a sensitivity of 1."""

    def leaks(sigma: float) -> float:
        half, shift = 1 / (2 * sigma), epsilon * sigma
        return _normal(half - shift) - math.exp(epsilon) * _normal(-half - shift)

    low, high = 1e-6, 1.0
    while leaks(high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if leaks(middle) > delta else (low, middle)
    return high


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
