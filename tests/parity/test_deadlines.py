"""Who is late, when it stops, and what then becomes of its work; by hand, in simulated seconds."""

import functools
from pathlib import Path
from typing import Any

import pytest
from pace import quick, quick_rows
from plain_loops import (
    Weights,
    assert_equal,
    batch,
    begin,
    nets_on_one_trunk,
    train,
    weights_of,
)

from simsplit.experiment import Experiment
from simsplit.legs import ClientId
from simsplit.network.profiles import LINKS
from simsplit.results import Run

SIZES = (24, 24)
STEPS = 3
ROWS = 8
CUT, FEATURES, LABEL = 4 * 20 * 12 * 12, 4 * 512, 8
"""Bytes of a sample on the legs."""
LAN = LINKS["lan"]
NETWORK = {"device": {"edge": 1, "gpu": 1}, "link": "lan"}
CASES: dict[str, dict[str, Any]] = {
    "none": {"clients": {"heads": "per_client"}},
    "none, in turn": {"schedule": {"kind": "round_robin"}, "clients": {"heads": "per_client"}},
    "none, vanilla": {"clients": {"heads": "per_client"}, "topology": "vanilla"},
    "asynchronous": {"schedule": {"kind": "asynchronous"}, "clients": {"heads": "per_client"}},
    "v1": {"aggregation": "splitfed_v1"},
    "v1, vanilla": {"aggregation": "splitfed_v1", "topology": "vanilla"},
    "v2": {"aggregation": "splitfed_v2"},
    "fused": {"aggregation": "fused"},
}


def fields(changes: dict[str, Any], deadline_s: float | None, late: str = "skip") -> dict[str, Any]:
    schedule = {"kind": "parallel", "rounds": 1} | changes.get("schedule", {})
    cohort = {"deadline_s": deadline_s, "late": late}
    return changes | {"schedule": schedule, "cohort": cohort, "network": NETWORK, "seed": 5}


def own_s(run: Experiment, client: ClientId) -> tuple[float, float]:
    """Compute a client's time before its first step and for each, from its rates and bytes."""
    vanilla = run.scenario.topology == "vanilla"
    latency_s, up_s, down_s = LAN.latency_ms / 1e3, 8e-6 / LAN.up_mbps, 8e-6 / LAN.down_mbps
    if vanilla:  # smashed data and labels up as one message, a gradient down
        messages, up, down = 2, CUT + LABEL, CUT
        operations = 3 * run.live.flops.head
    else:
        messages, up, down = 4, CUT + FEATURES, CUT + FEATURES
        operations = 3 * (run.live.flops.head + run.live.flops.tail)
    step_s = messages * latency_s + ROWS * (up * up_s + down * down_s)
    step_s += ROWS * operations / run.ledger.clock.rates[client].flops_per_s
    federation = run.parts.federation
    if federation is None or federation.shared is None:
        return 0.0, step_s
    nbytes = sum(tensor.nbytes for tensor in federation.shared.weights.values())
    return latency_s + nbytes * down_s, step_s


def slow_one(run: Experiment) -> ClientId:
    rates = [rates.flops_per_s for rates in run.ledger.clock.rates]
    assert max(rates) == 1000 * min(rates)
    return rates.index(min(rates))


@functools.cache
def pace_of(case: str) -> tuple[float, float, ClientId]:
    """Compute the slow client's time before its first step and for each, and say which it is."""
    run = begin(Path("never written"), SIZES, **fields(CASES[case], None))
    slow = slow_one(run)
    (before_s, step_s), (fast_before_s, fast_s) = own_s(run, slow), own_s(run, 1 - slow)
    assert fast_before_s + STEPS * fast_s < before_s + 1.5 * step_s  # the earliest deadline here
    return before_s, step_s, slow


def deadline(case: str, steps: float) -> tuple[float, ClientId]:
    """Compute when the slow client has taken so many steps; the fast one has ended by then."""
    before_s, step_s, slow = pace_of(case)
    return before_s + steps * step_s, slow


@pytest.mark.parametrize(
    ("case", "steps", "taken"),
    quick_rows(
        [(case, 1.999, 2) for case in CASES] + [(case, 2.001, 3) for case in ("none", "v1")],
        *[("none", 2.001, 3), ("v1", 1.999, 2), ("v2", 1.999, 2), ("none, vanilla", 1.999, 2)],
    ),
)
def test_a_straggler_stops_after_the_step_that_passes_the_deadline(
    case: str, steps: float, taken: int, tmp_path: Path
) -> None:
    at, slow = deadline(case, steps)
    result = Run.load(train(tmp_path / "run", SIZES, **fields(CASES[case], at)).path)
    clients = result.clients.set_index("client")
    assert clients["steps"].to_dict() == {slow: taken, 1 - slow: STEPS}
    assert clients["late"].to_dict() == {slow: 1, 1 - slow: 0}
    assert result.rounds["late"].tolist() == [1]


@pytest.mark.parametrize("case", quick(["none", "v1", "v2"], "none", "v2"))
def test_every_round_begins_anew(case: str, tmp_path: Path) -> None:
    """And an evaluation is nobody's own time."""
    at, slow = deadline(case, 1.999)
    twice = fields(CASES[case], at) | {"evaluate": {"every": 1}}
    twice["schedule"] |= {"rounds": 2}
    clients = Run.load(train(tmp_path / "run", SIZES, **twice).path).clients
    assert clients.loc[clients["client"] == slow, "steps"].tolist() == [2, 2]
    assert clients.loc[clients["client"] != slow, "late"].tolist() == [0, 0]


def test_nobody_is_late_who_is_through_in_time(tmp_path: Path) -> None:
    at, _ = deadline("v1", STEPS + 0.001)
    result = Run.load(train(tmp_path / "run", SIZES, **fields(CASES["v1"], at)).path)
    assert result.clients["late"].tolist() == [0, 0]


def settle(run: Experiment) -> Weights:
    run.parts.federation.settle(run.clients)
    return weights_of(run)


def laps(steps: dict[ClientId, int]) -> list[tuple[ClientId, int]]:
    """Return (client, number of its batch), as clients take turns."""
    return [(c, lap) for lap in range(STEPS) for c in (0, 1) if lap < steps[c]]


def test_under_v1_a_stragglers_copy_is_left_out(tmp_path: Path) -> None:
    at, slow = deadline("v1", 1.5)
    run = train(tmp_path / "run", SIZES, **fields(CASES["v1"], at))
    (each, *_) = nets_on_one_trunk(run)
    for number in range(STEPS):
        each.step(batch(run, 1 - slow, number))
    assert_equal(settle(run), each.weights())


def test_under_v2_a_stragglers_head_is_left_out_and_its_trunk_steps_are_not(
    tmp_path: Path,
) -> None:
    at, slow = deadline("v2", 1.5)
    run = train(tmp_path / "run", SIZES, **fields(CASES["v2"], at))
    nets = nets_on_one_trunk(run)
    for client, number in laps({slow: 2, 1 - slow: STEPS}):
        nets[client].step(batch(run, client, number))
    assert_equal(settle(run), nets[1 - slow].weights())


@pytest.mark.parametrize("case", quick(["v1", "v2", "fused", "asynchronous"], "v1", "fused"))
def test_awaited_a_straggler_counts_as_if_there_were_no_deadline(case: str, tmp_path: Path) -> None:
    at, slow = deadline(case, 1.5)
    awaited = train(tmp_path / "late", SIZES, **fields(CASES[case], at, "await"))
    whole = train(tmp_path / "whole", SIZES, **fields(CASES[case], None))
    assert_equal(weights_of(awaited), weights_of(whole))
    late = Run.load(awaited.path).clients.set_index("client")
    assert late["late"].to_dict() == {slow: 1, 1 - slow: 0}
    assert late["steps"].to_dict() == {0: STEPS, 1: STEPS}


@pytest.mark.parametrize("case", quick(["v1", "v2", "fused"], "v1"))
def test_where_everybody_is_late_averages_stay_what_they_were(case: str, tmp_path: Path) -> None:
    """Here they are before their first step: what they share takes too long to arrive."""
    run = begin(tmp_path / "run", SIZES, **fields(CASES[case], 1e-9))
    before = {name: tensor.clone() for name, tensor in weights_of(run).items()}
    run.run(resume=False)
    result = Run.load(run.path)
    assert result.rounds["late"].tolist() == [2]
    assert result.clients["steps"].tolist() == [0, 0]
    assert_equal(settle(run), before)
