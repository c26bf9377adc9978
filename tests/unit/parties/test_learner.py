"""An owner's optimizer survives saving, freezing, clipping and travelling."""

import copy
from collections.abc import Mapping

import pytest
import torch
from builders import run_to_end, scenario
from by_hand import list_changed, same
from torch import Tensor, nn

from simsplit.errors import ProtocolError
from simsplit.parties.learner import Learner, Versions, step_together
from simsplit.parties.optimizers import (
    SLOW,
    AdamConfig,
    AdamWConfig,
    LookaheadConfig,
    OptimizerConfig,
    SgdConfig,
)
from simsplit.seeds import isolate, rng_for

MOMENTUM = SgdConfig(lr=0.1, momentum=0.9)
OPTIMIZERS: dict[str, tuple[OptimizerConfig, set[str]]] = {
    "plain sgd": (SgdConfig(lr=0.1), set()),
    "momentum": (MOMENTUM, {"momentum_buffer"}),
    "adam": (AdamConfig(lr=0.1), {"step", "exp_avg", "exp_avg_sq"}),
    "amsgrad": (
        AdamConfig(lr=0.1, amsgrad=True),
        {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    ),
    "adamw": (AdamWConfig(lr=0.1), {"step", "exp_avg", "exp_avg_sq"}),
}


def net(seed: int = 0) -> nn.Module:
    with isolate(seed, "net"):
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def learner(optimizer: OptimizerConfig = MOMENTUM, seed: int = 0, **fields) -> Learner:
    return Learner({"a": net(seed), "b": net(seed + 1)}, optimizer, **fields)


def backward(of: Learner, number: int) -> None:
    """Compute the gradients of step `number`, in training mode."""
    of.train(True)
    inputs = torch.randn(5, 4, generator=rng_for(0, "inputs", number))
    wanted = torch.randn(5, 3, generator=rng_for(0, "wanted", number))
    a, b = of.modules["a"](inputs), of.modules["b"](inputs)
    (a * b - wanted).square().mean().backward()


def train(of: Learner, *numbers: int) -> Learner:
    for number in numbers:
        backward(of, number)
        step_together([of])
    return of


def copies(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_loaded_state_goes_on_as_the_saved_one(case: str) -> None:
    optimizer, slots = OPTIMIZERS[case]
    one = train(learner(optimizer), 0, 1)
    assert {name.split(".")[2] for name in one.moments()} == slots
    other, forgetful = learner(optimizer, seed=5), learner(optimizer, seed=5)
    saved = copies(one.state())
    other.load(saved)
    forgetful.load(copies(one.weights()))
    for each in (one, other, forgetful):
        train(each, 2, 3)
    assert same(one.state(), other.state())
    assert same(one.weights(), forgetful.weights()) == (not slots)
    assert list_changed(saved, one.state()) == saved.keys(), "the saved copies were live"


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_state_before_the_first_step_has_no_moments(case: str) -> None:
    one = learner(OPTIMIZERS[case][0])
    saved = copies(one.state())
    train(one, 0, 1).load(saved)
    assert one.moments() == {}
    again = learner(OPTIMIZERS[case][0])
    again.load(saved)
    assert same(train(one, 2).state(), train(again, 2).state())


def test_a_loaded_state_is_a_copy() -> None:
    one = train(learner(), 0)
    other = learner(seed=5)
    other.load(one.state())
    before = copies(other.state())
    train(one, 1)
    assert same(before, other.state())


def test_half_a_state_is_refused() -> None:
    state = learner().state()
    del state["b.0.bias"]
    with pytest.raises(ProtocolError, match=r"lacks b\.0\.bias"):
        learner().load(state)


def test_what_is_frozen_neither_learns_nor_counts_batches() -> None:
    one = train(learner(), 0)
    one.learn(frozenset({"a", "trunk"}))
    before = copies(one.state())
    train(one, 1)
    assert (one.modules["a"].training, one.modules["b"].training) == (True, False)
    moved = list_changed(before, one.state())
    assert moved
    assert not {name for name in moved if name.startswith("b.")}
    one.learn(frozenset({"a", "b"}))
    before = copies(one.state())
    train(one, 2)
    assert list_changed(before, one.state()) == before.keys()


def test_thawing_leaves_what_never_learns_alone() -> None:
    module = net()
    module[0].bias.requires_grad_(False)
    one = Learner({"a": module, "b": net(1)}, MOMENTUM)
    one.learn(frozenset({"b"}))
    one.learn(frozenset({"a", "b"}))
    assert not module[0].bias.requires_grad
    assert module[0].weight.requires_grad


def carry(one: Learner, *, moments: bool = True) -> tuple[torch.Tensor, ...]:
    names, tensors = one.list_travelling(moments=moments)
    assert names == tuple(one.state() if moments else one.weights())
    return tensors


def test_travelling_tensors_are_live_and_gathered_once() -> None:
    one = learner()
    bare = carry(one)
    assert len(bare) == len(one.weights()) == 14  # two of weight, bias; norm's 2 and its 3 buffers
    train(one, 0)
    full = carry(one)
    assert len(full) == 14 + 8  # a momentum for each parameter
    assert len(carry(one, moments=False)) == 14
    full = carry(one)
    train(one, 1)
    assert carry(one) is full
    assert all(map(torch.equal, full, one.state().values()))
    one.load(copies(one.state()))
    train(one, 2)
    assert all(map(torch.equal, carry(one), one.state().values()))


def test_travelling_notices_the_moments_of_what_thaws() -> None:
    one = learner()
    one.learn(frozenset({"a"}))
    train(one, 0)
    assert len(carry(one)) == 14 + 4
    one.learn(frozenset({"a", "b"}))
    train(one, 1)
    assert len(carry(one)) == 14 + 8


def partly_frozen(*names: str, optimizer: OptimizerConfig = MOMENTUM) -> Learner:
    """Build a's and b's linear layer and norm, of which the named ones never learn."""
    modules = {"a": net(0), "b": net(1)}
    for name in names:
        modules[name[0]].get_submodule(name[2:]).requires_grad_(False)
    return Learner(modules, optimizer)


NORM = ("running_mean", "running_var", "num_batches_tracked")


def test_a_part_that_never_learns_infers_and_neither_travels_nor_is_kept() -> None:
    """Its running statistics do not move either, so they need not travel."""
    one = partly_frozen("b.0", "b.1")
    before = copies(one.modules["b"].state_dict())
    train(one, 0, 1)
    assert same(before, one.modules["b"].state_dict())
    assert not one.modules["b"].training
    for phase in ({"a"}, {"b"}, {"a", "b"}):
        one.learn(frozenset(phase))
        assert not any(weight.requires_grad for weight in one.modules["b"].parameters())
        one.train(True)
        assert not one.modules["b"].training
    assert {name[0] for name in one.list_travelling(moments=False)[0]} == {"a"}
    assert {name[0] for name in one.state() if not name.startswith("optimizer")} == {"a"}


def test_of_a_part_that_learns_in_part_what_changes_travels() -> None:
    """The norm goes on counting, so its statistics travel though its scale does not."""
    one = partly_frozen("b.1")
    train(one, 0)
    names = {name for name in one.weights() if name.startswith("b.")}
    assert names == {"b.0.weight", "b.0.bias", *(f"b.1.{name}" for name in NORM)}
    nbytes = sum(tensor.nbytes for tensor in one.list_travelling(moments=True)[1])
    a, b = 4 * 3 + 3 + 3 + 3, 4 * 3 + 3
    assert nbytes == 4 * (a + b) * 2 + 2 * (2 * 3 * 4 + 8)


def test_what_never_learns_cannot_be_handed_over() -> None:
    one = partly_frozen("b.0")
    before = copies(one.modules["b"].state_dict())
    one.take({"b.0.weight": torch.zeros(3, 4), "b.1.weight": torch.zeros(3)})
    assert list_changed(before, one.modules["b"].state_dict()) == {"1.weight"}


def test_a_part_without_weights_does_as_the_phase_says() -> None:
    """Dropout alone, or what a method keeps in buffers, which it may write to at any time."""
    keeps = nn.Module()
    keeps.register_buffer("kept", torch.zeros(2))
    keeps.register_buffer("constant", torch.zeros(3), persistent=False)
    one = Learner({"a": keeps, "b": nn.Dropout(0.5)}, MOMENTUM)
    one.train(True)
    assert all(module.training for module in one.modules.values())
    assert set(one.weights()) == {"a.kept"}


def test_a_state_that_holds_more_is_taken_up_as_a_whole() -> None:
    """Earlier versions kept what never learns as well, and theirs counts."""
    one, other = partly_frozen("b.0"), partly_frozen("b.0")
    more = {f"{name}.{key}": tensor + 1 for name in "ab"
            for key, tensor in one.modules[name].state_dict().items()}  # fmt: skip
    other.load(more)
    for name in "ab":
        for key, tensor in other.modules[name].state_dict().items():
            assert torch.equal(tensor, more[f"{name}.{key}"])


@pytest.mark.parametrize("norm", [0.01, 1e6])
def test_clipping_is_torchs_over_all_modules_together(norm: float) -> None:
    one, plain = learner(SgdConfig(lr=1.0), clip_norm=norm), learner(SgdConfig(lr=1.0))
    backward(plain, 0)
    torch.nn.utils.clip_grad_norm_(plain.parameters, norm)
    plain.step()
    assert same(train(one, 0).weights(), plain.weights())


def test_the_factor_is_on_the_configured_rate_not_on_the_last() -> None:
    one = learner(SgdConfig(lr=0.1))
    for factor in (0.5, 0.5, 1.0):
        one.set_lr_factor(factor)
        before = copies(one.weights())
        backward(one, 0)
        gradient = one.modules["a"][0].weight.grad.clone()
        step_together([one])
        moved = before["a.0.weight"] - one.weights()["a.0.weight"]
        assert torch.allclose(moved, 0.1 * factor * gradient, atol=1e-7)


def test_two_learners_of_the_same_modules_switch_them_back() -> None:
    one = learner()
    other = Learner(dict(one.modules.items()), MOMENTUM)
    one.train(True)
    other.train(False)  # an evaluation through another client
    assert not one.modules["a"][1].training
    one.train(True)
    assert all(module.training for module in (one.modules["a"][1], one.modules["b"][1]))


def test_nothing_to_learn_is_no_error() -> None:
    empty = Learner({"a": nn.Flatten()}, MOMENTUM, clip_norm=1.0)
    empty.set_lr_factor(0.5)
    step_together([empty])
    empty.load(empty.state())
    assert empty.list_travelling(moments=True) == ((), ())


@pytest.mark.parametrize("noise", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout])
def test_every_kind_of_dropout_is_known_as_random(noise: type[nn.Module]) -> None:
    assert Learner({"a": nn.Sequential(nn.Linear(2, 2), noise(0.5))}, MOMENTUM).random
    assert not Learner({"a": nn.Sequential(nn.Linear(2, 2), noise(0.0))}, MOMENTUM).random


class Dropping(nn.Linear):
    """Drops values by a function, which no layer shows."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def test_code_that_may_draw_is_told_from_layers_that_do() -> None:
    for layer in (nn.GRU(2, 2, 2, dropout=0.1), nn.MultiheadAttention(2, 1, 0.1), nn.RReLU()):
        assert Learner({"a": layer}, MOMENTUM).random
    foreign = Learner({"a": nn.Sequential(nn.Linear(2, 2), Dropping(2, 2))}, MOMENTUM)
    assert (foreign.random, foreign.may_draw) == (False, True)
    known = Learner({"a": nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))}, MOMENTUM)
    assert (known.random, known.may_draw) == (False, False)


def test_a_weight_in_two_places_has_one_late_gradient() -> None:
    """That of the copies, summed over its places, as without copies."""
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    tied[2].weight = tied[0].weight
    x = torch.randn(4, 3, generator=rng_for(0, "x"))
    tied(x).sum().backward()
    wanted, tied[0].weight.grad = tied[0].weight.grad, None
    versions = Versions(Learner({"a": tied}, MOMENTUM))
    with versions.after(0) as version:
        out = tied(x)
    out.sum().backward()
    versions.hand_over(version)
    assert torch.equal(tied[0].weight.grad, wanted)


def test_slow_weights_begin_anew_at_an_average() -> None:
    """Else a client returns, a few steps later, to where it stood in its last round."""
    one = Learner({"a": nn.Linear(1, 1)}, SgdConfig(lr=1e-9, lookahead=LookaheadConfig(every=2)))
    train_alone(one, 1)
    one.take({name: torch.full_like(tensor, 100.0) for name, tensor in one.weights().items()})
    one.forget_slow()
    train_alone(one, 3)
    assert all(tensor.item() == pytest.approx(100) for tensor in one.weights().values())


def test_who_gets_an_average_begins_slow_weights_anew(tmp_path, monkeypatch) -> None:
    """Clients their segments, and each copy of a trunk its own."""
    slow: list[bool] = []
    anchor = Learner.anchor

    def watch(self: Learner) -> None:
        slow.append(any(SLOW in state for o in self.optimizers for state in o.state.values()))
        anchor(self)

    monkeypatch.setattr(Learner, "anchor", watch)
    sgd = {"kind": "sgd", "lr": 0.1, "lookahead": {"every": 2}}
    run_to_end(
        scenario(aggregation="splitfed_v1", train={"client": sgd, "server": sgd}), tmp_path / "run"
    )
    assert len(slow) > 4
    assert not any(slow)


def train_alone(of: Learner, steps: int) -> None:
    for _ in range(steps):
        of.modules["a"](torch.ones(1, 1)).sum().backward()
        step_together([of])


def test_moments_keep_the_layout_of_their_parameter() -> None:
    """Mixed layouts take other kernels, whose last bits need not agree."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    one = Learner({"a": conv}, MOMENTUM)
    conv(torch.ones(1, 3, 5, 5)).sum().backward()
    one.step()
    other = Learner({"a": copy.deepcopy(conv)}, MOMENTUM)
    other.load({name: tensor.contiguous() for name, tensor in one.state().items()})
    moment = other.moments()["optimizer.0.momentum_buffer"]
    assert moment.stride() == conv.weight.stride()
    assert torch.equal(moment, one.moments()["optimizer.0.momentum_buffer"])


class TestOfMethods:
    """A module whose method brings an optimizer of its own."""

    def learner(self, common: OptimizerConfig = MOMENTUM) -> Learner:
        methods = nn.ModuleDict({"smashed_0": net(1), "smashed_1": net(2)})
        own = {"smashed_0": self.adamw, "smashed_1": lambda _: None}
        return Learner({"a": net(), "method": methods}, common, own=own)

    @staticmethod
    def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.0)

    def train(self, of: Learner, *numbers: int) -> Learner:
        for number in numbers:
            of.train(True)
            inputs = torch.randn(5, 4, generator=rng_for(0, "inputs", number))
            one, other = of.modules["method"].children()
            (of.modules["a"](inputs) * one(inputs) * other(inputs)).square().mean().backward()
            step_together([of])
        return of

    def test_it_alone_steps_it_at_its_own_rate_and_schedule(self) -> None:
        of = self.learner(SgdConfig(lr=1e-9))
        of.set_lr_factor(0.5)
        before = copies(of.weights())
        self.train(of, 0)
        moved = {n: (w - before[n]).abs().max().item() for n, w in of.weights().items()}
        learned = {n: moved[n] for n in moved if n.endswith("0.weight")}
        own = {n: by for n, by in learned.items() if n.startswith("method.smashed_0.")}
        assert own
        assert all(by == pytest.approx(0.025, rel=1e-2) for by in own.values())  # AdamW's first
        assert all(by < 1e-6 for n, by in learned.items() if n not in own)

    def test_its_moments_are_kept_travel_and_are_forgotten(self) -> None:
        whole = self.train(self.learner(), 0, 1, 2)
        half = self.train(self.learner(), 0, 1)
        other = self.learner()
        other.load(copies(half.state()))
        assert same(self.train(other, 2).state(), whole.state())
        names, _ = half.list_travelling(moments=True)
        assert any(name.endswith("exp_avg") for name in names)
        assert any(name.endswith("momentum_buffer") for name in names)
        half.forget_moments()
        assert not half.moments()
