"""Clipping of rows, and the guarantee that noise of a known size gives after it."""

from dataclasses import dataclass

from torch import Tensor

from simsplit.legs import Leg


@dataclass(frozen=True)
class Release:
    """A Gaussian mechanism: each row is sent once, with noise that does not depend on the data."""

    leg: Leg
    multiplier: float
    """Standard deviation of the noise, in units of the sensitivity: the largest distance that
    replacing one row can move it."""
    of: str = "sample"
    """The kind of row: sample, or token of a text."""


@dataclass(frozen=True)
class Response:
    """Randomised response, once per sample: pure differential privacy of its label."""

    epsilon: float
    keeps_tail: bool = False
    """Whether the true labels train the tail, so that the tail must stay with its client."""


def clip_rows(
    x: Tensor, clip: float, *, relative: bool, per_token: bool = False
) -> tuple[Tensor, Tensor | float]:
    """Shorten rows to a norm of at most `clip`; return them and the norm.

    If `relative`, `clip` is in units of the rows' mean norm. Rows are samples or, with `per_token`,
    tokens.
    """
    # In fp32 for any input: a norm that is rounded down would leave a row longer than allowed.
    # Rounding after the noise is harmless.
    x = x.float()
    axes = tuple(range(2 if per_token else 1, x.dim()))
    norms = x.detach().square().sum(axes, keepdim=True).sqrt()
    limit = clip * norms.mean() if relative else clip
    return x * (limit / norms.clamp_min(1e-12)).clamp(max=1.0), limit
