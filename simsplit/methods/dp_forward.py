"""DP-Forward (Du et al., CCS 2023): what is sent is clipped and noised, sample by sample.

A sample's activations are flattened and shortened to a norm of at most C; then noise is added to
every value. With a budget its deviation is that of the analytic Gaussian mechanism (Balle and Wang,
2018), exact for (epsilon, delta) at a sensitivity of 2 C: a sample may be replaced by any other.
The paper's matrix mechanism draws noise that differs by row and column; with equal variances, its
usual choice and its published code's, it is this one (the code takes C where this takes 2 C).

A norm of 1 over a whole text would erase it, so clipping is relative unless told otherwise: to the
norm that samples of the batch have on average. That average is the data's own, and so is the size
of `sigma`; neither has a guarantee. With a budget and `relative: false` one sending has it, and
`running.accounting` says what a run has.
"""

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.methods.base import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.methods.clipping import Release, clip_rows
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Leg


class DpForwardConfig(MethodConfig):
    """Clips and noises the smashed data, sample by sample."""

    kind: Literal["dp_forward"] = "dp_forward"
    epsilon: float | None = Field(default=None, gt=0, le=500)
    """Privacy budget of one sample (or token) in one step; null: the noise is set by `sigma`."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability that this budget is exceeded."""
    sigma: float | None = Field(default=None, ge=0)
    """Noise in units of the values' root mean square, instead of a budget; null: 1 without a
    budget."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm."""
    relative: bool = True
    """Whether `clip` is relative to the batch's mean norm, or absolute."""
    per: Literal["sample", "token"] = "sample"
    """What is clipped and protected: a whole sample, or each token of a text."""
    inference: bool = True
    """Whether noise is added in evaluation too."""
    report_delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta at which a run reports its epsilon; null: 1 / the client's samples, 0.01 at
    most."""
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.epsilon is not None and self.sigma is not None:
            raise ValueError("epsilon and sigma: both say how much noise there is, give one")
        return self

    @property
    def needs(self) -> Needs:
        """Texts, if tokens are clipped."""
        return (*super().needs, *([Need(Given.TEXTS, "per")] if self.per == "token" else []))

    @property
    def release(self) -> Release | str:
        """A budget's noise on what is clipped absolutely."""
        if self.relative:
            return "clipping is relative to the batch's mean norm, so the noise depends on the data"
        if self.epsilon is None:
            return "the noise is relative to the batch's values, so it depends on the data"
        return Release(Leg.SMASHED, gaussian_sigma(self.epsilon, self.delta), self.per)

    def in_sessions(self, reading: str = "") -> bool:
        """Only token by token: a text that is clipped as a whole has to be there as a whole."""
        del reading
        return self.per == "token" or not self.inference

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
        per_token = config.per == "token"
        short, limit = clip_rows(z, config.clip, relative=config.relative, per_token=per_token)
        if config.epsilon is None:
            sigma = 1.0 if config.sigma is None else config.sigma
            size = sigma * short.detach().square().mean().sqrt()
        else:
            size = self.scale * torch.as_tensor(limit)
        draws = torch.randn(z.shape, generator=step.rng("dp_forward"))
        return (short + size * draws.to(short)).to(z)


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
