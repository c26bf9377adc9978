"""The inverse of an optimizer: the gradient of a step, from the weights before and after it.

SGD's update is linear in the gradient, so one step back is exact. Adam's is not. An observer who
has followed it from its first step knows its moments. Then a value's update u is
(a + b d) / (sqrt(c + e d^2) + eps), and d is a root of a quadratic equation: the only one while
|u| < b / sqrt(e). But where a value has no moments yet, as at the first step, u is the gradient's
sign, up to eps. Only the last digits of the new weight show the gradient's size then, and these
digits exist only where the weight was zero (half of low-rank adapters).

So the gradient is not solved value by value. It is a sum of a few known gradients with unknown
shares, and there are far more equations than unknowns. Each equation is weighted by the precision
of its digits. For Adam the shares' proportions are recovered to 1e-5 and their common factor to
1e-3; if no weight started at zero, that factor would stay unknown.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from simsplit.parties.optimizers import AdamWConfig, MomentsConfig, OptimizerConfig, SgdConfig

ROUNDING = 2.0**-23
"""Relative rounding error of 32-bit floats."""
REFINED = 8
"""Maximum number of Newton steps."""


class Update(NamedTuple):
    """The change of weights that a gradient would cause."""

    size: Tensor
    """The change, in units of the learning rate."""
    slope: Tensor
    """The derivative of the change by the gradient, value by value."""
    moments: Mapping[str, Tensor]
    """The optimizer's state after the change."""


class Follower:
    """A copy of the state of a client's optimizer, updated with the gradients recovered so far."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config
        self.sign = -1.0 if config.maximize else 1.0
        self.coupled = 0.0 if isinstance(config, AdamWConfig) else config.weight_decay
        self.moments: Mapping[str, Tensor] = {}
        self.steps = 0

    def shares(self, made_PK: Tensor, before_P: Tensor, after_P: Tensor, factor: float) -> Tensor:
        """Solve for the shares a with which the gradient made_PK @ a leads from before to after.

        `made_PK` holds the known gradients, one per column; `factor` is the factor of the learning
        rate in this step.
        """
        made, before = made_PK.double().cpu(), before_P.double().cpu()
        seen, rounding = self._observe(before, after_P.double().cpu(), factor)
        gradient, slope = self._undo(seen, before)
        # An error of rounding in the update is one of rounding / slope in the gradient.
        shares = _fit(made, gradient, slope / rounding)
        if isinstance(self.config, SgdConfig):
            return shares
        # Adam's gradients are rough where the update hardly depends on them. Gauss-Newton steps fit
        # the updates themselves, whose rounding errors are known.
        error = self._error(made @ shares, seen, before, rounding)
        for _ in range(REFINED):
            size, slope, _ = self.update(made @ shares, before)
            better = shares + _fit(made * slope[:, None], seen - size, 1 / rounding)
            less = self._error(made @ better, seen, before, rounding)
            # So written that a NaN ends the refinement too.
            if not less < error:
                break
            shares, error = better, less
        return shares

    def follow(self, gradient_P: Tensor, before_P: Tensor) -> None:
        """Update the state by the client's step with this gradient."""
        self.moments = self.update(gradient_P.double().cpu(), before_P.double().cpu()).moments
        self.steps += 1

    def update(self, gradient: Tensor, before: Tensor) -> Update:
        """Compute the optimizer's update for a gradient."""
        rule = self._update_sgd if isinstance(self.config, SgdConfig) else self._update_adam
        size, slope, moments = rule(self.sign * gradient + self.coupled * before)
        return Update(size, self.sign * slope, moments)

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next step depends on."""
        return {**self.moments, "steps": torch.tensor(self.steps)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = int(state["steps"])
        self.moments = {name: value for name, value in state.items() if name != "steps"}

    def _observe(self, before: Tensor, after: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Compute a step's update from the weights, and the bound of its rounding error."""
        config = self.config
        assert isinstance(config, SgdConfig | MomentsConfig), "there are no other optimizers"
        rate = config.lr * factor
        decoupled = config.weight_decay if isinstance(config, AdamWConfig) else 0.0
        size = (before * (1 - rate * decoupled) - after) / rate
        return size, ROUNDING * ((before.abs() + after.abs()) / rate + size.abs() + 1e-30)

    def _undo(self, seen: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the gradient of each value, with the update's slope; 0: the root is unknown."""
        nothing = torch.zeros_like(seen)
        if isinstance(self.config, SgdConfig):
            size, slope, _ = self.update(nothing, before)
            return (seen - size) / slope, slope
        config = self.config
        assert isinstance(config, MomentsConfig), "there are no other optimizers"
        root, unique = self._solve_adam(config, seen)
        gradient = self.sign * (root - self.coupled * before)
        slope = self.update(gradient, before).slope.abs()
        return gradient, torch.where(unique, slope, nothing)

    def _solve_adam(self, config: MomentsConfig, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Solve Adam's quadratic equation; return a root, and where it is the only one."""
        one, two = (1 - beta ** (self.steps + 1) for beta in config.betas)
        # The module's a, b, c and e; u eps is moved into a, so that the root stands alone.
        b, e = (1 - config.betas[0]) / one, (1 - config.betas[1]) / two
        mean, square, top = self._moments(seen)
        a = config.betas[0] * mean / one - seen * config.eps
        c = config.betas[1] * square / two
        lead = b**2 - seen**2 * e
        unique = lead > 1e-7 * b**2
        # A harmless divisor where the root gets no weight: 0 times infinity would be NaN.
        lead = torch.where(unique, lead, b**2)
        root = (seen * (e * a**2 + c * lead).clamp(min=0).sqrt() - a * b) / lead
        if config.amsgrad:  # if the largest square stays, the update is linear in the gradient
            linear = (seen * (top / two).sqrt() - a) / b
            smaller = config.betas[1] * square + (1 - config.betas[1]) * linear**2 < top
            root, unique = torch.where(smaller, linear, root), unique | smaller
        return root, unique

    def _update_sgd(self, gradient: Tensor) -> Update:
        """Compute the update of SGD with momentum from its gradient."""
        config = self.config
        assert isinstance(config, SgdConfig), "called for SGD only"
        one = torch.ones_like(gradient)
        if not config.momentum:
            return Update(gradient, one, {})
        before = self.moments.get("buffer")
        held = 1.0 if before is None else 1 - config.dampening
        buffer = held * gradient + (0.0 if before is None else config.momentum * before)
        kept = {"buffer": buffer}
        if not config.nesterov:
            return Update(buffer, held * one, kept)
        return Update(gradient + config.momentum * buffer, (1 + config.momentum * held) * one, kept)

    def _update_adam(self, gradient: Tensor) -> Update:
        """Compute the update of Adam, AdamW or AMSGrad."""
        config = self.config
        assert isinstance(config, MomentsConfig), "called for optimizers with moments only"
        first, second = config.betas
        one, two = (1 - beta ** (self.steps + 1) for beta in config.betas)
        mean, square, top = self._moments(gradient)
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        largest = torch.maximum(top, square) if config.amsgrad else square
        root = (largest / two).sqrt()
        under = root + config.eps
        # In AMSGrad an older square may stay the largest, which this gradient does not change.
        moves = largest == square
        bend = torch.where(moves & (root > 0), (1 - second) / two * gradient / root, 0.0)
        slope = ((1 - first) / one - mean / one / under * bend) / under
        kept = {"mean": mean, "square": square} | ({"top": largest} if config.amsgrad else {})
        return Update(mean / one / under, slope, kept)

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Adam's mean, square and largest square so far; zeros before the first step."""
        zeros = torch.zeros_like(like)
        mean, square, top = (self.moments.get(n, zeros) for n in ("mean", "square", "top"))
        return mean, square, top

    def _error(self, gradient: Tensor, seen: Tensor, before: Tensor, rounding: Tensor) -> float:
        """Compute the squared error of a gradient's update, in units of rounding errors."""
        size = self.update(gradient, before).size
        return ((size - seen) / rounding).square().sum().item()


def _fit(made_PK: Tensor, wanted_P: Tensor, weight_P: Tensor) -> Tensor:
    """Solve weighted least squares; columns are scaled, as their sizes may differ greatly."""
    scale_K = made_PK.norm(dim=0).clamp(min=1e-300)
    left, right = made_PK / scale_K * weight_P[:, None], wanted_P * weight_P
    # By singular values, since columns may be nearly parallel.
    solved = torch.linalg.lstsq(left, right[:, None], driver="gelsd").solution[:, 0]
    shares: Tensor = solved / scale_K
    return shares
