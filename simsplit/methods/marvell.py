"""This module implements Marvell (Li et al., ICLR 2022), the optimal noise to hide two classes.

The batch's gradients are modelled as Gaussian in each class: the difference of the means is delta,
with g = |delta|^2, and the variance per value is u (class 0) and v (class 1). The noise is Gaussian
too, with variance lam1 along delta and lam2 across it, for each class. Its power is

    P = p (lam11 + (d - 1) lam21) + (1 - p) (lam10 + (d - 1) lam20),

where p is the share of class 1 and d the number of values per row. Among all noise of power P, the
noise with the smallest sum of both Kullback-Leibler divergences between the classes is used. P
starts at `power` g and grows by half until this sum is at most `sum_kl`. Then the mean of a
detector's two error rates is at least 1/2 - sqrt(sum_kl) / 4.

The published solver minimises over one of three variables at a time. Here two of them are minimised
in closed form, and the third is searched on successively finer grids; the minimum is the same or
lower. Where the published code divides by zero (a batch of one class, equal means), no noise is
added here. The power stops growing after 200 steps.

The same paper's max_norm hides classes in gradient norms. Every row g_j of a batch's gradient is
scaled by 1 + s_j n_j, where n_j is standard normal and s_j = sqrt(max |g|^2 / |g_j|^2 - 1). Then
all rows have the mean square norm of the longest row, and keep their directions up to the sign. Our
only departure from the paper: a row of zeros stays zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from simsplit.data.samples import get_classes
from simsplit.legs import Leg
from simsplit.methods.method import LabelDefenceConfig, Method, Share, Site, Step, Trait
from simsplit.needs import Given, Need, need_leg

Values = NDArray[np.float64]
_STEPS, _GROWTH = 200, 1.5
_GRID, _FINER = 33, 12


class MarvellConfig(LabelDefenceConfig):
    """Noise on gradients that makes two classes hardest to distinguish."""

    kind: Literal["marvell"] = "marvell"
    sum_kl: float | None = Field(default=0.25, gt=0)
    """Upper bound of the sum of both divergences between the classes' gradients. The published
    code's examples use 0.16 to 0.81. Null: no bound; `power` alone sets the noise."""
    power: float = Field(default=1.0, gt=0)
    """Power of the noise, in units of the squared distance of the classes' means. With `sum_kl`,
    this is the first power that is tried."""
    required_traits = frozenset({Trait.SAMPLES})
    columns = ("sum_kl", "noise_power", "marvell_left_out")
    requires = (*LabelDefenceConfig.by_labels, Need(Given.TWO_CLASSES))

    def build(self, site: Site) -> Method:
        return Marvell(self) if site.side == "client" else Method()


class Marvell(Method):
    """The client's half, which adds noise to the feature gradients that it sends.

    In the table of clients, `sum_kl` and `noise_power` (P) are means over a round's batches, and
    `marvell_left_out` is the share of batches that are sent without noise.
    """

    def __init__(self, config: MarvellConfig) -> None:
        self.sum_kl, self.power = config.sum_kl, config.power

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        assert step.labels is not None, "clients know their labels"
        rng = step.make_next_rng(self, "marvell", device=grad.device)
        rows = grad.flatten(1).double()
        positive = get_classes(step.labels).to(rows.device) == 1
        measured = _measure(rows, positive)
        step.figures["marvell_left_out"] = float(measured is None)
        if measured is None:
            return (Share(grad),)
        delta, problem = measured
        noise = find_noise(problem, self.power, self.sum_kl)
        step.figures |= {"sum_kl": noise.sum_kl, "noise_power": noise.power}
        draw = partial(torch.randn, generator=rng, device=rng.device, dtype=torch.float64)
        along, across = draw(len(rows), 1).to(rows), draw(rows.shape).to(rows)
        of_class = positive[:, None]
        # `across` has a part along delta as well, so only the difference of variances is added.
        extra = torch.where(of_class, noise.lam11 - noise.lam21, noise.lam10 - noise.lam20)
        common = torch.where(of_class, noise.lam21, noise.lam20)
        rows = rows + extra.sqrt() * along * delta / delta.norm() + common.sqrt() * across
        return (Share(rows.to(grad.dtype).view_as(grad)),)


@dataclass(frozen=True)
class Problem:
    """The statistics of gradients whose classes the noise is to hide; class 0 is negative."""

    u: float
    """Variance per value of class 0."""
    v: float
    """Variance per value of class 1."""
    d: float
    """Number of values per row."""
    g: float
    """Squared distance of the classes' means."""
    p: float
    """Share of class 1."""

    @property
    def swapped(self) -> "Problem":
        """The problem of a batch whose two classes are exchanged."""
        return Problem(self.v, self.u, self.d, self.g, 1 - self.p)


class NoiseVariances(NamedTuple):
    """Variances of the noise along (lam1) and across (lam2) delta, for classes 0 and 1."""

    lam10: float
    lam20: float
    lam11: float
    lam21: float
    sum_kl: float
    power: float

    @property
    def swapped(self) -> "NoiseVariances":
        """The noise for a batch whose two classes are exchanged."""
        return NoiseVariances(
            self.lam11, self.lam21, self.lam10, self.lam20, self.sum_kl, self.power
        )


def _measure(rows: Tensor, positive: Tensor) -> tuple[Tensor, Problem] | None:
    """Return delta and the statistics of gradients; None for one class or equal means."""
    if positive.all() or not positive.any():
        return None
    ones, zeros = rows[positive], rows[~positive]
    delta = ones.mean(0) - zeros.mean(0)
    u, v = (part.var(0, correction=0).mean().item() for part in (zeros, ones))
    g, p = delta.square().sum().item(), positive.double().mean().item()
    return (delta, Problem(u, v, rows.shape[1], g, p)) if g > 0 else None


def find_noise(problem: Problem, power: float, sum_kl: float | None) -> NoiseVariances:
    """Return the best noise of power `power` g, or of the first larger power that suffices."""
    noise = minimise_divergence(problem, power * problem.g)
    for _ in range(_STEPS):
        if sum_kl is None or noise.sum_kl <= sum_kl:
            break
        power *= _GROWTH
        noise = minimise_divergence(problem, power * problem.g)
    return noise


def minimise_divergence(problem: Problem, power: float) -> NoiseVariances:
    """Return the noise of this power with the smallest sum of divergences.

    The class with the larger variance needs no noise across delta. The other class's noise across
    delta is searched for on a grid; for each value, the two variances along delta have a closed
    form.
    """
    if problem.u > problem.v:
        return minimise_divergence(problem.swapped, power).swapped
    if problem.u == problem.v == 0:  # gradients do not vary, so only the axis of delta matters
        problem = Problem(0.0, 0.0, 1.0, problem.g, problem.p)
    most = power / ((1 - problem.p) * problem.d) if problem.v > 0 else 0.0
    grid = np.linspace(0.0, most, _GRID)
    for _ in range(_FINER):
        near = int(_solve_along(problem, power, grid)[2].argmin())
        grid = np.linspace(grid[max(near - 1, 0)], grid[min(near + 1, _GRID - 1)], _GRID)
    best = int(_solve_along(problem, power, grid)[2].argmin())
    lam10, lam11, divergence = (each[best] for each in _solve_along(problem, power, grid))
    return NoiseVariances(*map(float, (lam10, grid[best], lam11, 0.0, divergence, power)))


def _solve_along(problem: Problem, power: float, lam20: Values) -> tuple[Values, Values, Values]:
    """Return, for each lam20, the best lam10 and lam11 and the sum of divergences."""
    u, v, d, g, p = problem.u, problem.v, problem.d, problem.g, problem.p
    left = power - (1 - p) * (d - 1) * lam20
    total = left + p * v + (1 - p) * u
    ratio = np.sqrt((total + (1 - p) * g) / (total + p * g))
    free = (left / p + v - ratio * u) / (ratio + (1 - p) / p)
    lam10 = np.clip(free, lam20, np.maximum(left / (1 - p), lam20))
    lam11 = np.maximum((left - (1 - p) * lam10) / p, 0.0)
    # The sum of both Kullback-Leibler divergences between the noised classes; lam21 is 0.
    along0, across0, along1 = lam10 + u, lam20 + u, lam11 + v
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = (along0 + g) / along1 + (along1 + g) / along0
        if d > 1:
            divergence = divergence + (d - 1) * (across0 / v + v / across0)
    return lam10, lam11, np.where(np.isfinite(divergence), divergence / 2 - d, math.inf)


class MaxNormConfig(LabelDefenceConfig):
    """Random scales on gradients, so that their norms do not reveal the class."""

    kind: Literal["max_norm"] = "max_norm"
    required_traits = frozenset({Trait.SAMPLES})
    requires = (need_leg(Leg.FEATURES_GRAD),)

    def build(self, site: Site) -> Method:
        return MaxNorm() if site.side == "client" else Method()


class MaxNorm(Method):
    """The client's half, which scales the rows of the feature gradients that it sends."""

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        rng = step.make_next_rng(self, "max_norm", device=grad.device)
        rows = grad.flatten(1).double()
        norms = rows.norm(dim=1, keepdim=True)
        squared = (norms.max() / norms.clamp_min(torch.finfo(torch.float64).tiny)).square()
        spread = (squared - 1).clamp_min(0).sqrt().masked_fill(norms == 0, 0.0)
        draws = torch.randn(norms.shape, generator=rng, device=rng.device).to(rows)
        return (Share((rows * (1 + spread * draws)).to(grad.dtype).view_as(grad)),)
