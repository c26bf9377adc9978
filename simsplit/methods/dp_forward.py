"""This module implements DP-Forward (Du et al., CCS 2023): smashed data is clipped and noised.

A sample's activations are flattened and shortened to a norm of at most C; then noise is added to
every value. With a budget, the noise has the standard deviation of the analytic Gaussian mechanism
(Balle and Wang, 2018), which is exact for (epsilon, delta). The sensitivity is 2 C, since a sample
may be replaced by any other. The paper's matrix mechanism draws noise that differs by row and
column; with equal variances, its usual choice and that of its published code, it equals this one
(except that the code uses C instead of 2 C).

A norm of 1 would erase a whole text, so clipping is by default relative to the mean norm of the
batch's samples. This mean depends on the data, and so does the noise of `sigma`; neither gives a
guarantee. With a budget and `relative: false`, each message has the guarantee of the budget, and
`privacy.accounting` computes the guarantee of a run.
"""

import math
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods.clipping import Release, clip_rows
from simsplit.methods.method import ANYTHING, Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need, Needs


class DpForwardConfig(MethodConfig):
    """Clipping and Gaussian noise on smashed data or embeddings, per sample or per token."""

    kind: Literal["dp_forward"] = "dp_forward"
    epsilon: float | None = Field(default=None, gt=0, le=500)
    """Privacy budget of one sample (or token) in one step; null: `sigma` sets the noise."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """The delta of this budget, roughly the probability that it is exceeded."""
    sigma: float | None = Field(default=None, ge=0)
    """Standard deviation of the noise in units of the values' root mean square; cannot be combined
    with `epsilon`. Null: 1 if there is no budget."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm; see `relative` for its unit."""
    relative: bool = True
    """Whether `clip` is a multiple of the batch's mean norm; if not, it is absolute."""
    per: Literal["sample", "token"] = "sample"
    """The unit that is clipped and protected: a whole sample, or each token of a text."""
    at: Literal["cut", "embeddings"] = "cut"
    """Where data is clipped and noised: what is sent, or the head's embeddings of tokens, as in
    PIDI's tables."""
    inference: bool = True
    """Whether data is clipped and noised in evaluation too."""
    report_delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta at which a run reports its epsilon; null: 1 / the number of the client's samples,
    at most 0.01."""
    modalities = ANYTHING
    accounted = True
    required_traits = frozenset({Trait.VALUES})
    once = True

    @model_validator(mode="after")
    def _check_that_one_field_sets_the_noise(self) -> Self:
        if self.epsilon is not None and self.sigma is not None:
            raise ValueError(
                f"epsilon and sigma both set the noise; give only one of them, got epsilon: "
                f"{self.epsilon:g} and sigma: {self.sigma:g}"
            )
        return self

    @property
    def needs(self) -> Needs:
        of_texts = {"per": self.per == "token", "at": self.at == "embeddings"}
        return (
            *super().needs,
            *(Need(Given.TEXTS, name) for name, is_so in of_texts.items() if is_so),
        )

    @property
    def release(self) -> Release | str:
        """The Gaussian mechanism, if a budget and absolute clipping are given."""
        if self.relative:
            return "clipping is relative to the batch's mean norm, so the noise depends on the data"
        if self.epsilon is None:
            return "the noise is relative to the batch's values, so it depends on the data"
        return Release(Leg.SMASHED, compute_gaussian_sigma(self.epsilon, self.delta), self.per)

    @property
    def depends_on_batch(self) -> bool:
        return self.relative or self.epsilon is None

    def can_run_in_sessions(self, reading: str = "") -> bool:
        return self.per == "token" or not self.inference

    def build(self, site: Site) -> Method:
        return DpForward(self) if site.side == "client" else Method()


class DpForward(Method):
    """The client's half, which clips and adds noise that is drawn anew each step."""

    def __init__(self, config: DpForwardConfig) -> None:
        self.config = config
        self.changes_embeddings = config.at == "embeddings"
        self.scale = 0.0
        if config.epsilon is not None:
            self.scale = 2 * compute_gaussian_sigma(config.epsilon, config.delta)

    def embed(self, x: Tensor, step: Step) -> Tensor:
        return self._add_noise(x, step)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        return z if self.changes_embeddings else self._add_noise(z, step)

    def _add_noise(self, z: Tensor, step: Step) -> Tensor:
        config = self.config
        if not (step.training or config.inference):
            return z
        per_token = config.per == "token"
        clipped, limit = clip_rows(z, config.clip, relative=config.relative, per_token=per_token)
        if config.epsilon is None:
            sigma = 1.0 if config.sigma is None else config.sigma
            size = sigma * clipped.detach().square().mean().sqrt()
        else:
            size = self.scale * torch.as_tensor(limit)
        draws = step.draw_rows(torch.randn, z.shape, "dp_forward", device=z.device)
        return (clipped + size * draws.to(clipped)).to(z)


def compute_gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the smallest noise that is (epsilon, delta)-private at a sensitivity of 1."""

    def compute_delta(sigma: float) -> float:
        half, shift = 1 / (2 * sigma), epsilon * sigma
        return _normal_cdf(half - shift) - math.exp(epsilon) * _normal_cdf(-half - shift)

    low, high = 1e-6, 1.0
    while compute_delta(high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_delta(middle) > delta else (low, middle)
    return high  # the upper end, so that rounding never exceeds the budget


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
