"""Optimizers, learning-rate schedules and clipping, as a scenario names them.

The options are torch's, under torch's names. `capturable` and `differentiable` are left out: they
concern graphs that span a step, and a cut has none.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Discriminator, Field
from torch import Tensor, nn

from simsplit.config import Config, map_kinds

SLOW = "slow"
"""The name of a weight's slow copy in an optimizer's state."""


class LookaheadConfig(Config):
    """Slow copies of the weights, to which these return every few steps (Zhang et al., 2019).

    Slow weights keep a share of themselves and take the rest from the weights, which then continue
    from the result. Buffers (running statistics) do not change. Where a shared segment is handed on
    without moments (clients.handover: weights), a client's slow weights are those of its own turns.
    """

    every: int = Field(default=5, ge=1)
    """Steps between two returns."""
    keep: float = Field(default=0.5, gt=0, lt=1)
    """The share that slow weights keep of themselves."""
    rise: int | None = Field(default=None, ge=1)
    """Steps over which `keep` rises from 0, by the cube of the steps taken (airbench94: all steps);
    null: it is constant."""

    def share(self, steps: int) -> float:
        """Return the share that slow weights keep of themselves after `steps` steps."""
        return self.keep * (min(1.0, steps / self.rise) ** 3 if self.rise else 1.0)


class Lookahead:
    """Lookahead for an optimizer; slow weights are part of its state, beside its moments."""

    def __init__(self, config: LookaheadConfig, optimizer: torch.optim.Optimizer) -> None:
        self.config = config
        self._starts: dict[Tensor, Tensor] = {}
        """Slow weights of weights in their first step. They are not in the state yet, since Adam
        sets up its moments only where the state is empty."""
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, optimizer: torch.optim.Optimizer, _args: object, _options: object) -> None:
        for weight in _list_stepped(optimizer):
            if SLOW not in optimizer.state[weight]:
                self._starts[weight] = weight.detach().clone()

    def _end(self, optimizer: torch.optim.Optimizer, _args: object, _options: object) -> None:
        weights = _list_stepped(optimizer)
        states = [optimizer.state[weight] for weight in weights]
        for weight, start in self._starts.items():
            optimizer.state[weight][SLOW] = start
        self._starts.clear()
        if isinstance(optimizer, torch.optim.SGD):  # unlike the others, it does not count its steps
            for state in states:
                state.setdefault("step", torch.zeros(())).add_(1)
        taken = int(states[0]["step"]) if states else 0
        if not taken or taken % self.config.every:
            return
        slow = [state[SLOW] for state in states]
        with torch.no_grad():
            torch._foreach_lerp_(slow, weights, 1 - self.config.share(taken))
            torch._foreach_copy_(weights, slow)


def _list_stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """List the weights that a step changes."""
    groups = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.grad is not None]


class OptimizerConfig(Config, ABC):
    """Options that all optimizers have."""

    of_torch: ClassVar[Callable[..., torch.optim.Optimizer]]
    lookahead: LookaheadConfig | None = None
    """Slow copies of the weights, to which these return every few steps; null: none."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """L2 penalty (decoupled in adamw)."""
    maximize: bool = False
    """Whether to maximise the loss instead of minimising it."""
    foreach: bool | None = None
    """Whether to update all weights in batched kernels; null leaves it to torch."""
    fused: bool | None = None
    """Whether to update by a fused kernel; null leaves it to torch."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Build torch's optimizer over `parameters`."""
        made = self.of_torch(parameters, **self.model_dump(exclude={"kind", "lookahead"}))
        if self.lookahead is not None:
            Lookahead(self.lookahead, made)
        return made

    @property
    def slots(self) -> int:
        """Tensors of a parameter's size that the optimizer keeps for it."""
        return self.moments + (self.lookahead is not None)

    @property
    @abstractmethod
    def moments(self) -> int:
        """The tensors among them that torch's optimizer keeps."""


class SgdConfig(OptimizerConfig):
    """SGD, with momentum, weight decay and Nesterov's variant as options."""

    of_torch: ClassVar[Callable[..., torch.optim.Optimizer]] = torch.optim.SGD
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    """Learning rate."""
    momentum: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Momentum factor."""
    dampening: float = Field(default=0.0, allow_inf_nan=False)
    """Dampening of the momentum."""
    nesterov: bool = False
    """Nesterov's momentum; needs momentum and no dampening."""

    @property
    def moments(self) -> int:
        """One tensor per weight with momentum, else none."""
        return int(self.momentum > 0)


class ScaledSgd(torch.optim.SGD):
    """SGD whose steps grow, value by value, where they go on in one direction (Fu et al., 2022)."""

    LAST = "last_step"
    """The name of the step before in its state."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, scale: float, **options: Any) -> None:  # noqa: ANN401 - torch's
        super().__init__(parameters, **options)
        self.scale = scale

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; `closure` is torch's, and not used."""
        del closure
        weights = _list_stepped(self)
        before = [weight.clone() for weight in weights]
        super().step()
        for weight, old in zip(weights, before, strict=True):
            step, state = weight - old, self.state[weight]
            if (last := state.get(self.LAST)) is not None:
                # Of one sign, so that the small number keeps a ratio of zeros finite.
                ratio = step / (last + torch.where(last < 0, -1e-12, 1e-12))
                step = step * (1 + self.scale * ratio).clamp(*FACTORS)
                weight.copy_(old + step)
            state[self.LAST] = step


FACTORS = (1.0, 5.0)
"""The smallest and largest factor of a scaled step, as published."""


class ScaledSgdConfig(SgdConfig):
    """SGD of a malicious party; only an attack has it, no scenario names it."""

    of_torch: ClassVar[Callable[..., torch.optim.Optimizer]] = ScaledSgd
    scale: float = 1.0
    """Weight of the ratio of two steps in the factor on the later one."""

    @property
    def moments(self) -> int:
        """Return how many tensors it keeps of each weight: those of SGD, and the step before."""
        return super().moments + 1


class MomentsConfig(OptimizerConfig):
    """Options that Adam and AdamW have in common."""

    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two moments."""
    eps: float = Field(default=1e-8, ge=0, allow_inf_nan=False)
    """Added to the denominator."""
    amsgrad: bool = False
    """Whether to use the largest second moment so far."""

    @property
    def moments(self) -> int:
        """Two moments, and amsgrad's maximum."""
        return 2 + int(self.amsgrad)


class AdamConfig(MomentsConfig):
    """Adam; its weight decay is an L2 term on the gradient."""

    of_torch = torch.optim.Adam
    kind: Literal["adam"] = "adam"


class AdamWConfig(MomentsConfig):
    """Adam with decoupled weight decay."""

    of_torch = torch.optim.AdamW
    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Decoupled weight decay."""


Optimizer = Annotated[SgdConfig | AdamConfig | AdamWConfig, Discriminator("kind")]
OPTIMIZERS: dict[str, type[OptimizerConfig]] = map_kinds(Optimizer)


class LrScheduleConfig(Config, ABC):
    """A factor on every learning rate, by round; it has no state."""

    stretches: ClassVar[bool] = False
    """Whether it depends on the number of rounds; a run can then not be made longer."""
    warmup: int = Field(default=0, ge=0)
    """Rounds over which the factor first rises linearly to 1."""

    def factor(self, round_number: int, rounds: int) -> float:
        """Return the factor on the learning rates in a round (from 1) of `rounds`."""
        if round_number <= self.warmup:
            # One more than `warmup`: the first round at the full rate is the one after it.
            return round_number / (self.warmup + 1)
        return self.decay(round_number - self.warmup - 1, max(1, rounds - self.warmup))

    @abstractmethod
    def decay(self, done: int, rounds: int) -> float:
        """Return the factor after `done` of `rounds` rounds."""


class ConstantLr(LrScheduleConfig):
    """Learning rates that stay as they are in all rounds."""

    kind: Literal["constant"] = "constant"

    def decay(self, done: int, rounds: int) -> float:
        return 1.0


class StepLr(LrScheduleConfig):
    """A factor of `gamma` every `every` rounds, or at each of `milestones`."""

    kind: Literal["step"] = "step"
    every: int = Field(default=30, ge=1)
    """Rounds between drops, counted from the end of the warm-up."""
    milestones: tuple[int, ...] = ()
    """Rounds done, the warm-up not counted, before each drop; in place of `every`."""
    gamma: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Factor of one drop."""

    def decay(self, done: int, rounds: int) -> float:
        drops = (
            sum(done >= milestone for milestone in self.milestones)
            if self.milestones
            else done // self.every
        )
        return float(self.gamma**drops)


class CosineLr(LrScheduleConfig):
    """Cosine annealing of the factor from 1 to `final`."""

    kind: Literal["cosine"] = "cosine"
    stretches = True
    final: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The factor that the last round approaches."""

    def decay(self, done: int, rounds: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done / rounds)) / 2


class LinearLr(LrScheduleConfig):
    """Linear decay of the factor from 1 to `final`."""

    kind: Literal["linear"] = "linear"
    stretches = True
    final: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The factor that the last round approaches."""

    def decay(self, done: int, rounds: int) -> float:
        return 1 + (self.final - 1) * done / rounds


LrSchedule = Annotated[ConstantLr | StepLr | CosineLr | LinearLr, Discriminator("kind")]
LR_SCHEDULES: dict[str, type[LrScheduleConfig]] = map_kinds(LrSchedule)
