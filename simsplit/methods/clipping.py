"""Clipping row by row, and the guarantee that noise of a known size then gives to what is sent."""

from dataclasses import dataclass

from torch import Tensor

from simsplit.packets import Leg


@dataclass(frozen=True)
class Release:
    """One sending of a row whose noise does not depend on the data: a Gaussian mechanism."""

    leg: Leg
    multiplier: float
    """Standard deviation of the noise, in units of how far one replaced row can move."""
    of: str = "sample"
    """What a row is: a sample, or one of a text's tokens."""


@dataclass(frozen=True)
class Response:
    """Labels that are replaced at random, once per sample: pure differential privacy of a label."""

    epsilon: float
    keeps_tail: bool = False
    """Whether the true labels still teach a tail that must stay with its client."""


def clipped(
    x: Tensor, clip: float, *, relative: bool, per_token: bool = False
) -> tuple[Tensor, Tensor | float]:
    """Rows shortened to a norm of at most `clip` (if relative, times the rows' mean norm); and that
    norm. Of tokens, the rows are (sample, token). In fp32 whatever comes: a norm that is rounded
    down would let a row be longer; what is rounded behind the noise does no harm.
    """
    x = x.float()
    axes = tuple(range(2 if per_token else 1, x.dim()))
    norms = x.detach().square().sum(axes, keepdim=True).sqrt()
    limit = clip * norms.mean() if relative else clip
    return x * (limit / norms.clamp_min(1e-12)).clamp(max=1.0), limit
