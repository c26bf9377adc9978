"""Optimizers, learning-rate schedules and clipping, as a scenario names them.

The options are torch's own under torch's names. `capturable` and `differentiable` are left out:
they concern graphs that span a step, which a cut does not have.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Discriminator, Field
from torch import nn

from simsplit.config import Config


class OptimizerConfig(Config, ABC):
    """Options that all optimizers have."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """L2 penalty (decoupled in adamw)."""
    maximize: bool = False
    """Maximise the loss instead of minimising it."""
    foreach: bool | None = None
    """torch's choice of a batched update; null leaves it to torch."""
    fused: bool | None = None
    """torch's choice of a fused kernel; null leaves it to torch."""

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch's optimizer over `parameters`."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """Tensors of a parameter's size that the optimizer keeps for it."""


class SgdConfig(OptimizerConfig):
    """SGD, with momentum, weight decay and Nesterov's variant as options."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    """Learning rate."""
    momentum: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Momentum factor."""
    dampening: float = Field(default=0.0, allow_inf_nan=False)
    """Dampening of the momentum."""
    nesterov: bool = False
    """Nesterov's momentum; needs momentum and no dampening."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, **self.model_dump(exclude={"kind"}))

    @property
    def slots(self) -> int:
        """One tensor per weight with momentum, else none."""
        return int(self.momentum > 0)


class MomentsConfig(OptimizerConfig):
    """Options that Adam and AdamW have in common."""

    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two moments."""
    eps: float = Field(default=1e-8, allow_inf_nan=False)
    """Added to the denominator."""
    amsgrad: bool = False
    """Keep the largest second moment."""

    @property
    def slots(self) -> int:
        """Two moments, and amsgrad's maximum."""
        return 2 + int(self.amsgrad)


class AdamConfig(MomentsConfig):
    """Adam; its weight decay is an L2 term on the gradient."""

    kind: Literal["adam"] = "adam"

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, **self.model_dump(exclude={"kind"}))


class AdamWConfig(MomentsConfig):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Decoupled weight decay."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **self.model_dump(exclude={"kind"}))


Optimizer = Annotated[SgdConfig | AdamConfig | AdamWConfig, Discriminator("kind")]
OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "sgd": SgdConfig,
    "adam": AdamConfig,
    "adamw": AdamWConfig,
}


class LrScheduleConfig(Config, ABC):
    """A factor on every learning rate, by round; without state."""

    stretches: ClassVar[bool] = False
    """Whether it depends on how many rounds there are: then a run cannot be made longer."""
    warmup: int = Field(default=0, ge=0)
    """Rounds over which the factor first rises linearly to 1."""

    def factor(self, round_number: int, rounds: int) -> float:
        """What the learning rates are multiplied by in a round (numbered from 1) of `rounds`."""
        if round_number <= self.warmup:
            return round_number / (self.warmup + 1)
        return self.decay(round_number - self.warmup - 1, max(1, rounds - self.warmup))

    @abstractmethod
    def decay(self, done: int, rounds: int) -> float:
        """The factor after `done` of `rounds` rounds."""


class ConstantLr(LrScheduleConfig):
    """The learning rates as they are set."""

    kind: Literal["constant"] = "constant"

    def decay(self, done: int, rounds: int) -> float:
        return 1.0


class StepLr(LrScheduleConfig):
    """Multiply by `gamma` every `every` rounds, or at each of `milestones`."""

    kind: Literal["step"] = "step"
    every: int = Field(default=30, ge=1)
    """Rounds between drops, counted from the end of the warm-up."""
    milestones: tuple[int, ...] = ()
    """Rounds done, the warm-up not counted, before each drop; in place of `every`."""
    gamma: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Factor of one drop."""

    def decay(self, done: int, rounds: int) -> float:
        """gamma to the power of the number of drops so far."""
        drops = (
            sum(done >= milestone for milestone in self.milestones)
            if self.milestones
            else done // self.every
        )
        return float(self.gamma**drops)


class CosineLr(LrScheduleConfig):
    """Cosine annealing of the factor from 1 to `final`."""

    kind: Literal["cosine"] = "cosine"
    stretches: ClassVar[bool] = True
    final: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The factor that the last round approaches."""

    def decay(self, done: int, rounds: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done / rounds)) / 2


class LinearLr(LrScheduleConfig):
    """Linear decay of the factor from 1 to `final`."""

    kind: Literal["linear"] = "linear"
    stretches: ClassVar[bool] = True
    final: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The factor that the last round approaches."""

    def decay(self, done: int, rounds: int) -> float:
        return 1 + (self.final - 1) * done / rounds


LrSchedule = Annotated[ConstantLr | StepLr | CosineLr | LinearLr, Discriminator("kind")]
LR_SCHEDULES: dict[str, type[LrScheduleConfig]] = {
    "constant": ConstantLr,
    "step": StepLr,
    "cosine": CosineLr,
    "linear": LinearLr,
}
