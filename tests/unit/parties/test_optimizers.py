"""Every option reaches torch, and the learning rate's factors are the ones worked out by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from simsplit.parties.optimizers import (
    LR_SCHEDULES,
    OPTIMIZERS,
    AdamConfig,
    CosineLr,
    LinearLr,
    LookaheadConfig,
    LrScheduleConfig,
    OptimizerConfig,
    SgdConfig,
    StepLr,
)
from simsplit.seeds import rng_for

TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
COMMON = {"lr": 0.3, "weight_decay": 0.2, "maximize": True, "foreach": True, "fused": True}
MOMENTS = {"betas": (0.5, 0.6), "eps": 1e-3, "amsgrad": True}
OPTIONS = {
    "sgd": COMMON | {"momentum": 0.5, "dampening": 0.1, "nesterov": True},
    "adam": COMMON | MOMENTS,
    "adamw": COMMON | MOMENTS,
}
ROOT_HALF = 0.5**0.5


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(2, 3))


def test_no_option_is_left_out_here() -> None:
    for kind, config in OPTIMIZERS.items():
        assert set(config.model_fields) == {"kind", "lookahead", *OPTIONS[kind]}


@pytest.mark.parametrize(
    ("kind", "option"), [(kind, name) for kind, names in OPTIONS.items() for name in names]
)
def test_an_option_reaches_torch_alone(kind: str, option: str) -> None:
    needed = {"momentum": 0.9} if option == "nesterov" else {}
    fields: dict[str, Any] = needed | {option: OPTIONS[kind][option]}
    ours = OPTIMIZERS[kind](**fields).build([parameter()]).param_groups[0]
    lr = {"lr": 0.01 if kind == "sgd" else 1e-3}
    theirs = TORCH[kind]([parameter()], **(lr | fields)).param_groups[0]
    assert ours[option] == OPTIONS[kind][option]
    assert {n: v for n, v in ours.items() if n != "params"} == {
        n: v for n, v in theirs.items() if n != "params"
    }


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        (SgdConfig(), 0),
        (SgdConfig(momentum=0.5), 1),
        (AdamConfig(), 2),
        (AdamConfig(amsgrad=True), 3),
        (OPTIMIZERS["adamw"](), 2),
        (OPTIMIZERS["adamw"](amsgrad=True), 3),
        (SgdConfig(lookahead={"every": 2}), 1),
        (AdamConfig(lookahead={"every": 2}), 3),
    ],
)
def test_slots_are_what_the_optimizer_really_keeps(config: OptimizerConfig, slots: int) -> None:
    one = parameter()
    optimizer = config.build([one])
    one.sum().backward()
    optimizer.step()
    kept = [v for v in optimizer.state[one].values() if isinstance(v, torch.Tensor)]
    assert sum(tensor.shape == one.shape for tensor in kept) == slots == config.slots


RATES: list[OptimizerConfig] = [
    SgdConfig(lr=0.1, momentum=0.9),
    SgdConfig(lr=0.1),
    AdamConfig(lr=0.1),
]


@pytest.mark.parametrize("config", RATES)
@pytest.mark.parametrize("rise", [None, 6])
def test_lookahead_is_the_published_loop(config: OptimizerConfig, rise: int | None) -> None:
    """airbench94's: `ema.lerp_(net, 1 - decay); net.copy_(ema)` every so many steps."""
    slopes = torch.randn(8, 4, generator=rng_for(0, "test"))
    plain, ours = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    theirs, slow = config.build([plain]), plain.detach().clone()
    looked = config.model_copy(update={"lookahead": LookaheadConfig(every=3, keep=0.6, rise=rise)})
    optimizer = looked.build([ours])
    for step, slope in enumerate(slopes, 1):
        plain.grad, ours.grad = slope.clone(), slope.clone()
        theirs.step()
        if step % 3 == 0:
            decay = 0.6 * (min(step / rise, 1) ** 3 if rise else 1)
            slow.lerp_(plain.detach(), 1 - decay)
            plain.data.copy_(slow)
        optimizer.step()
        assert torch.equal(ours, plain), step


FACTORS: list[tuple[LrScheduleConfig, int, list[float]]] = [
    (LR_SCHEDULES["constant"](), 3, [1, 1, 1]),
    (LR_SCHEDULES["constant"](warmup=3), 5, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
    (LR_SCHEDULES["constant"](warmup=5), 3, [1 / 6, 2 / 6, 3 / 6]),
    (StepLr(every=2, gamma=0.5), 5, [1, 1, 0.5, 0.5, 0.25]),
    (StepLr(milestones=(1, 3)), 5, [1, 0.1, 0.1, 0.01, 0.01]),
    (CosineLr(), 4, [1, (1 + ROOT_HALF) / 2, 0.5, (1 - ROOT_HALF) / 2]),
    (CosineLr(final=0.2), 2, [1, 0.6]),
    (CosineLr(warmup=2), 4, [1 / 3, 2 / 3, 1, 0.5]),
    (LinearLr(), 4, [1, 0.75, 0.5, 0.25]),
    (LinearLr(final=0.5, warmup=1), 3, [0.5, 1, 0.75]),
]


@pytest.mark.parametrize(("schedule", "rounds", "factors"), FACTORS)
def test_factors(schedule: LrScheduleConfig, rounds: int, factors: list[float]) -> None:
    got = [schedule.factor(number, rounds) for number in range(1, rounds + 1)]
    assert got == pytest.approx(factors, rel=1e-12)


def test_the_ends_of_a_cosine_are_one_and_final() -> None:
    assert CosineLr(final=0.2).decay(0, 7) == 1
    assert CosineLr(final=0.2).decay(7, 7) == pytest.approx(0.2, rel=1e-12)
