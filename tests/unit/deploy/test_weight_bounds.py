"""Moments and sizes of weights that are handed on: what honest clients send passes, lies do not."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY
from direct import Sites
from torch import Tensor

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.weight_bounds import MARGIN, MOST_POWER, SPARE, _bound_first_moment
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.scenario import parse
from simsplit.scenario.files import merge

BETAS = ((0.9, 0.999), (0.9, 0.95), (0.0, 0.9), (0.99, 0.9), (0.9, 0.81))
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam", "lr": 0.05},
    "amsgrad": {"kind": "adamw", "lr": 0.05, "amsgrad": True},
    "momentum": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "lookahead": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "lookahead": {"every": 2}},
    "sgd": {"kind": "sgd", "lr": 0.1},
}


def make_bounds(folder: Path, optimizer: str) -> Bounds:
    train = {"train": {"client": OPTIMIZERS[optimizer]}, "clients": {"count": 2}}
    return Sites(parse(merge(TINY, train)), folder).sites[0].bounds


def train(bounds: Bounds, steps: int) -> Packet:
    """Hand on what some steps with random gradients of all sizes make."""
    learner, rng = bounds.weights.shared, torch.Generator().manual_seed(0)
    for _ in range(steps):
        for parameter in learner.parameters:
            size = 10.0 ** float(torch.empty(()).uniform_(-18, 1, generator=rng))
            parameter.grad = size * torch.randn(parameter.shape, generator=rng)
        learner.step()
    names, tensors = learner.list_travelling(moments=True)
    return Packet(0, Leg.HANDOVER, 1, steps, tuple(t.clone() for t in tensors), names)


def change(packet: Packet, slot: str, value: float) -> Packet:
    pairs = zip(packet.names, packet.tensors, strict=True)
    return packet.with_tensors(
        tuple(torch.full_like(t, value) if n.endswith(f".{slot}") else t for n, t in pairs)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_honest_clients_hand_on(tmp_path, optimizer):
    bounds = make_bounds(tmp_path, optimizer)
    for steps in (1, 7):
        packet = train(bounds, steps)
        taken = 1 if steps == 1 else 8
        power = bounds.weights.find_power(packet)
        bounds.check_handed(packet, taken, power, 1.0)
        bounds.check_handed(packet, taken + 5, power, 1.0)  # other clients' steps


class TestSteps:
    @pytest.mark.parametrize("step", [-1.0, 0.0, 3.0, 1e6, 1.5, math.nan])
    @pytest.mark.parametrize("optimizer", ["adam", "amsgrad", "lookahead"])
    def test_are_those_that_the_seal_names(self, tmp_path, optimizer, step):
        bounds = make_bounds(tmp_path, optimizer)
        packet = train(bounds, 2)
        bounds.weights.check(packet, 2)
        with pytest.raises(ProtocolError):
            bounds.weights.check(change(packet, "step", step), 2)


class TestAdamsMoments:
    @pytest.mark.parametrize("betas", BETAS, ids=str)
    @pytest.mark.parametrize("steps", [1, 2, 50])
    def test_the_bound_is_that_of_the_worst_gradients(self, betas, steps):
        """Gradients in the ratio of both decays make the first moment as large as it can be."""
        beta1, beta2 = betas
        m = v = 0.0
        for number in range(steps):
            g = (beta1 / beta2) ** (steps - 1 - number) if beta1 else float(number == steps - 1)
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        bound = _bound_first_moment(beta1, beta2, steps)
        assert m * m / v <= bound * (1 + 1e-9)
        if beta1**2 >= beta2 or beta1 == 0 or steps == 50:
            assert m * m / v == pytest.approx(bound, rel=1e-2)

    def test_without_a_second_decay_nothing_is_known(self):
        assert _bound_first_moment(0.9, 0.0, 5) == math.inf
        assert _bound_first_moment(0.999, 0.1, 10**9) == math.inf

    @pytest.mark.parametrize(
        ("slot", "value"), [("exp_avg", 2.0**49), ("exp_avg", -1e3), ("exp_avg_sq", 0.0)]
    )
    @pytest.mark.parametrize("optimizer", ["adam", "amsgrad"])
    def test_bound_each_other(self, tmp_path, optimizer, slot, value):
        bounds = make_bounds(tmp_path, optimizer)
        with pytest.raises(ProtocolError):
            bounds.weights.check(change(train(bounds, 2), slot, value), 2)

    def test_at_the_edge(self, tmp_path):
        bounds = make_bounds(tmp_path, "adam")
        packet = change(train(bounds, 2), "exp_avg_sq", 1.0)
        most = math.sqrt(SPARE * _bound_first_moment(0.9, 0.999, 2))
        bounds.weights.check(change(packet, "exp_avg", 0.99 * most), 2)
        with pytest.raises(ProtocolError):
            bounds.weights.check(change(packet, "exp_avg", 1.01 * most), 2)


class TestSizes:
    @pytest.fixture
    def handed(self, tmp_path: Path) -> tuple[Bounds, Packet]:
        bounds = make_bounds(tmp_path, "momentum")
        return bounds, train(bounds, 2)

    def times(self, packet: Packet, factor: float) -> Packet:
        return packet.with_tensors(
            tuple(t * factor if t.is_floating_point() else t for t in packet.tensors)
        )

    @pytest.mark.parametrize("factor", [0.0, 1e-9, 1.0, 3.0, 1e4, 2.0**40])
    def test_are_named_so_that_another_sum_of_the_same_squares_fits(self, handed, factor):
        bounds, packet = handed
        packet = self.times(packet, factor)
        power = bounds.weights.find_power(packet)
        assert MARGIN * bounds.weights.measure(packet) <= 2.0**power
        assert power == 0 or MARGIN * bounds.weights.measure(packet) > 2.0 ** (power - 1)

    def test_beyond_what_is_named_are_no_hand_over(self, handed):
        bounds, packet = handed
        power = bounds.weights.find_power(packet)
        with pytest.raises(ProtocolError):
            bounds.check_handed(self.times(packet, 3.0), 2, power, MARGIN)
        for none in (None, -1, True, 1.5, MOST_POWER + 1, "3"):
            with pytest.raises(ProtocolError):
                bounds.check_handed(packet, 2, none, MARGIN)

    def test_a_receiver_complains_only_of_what_the_server_sees_too(self, handed):
        """Norms are summed in another order elsewhere, so the server's limit is the lower one."""
        bounds, packet = handed
        norm = bounds.weights.measure(packet)
        packet = self.times(packet, 8.0 * 1.005 / norm)
        bounds.check_handed(packet, 2, 3, MARGIN)
        with pytest.raises(ProtocolError):
            bounds.check_handed(packet, 2, 3, 1.0)

    def test_momentum_counts_by_the_steps_that_it_takes(self, handed):
        bounds, packet = handed
        large = change(packet, "momentum_buffer", 2.0**49)
        values = max(each.numel() for each in packet.tensors)
        drift = 0.1 / (1 - 0.9) * 2.0**49 * math.sqrt(values)
        assert bounds.weights.measure(large) == pytest.approx(drift, rel=1e-3)

    def test_of_the_start(self, handed):
        bounds, _ = handed
        norms = [float(t.norm()) for t in self.list_start(bounds)]
        assert bounds.start_norm == pytest.approx(max(1.0, *norms))

    def list_start(self, bounds: Bounds) -> list[Tensor]:
        return [t for t in bounds.weights.get_named(0).values() if t.is_floating_point()]


class TestVariancesInFewBits:
    @pytest.fixture
    def bounds(self, tmp_path: Path) -> Bounds:
        few = {"aggregation": {"kind": "splitfed_v2", "bits": 8}, "clients": {"count": 2}}
        return Sites(parse(merge(TINY, few)), tmp_path).sites[0].bounds

    def test_may_be_rounded_below_0(self, bounds):
        bounds.weights.check_variances({"head.4.running_var": torch.tensor([-0.007, 1.0])})
        bounds.weights.check_variances({"head.4.weight": torch.tensor([-3.0, 1.0])})

    def test_but_no_further_than_a_level(self, bounds):
        with pytest.raises(ProtocolError):
            bounds.weights.check_variances({"head.4.running_var": torch.tensor([-0.1, 1.0])})


def test_adams_reach_is_that_of_its_steps(tmp_path):
    """Adam moves a weight by about its learning rate in each step, whatever the gradient."""
    bounds = make_bounds(tmp_path, "adam")
    before = bounds.start_norm
    learner = bounds.weights.shared
    for _ in range(50):
        for parameter in learner.parameters:
            parameter.grad = 1e3 * torch.ones_like(parameter)
        learner.step()
    reach = bounds.weights.find_adams_reach(50, learner.weights().values())
    after = max(float(p.detach().norm()) for p in learner.parameters)
    assert after <= before + reach
    assert after > before + 0.5 * reach
    sgd = make_bounds(tmp_path / "sgd", "sgd")
    sgd_train = sgd.owners.scenario.train
    assert sgd_train.server.kind_name == "sgd"
    assert sgd.weights.find_adams_reach(50, learner.weights().values()) == 0.0
