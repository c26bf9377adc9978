"""Marvell (Li et al., ICLR 2022): the noise on gradients that hides two classes best.

Per class, the batch's gradients are taken as Gaussian, with means whose difference is delta, g =
|delta|^2, and with a variance per value of u (class 0) and v (class 1). Noise is Gaussian too, of
variance lam1 along delta and lam2 across it, for each class. Of all noise of the power

    p (lam11 + (d - 1) lam21) + (1 - p) (lam10 + (d - 1) lam20) = P,

p being the share of class 1 and d the values per row, the noise is sought that makes the classes
hardest to tell apart: with the least sum of the two Kullback-Leibler divergences. P starts at
`power` g, and grows by half until that sum is `sum_kl` at most. That bounds the mean of a
detector's two error rates from below, by 1/2 - sqrt(sum_kl) / 4.

The published solver minimises over one of three variables at a time. Here two of them are
minimised in closed form, and the third is searched on finer and finer grids, for the same minimum
or a lower one. Where the published code divides by zero, here nothing is added: to a batch of one
class, and where the means are equal. The power stops growing after 200 steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import LabelDefenceConfig, Method, Share, Site, Step, Trait
from simsplit.methods.classes import classes_of
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg

Values = NDArray[np.float64]
_STEPS, _GROWTH = 200, 1.5
_GRID, _FINER = 33, 12


class MarvellConfig(LabelDefenceConfig):
    """Adds the noise to gradients that makes two classes hardest to tell apart."""

    kind: Literal["marvell"] = "marvell"
    sum_kl: float | None = Field(default=0.25, gt=0)
    """What the sum of both divergences between the classes' gradients must not exceed; the
    published code's examples use 0.16 to 0.81. null: whatever `power` makes it."""
    power: float = Field(default=1.0, gt=0)
    """Power of the noise, in units of the squared distance of the classes' means: the least tried,
    or, without `sum_kl`, the one."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    reported: ClassVar[tuple[str, ...]] = ("sum_kl", "noise_power", "marvell_left_out")
    requires: ClassVar[Needs] = (
        needs_leg(Leg.FEATURES_GRAD),
        Need(Given.SCORING),
        Need(Given.CLASSIFIES),
        Need(Given.TWO_CLASSES),
    )

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return Marvell(self) if site.side == "client" else Method()


class Marvell(Method):
    """Adds noise to the feature gradients that a client sends.

    Of a round, `sum_kl` and `noise_power` (P) are means over batches, `marvell_left_out` the share
    of batches that are sent as they are.
    """

    def __init__(self, config: MarvellConfig) -> None:
        self.sum_kl, self.power = config.sum_kl, config.power

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """The noised gradient, as one message."""
        assert step.labels is not None, "clients know their labels"
        rng = step.next_rng(self, "marvell")
        rows = grad.flatten(1).double()
        positive = classes_of(step.labels).to(rows.device) == 1
        seen = _measured(rows, positive)
        step.told["marvell_left_out"] = float(seen is None)
        if seen is None:
            return (Share(grad),)
        delta, problem = seen
        noise = strengthened(problem, self.power, self.sum_kl)
        step.told |= {"sum_kl": noise.sum_kl, "noise_power": noise.power}
        along = torch.randn(len(rows), 1, generator=rng, dtype=torch.float64).to(rows)
        across = torch.randn(rows.shape, generator=rng, dtype=torch.float64).to(rows)
        of_class = positive[:, None]
        far = torch.where(of_class, noise.lam11 - noise.lam21, noise.lam10 - noise.lam20)
        near = torch.where(of_class, noise.lam21, noise.lam20)
        rows = rows + far.sqrt() * along * delta / delta.norm() + near.sqrt() * across
        return (Share(rows.to(grad.dtype).view_as(grad)),)


@dataclass(frozen=True)
class Problem:
    """What noise is to hide; class 0 is the negatives."""

    u: float
    """Variance per value of class 0."""
    v: float
    """Variance per value of class 1."""
    d: float
    """Values per row."""
    g: float
    """Squared distance of the classes' means."""
    p: float
    """Share of class 1."""

    @property
    def turned(self) -> "Problem":
        """The same with the classes exchanged."""
        return Problem(self.v, self.u, self.d, self.g, 1 - self.p)


class Noise(NamedTuple):
    """Variances of the noise, along (1) and across (2) the difference of means, of classes 0, 1."""

    lam10: float
    lam20: float
    lam11: float
    lam21: float
    sum_kl: float
    power: float

    @property
    def turned(self) -> "Noise":
        """The same with the classes exchanged."""
        return Noise(self.lam11, self.lam21, self.lam10, self.lam20, self.sum_kl, self.power)


def _measured(rows: Tensor, positive: Tensor) -> tuple[Tensor, Problem] | None:
    """The difference of means and the problem that gradients pose; None where there is none."""
    if positive.all() or not positive.any():
        return None
    ones, zeros = rows[positive], rows[~positive]
    delta = ones.mean(0) - zeros.mean(0)
    u, v = (part.var(0, correction=0).mean().item() for part in (zeros, ones))
    g, p = delta.square().sum().item(), positive.double().mean().item()
    return (delta, Problem(u, v, rows.shape[1], g, p)) if g > 0 else None


def strengthened(problem: Problem, power: float, sum_kl: float | None) -> Noise:
    """The best noise of `power` g, or of the first power after it that is enough."""
    noise = solved(problem, power * problem.g)
    for _ in range(_STEPS):
        if sum_kl is None or noise.sum_kl <= sum_kl:
            break
        power *= _GROWTH
        noise = solved(problem, power * problem.g)
    return noise


def solved(problem: Problem, power: float) -> Noise:
    """The noise of this power with the least sum of divergences.

    The class whose gradients vary more needs no noise across the difference of means; of the other
    class that noise is searched for, and given it the two variances along are known.
    """
    if problem.u > problem.v:
        return solved(problem.turned, power).turned
    if problem.u == problem.v == 0:  # across the difference of means there is nothing at all
        problem = Problem(0.0, 0.0, 1.0, problem.g, problem.p)
    most = power / ((1 - problem.p) * problem.d) if problem.v > 0 else 0.0
    grid = np.linspace(0.0, most, _GRID)
    for _ in range(_FINER):
        near = int(_profile(problem, power, grid)[2].argmin())
        grid = np.linspace(grid[max(near - 1, 0)], grid[min(near + 1, _GRID - 1)], _GRID)
    best = int(_profile(problem, power, grid)[2].argmin())
    lam10, lam11, divergence = (each[best] for each in _profile(problem, power, grid))
    return Noise(*map(float, (lam10, grid[best], lam11, 0.0, divergence, power)))


def _profile(problem: Problem, power: float, lam20: Values) -> tuple[Values, Values, Values]:
    """For each noise of class 0 across: the best lam10 and lam11, and the sum of divergences."""
    u, v, d, g, p = problem.u, problem.v, problem.d, problem.g, problem.p
    left = power - (1 - p) * (d - 1) * lam20
    whole = left + p * v + (1 - p) * u
    ratio = np.sqrt((whole + (1 - p) * g) / (whole + p * g))
    free = (left / p + v - ratio * u) / (ratio + (1 - p) / p)
    lam10 = np.clip(free, lam20, np.maximum(left / (1 - p), lam20))
    lam11 = np.maximum((left - (1 - p) * lam10) / p, 0.0)
    return lam10, lam11, _divergence(problem, (lam10, lam20, lam11, np.zeros_like(lam20)))


def _divergence(problem: Problem, noise: tuple[Values, Values, Values, Values]) -> Values:
    """The sum of the two Kullback-Leibler divergences between the noised classes."""
    lam10, lam20, lam11, lam21 = noise
    along0, across0 = lam10 + problem.u, lam20 + problem.u
    along1, across1 = lam11 + problem.v, lam21 + problem.v
    with np.errstate(divide="ignore", invalid="ignore"):
        total = (along0 + problem.g) / along1 + (along1 + problem.g) / along0
        if problem.d > 1:
            total = total + (problem.d - 1) * (across0 / across1 + across1 / across0)
    return np.where(np.isfinite(total), total / 2 - problem.d, math.inf)
