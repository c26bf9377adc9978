"""An optimizer undone: from weights before and after a step to the gradient of the step.

SGD's update is linear in the gradient, so one step back is exact. Adam's is not. Its moments are
known to whoever has followed it from its first step; then a value's update u is
(a + b d) / (sqrt(c + e d^2) + eps), and d a root of a quadratic equation: the only one while
|u| < b / sqrt(e). But where a value has no moments yet, as at the first step, u is the gradient's
sign, up to eps: all that tells its size are the last digits of the new weight. They are there where
the weight was zero (half of low-rank adapters), and nowhere else.

So the gradient is not solved value by value. It is a sum of a few known ones with unknown shares,
of which there are far more equations than unknowns; each counts as much as its digits tell. Of
Adam's gradients the proportions come out to 1e-5, and the one factor that all of them have in
common to 1e-3; where no weight starts at zero that factor would stay unknown.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from simsplit.parties.optimizers import AdamWConfig, MomentsConfig, OptimizerConfig, SgdConfig

ROUNDING = 2.0**-23
"""Of 32-bit floats, relative."""
REFINED = 8
"""Newton steps at most."""


class Update(NamedTuple):
    """What a gradient would change the weights by, in units of the learning rate."""

    size: Tensor
    slope: Tensor
    """Its derivative by the gradient, value by value."""
    moments: Mapping[str, Tensor]
    """The optimizer's state after it."""


class Follower:
    """Keeps the state that a client's optimizer has, as known from the gradients so far."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config
        self.moments: Mapping[str, Tensor] = {}
        self.steps = 0

    def shares(self, made_PK: Tensor, before_P: Tensor, after_P: Tensor, factor: float) -> Tensor:
        """The shares a of known gradients, in made_PK @ a that has led from `before` to `after`.

        `factor` is that of the step's learning rate.
        """
        made, before = made_PK.double().cpu(), before_P.double().cpu()
        seen, rounding = self._observed(before, after_P.double().cpu(), factor)
        gradient, slope = self._undone(seen, before)
        found = _fitted(made, gradient, slope / rounding)
        if isinstance(self.config, SgdConfig):
            return found
        error = self._error(made @ found, seen, before, rounding)
        for _ in range(REFINED):
            size, slope, _ = self.update(made @ found, before)
            better = found + _fitted(made * slope[:, None], seen - size, 1 / rounding)
            less = self._error(made @ better, seen, before, rounding)
            if not less < error:
                break
            found, error = better, less
        return found

    def follow(self, gradient_P: Tensor, before_P: Tensor) -> None:
        """Take the step that the client took."""
        self.moments = self.update(gradient_P.double().cpu(), before_P.double().cpu()).moments
        self.steps += 1

    def update(self, gradient: Tensor, before: Tensor) -> Update:
        """What the optimizer would make of a gradient."""
        config = self.config
        sign = -1.0 if config.maximize else 1.0
        coupled = 0.0 if isinstance(config, AdamWConfig) else config.weight_decay
        of = self._of_sgd if isinstance(config, SgdConfig) else self._of_adam
        size, slope, moments = of(sign * gradient + coupled * before)
        return Update(size, sign * slope, moments)

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on."""
        return {**self.moments, "steps": torch.tensor(self.steps)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps = int(state["steps"])
        self.moments = {name: value for name, value in state.items() if name != "steps"}

    def _observed(self, before: Tensor, after: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """The update of a step, and how far rounding may have moved it."""
        config = self.config
        assert isinstance(config, SgdConfig | MomentsConfig), "these are all"
        rate = config.lr * factor
        apart = config.weight_decay if isinstance(config, AdamWConfig) else 0.0
        size = (before * (1 - rate * apart) - after) / rate
        return size, ROUNDING * ((before.abs() + after.abs()) / rate + size.abs() + 1e-30)

    def _undone(self, seen: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each value, and how much its update tells of it; 0: nothing."""
        nothing = torch.zeros_like(seen)
        if isinstance(self.config, SgdConfig):
            size, slope, _ = self.update(nothing, before)
            return (seen - size) / slope, slope
        config = self.config
        assert isinstance(config, MomentsConfig), "the only others"
        found, told = self._root(config, seen)
        sign = -1.0 if config.maximize else 1.0
        coupled = 0.0 if isinstance(config, AdamWConfig) else config.weight_decay
        gradient = sign * (found - coupled * before)
        slope = self.update(gradient, before).slope.abs()
        return gradient, torch.where(told, slope, nothing)

    def _root(self, config: MomentsConfig, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Of Adam's quadratic equation; and where it is the only one."""
        one, two = (1 - beta ** (self.steps + 1) for beta in config.betas)
        b, e = (1 - config.betas[0]) / one, (1 - config.betas[1]) / two
        mean, square, top = self._known(seen)
        a = config.betas[0] * mean / one - seen * config.eps
        c = config.betas[1] * square / two
        lead = b**2 - seen**2 * e
        told = lead > 1e-7 * b**2
        lead = torch.where(told, lead, b**2)
        found = (seen * (e * a**2 + c * lead).clamp(min=0).sqrt() - a * b) / lead
        if config.amsgrad:  # the largest so far may stay
            stays = (seen * (top / two).sqrt() - a) / b
            smaller = config.betas[1] * square + (1 - config.betas[1]) * stays**2 < top
            found, told = torch.where(smaller, stays, found), told | smaller
        return found, told

    def _of_sgd(self, gradient: Tensor) -> Update:
        config = self.config
        assert isinstance(config, SgdConfig), "asked of no other"
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

    def _of_adam(self, gradient: Tensor) -> Update:
        config = self.config
        assert isinstance(config, MomentsConfig), "asked of no other"
        first, second = config.betas
        one, two = (1 - beta ** (self.steps + 1) for beta in config.betas)
        mean, square, top = self._known(gradient)
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        largest = torch.maximum(top, square) if config.amsgrad else square
        root = (largest / two).sqrt()
        under = root + config.eps
        moves = largest == square
        bend = torch.where(moves & (root > 0), (1 - second) / two * gradient / root, 0.0)
        slope = ((1 - first) / one - mean / one / under * bend) / under
        kept = {"mean": mean, "square": square} | ({"top": largest} if config.amsgrad else {})
        return Update(mean / one / under, slope, kept)

    def _known(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        zeros = torch.zeros_like(like)
        mean, square, top = (self.moments.get(n, zeros) for n in ("mean", "square", "top"))
        return mean, square, top

    def _error(self, gradient: Tensor, seen: Tensor, before: Tensor, rounding: Tensor) -> float:
        size = self.update(gradient, before).size
        return ((size - seen) / rounding).square().sum().item()


def _fitted(made_PK: Tensor, wanted_P: Tensor, weight_P: Tensor) -> Tensor:
    """The weighted least-squares solution; columns may be of very different sizes."""
    scale_K = made_PK.norm(dim=0).clamp(min=1e-300)
    left, right = made_PK / scale_K * weight_P[:, None], wanted_P * weight_P
    solved = torch.linalg.lstsq(left, right[:, None], driver="gelsd").solution[:, 0]
    found: Tensor = solved / scale_K
    return found
