"""Who drops out in the middle of a step leaves no trace of it but the bytes that it sent."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import enter_round, run_to_end, scenario
from pace import quick
from plain_loops import (
    Weights,
    assert_close,
    assert_equal,
    average,
    batch,
    begin,
    epoch,
    net,
    nets_on_one_trunk,
    train_round,
    weights_of,
)
from rich.console import Console

from simsplit.experiment import Experiment
from simsplit.legs import ClientId, Leg
from simsplit.parties.calls import OwnState, SharedState
from simsplit.report.run_tables import show, write_heading
from simsplit.results import Run
from simsplit.schedules.courses import RoundDone
from simsplit.showing.run_output import Lines

LIFT = {"kind": "lightsplit", "lift": "learned", "hidden": 32}
PARALLEL = {"kind": "parallel"}
ASYNCHRONOUS = {"kind": "asynchronous"}
OWN = {"heads": "per_client"}
CASES: dict[str, dict[str, Any]] = {
    "one head, in turn": {"schedule": {"kind": "round_robin"}},
    "one head, one after another, vanilla": {
        "schedule": {"kind": "per_client"},
        "topology": "vanilla",
    },
    "own heads": {"schedule": PARALLEL, "clients": OWN},
    "v1": {"schedule": PARALLEL, "aggregation": "splitfed_v1"},
    "v1, vanilla, own heads": {
        "schedule": PARALLEL,
        "aggregation": "splitfed_v1",
        "topology": "vanilla",
        "clients": OWN,
    },
    "v2": {"schedule": PARALLEL, "aggregation": "splitfed_v2"},
    "fused": {"schedule": PARALLEL, "aggregation": {"kind": "fused", "strategy": "fedadam"}},
    "fused, vanilla": {"schedule": PARALLEL, "aggregation": "fused", "topology": "vanilla"},
    "asynchronous": {"schedule": ASYNCHRONOUS, "clients": OWN, "network": {}},
    "asynchronous, v2": {
        "schedule": ASYNCHRONOUS,
        "aggregation": "splitfed_v2",
        "network": {"spread": 1},
    },
}


def copy_owned(run: Experiment) -> Weights:
    """Copy all tensors that any party owns: weights, buffers, moments, averages."""
    parts = run.parts
    state = dict(parts.server.learner.state()) | parts.pool.workshop_state()
    for client in run.clients:
        both = parts.pool.ask(client, OwnState()) | parts.pool.ask(client, SharedState())
        state |= {f"{client}/{n}": t for n, t in both.items() if not n.startswith("taken.")}
    if parts.federation is not None:
        state |= parts.federation.state()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def with_drops(
    run: Experiment, number: int, steps: dict[ClientId, int], drops: set[ClientId]
) -> RoundDone:
    """Train a round in which some drop out at the last of their steps."""
    lineup = replace(enter_round(run, number), steps=steps, drops=frozenset(drops))
    return run.parts.course.run(lineup, lambda done, total: None)


@pytest.mark.always
@pytest.mark.parametrize(
    "case", quick(CASES, "one head, in turn", "v1", "fused", "asynchronous, v2", "fused, vanilla")
)
def test_a_step_that_is_never_finished_changes_nothing(case: str, tmp_path: Path) -> None:
    changes = CASES[case]
    run = begin(tmp_path / "run", method=[LIFT], **changes)
    run.parts.exchange.announce(run.clients, counted=False)
    train_round(run, 1)  # so that there are moments to keep
    if run.parts.federation is not None:
        run.parts.federation.settle(run.clients)
    before = copy_owned(run)
    assert any("optimizer." in name for name in before)
    run.parts.wire.take()
    done = with_drops(run, 2, dict.fromkeys(run.clients, 1), set(run.clients))
    assert_equal(copy_owned(run), before)
    assert done.dropped == set(run.clients)
    names = {name for report in done.reports.values() for name in report}
    assert names == {"plain_bytes"}, "what it sent counts for a plain cut as well"
    counts = run.parts.wire.take()
    sent = {(key[1], key[3]): count[0] for key, count in counts.items()}
    vanilla = changes.get("topology") == "vanilla"
    legs = [Leg.SMASHED] if vanilla else [Leg.SMASHED, Leg.FEATURES]
    expected = {(client, leg): 1 for client in run.clients for leg in legs}
    of_weights = (Leg.BROADCAST, Leg.HANDOVER)
    assert {key: n for key, n in sent.items() if key[1] not in of_weights} == expected
    if "aggregation" in changes:  # a client that dropped out sends no update
        assert not any(leg is Leg.HANDOVER for _, leg in sent)


@pytest.mark.parametrize("case", quick(list(CASES)[1::2], "v1", "asynchronous, v2"))
def test_a_run_in_which_everybody_always_drops_out(case: str, tmp_path: Path) -> None:
    changes = CASES[case]
    schedule = changes["schedule"] | {"local_steps": 1, "rounds": 2}
    run = begin(tmp_path / "run", **changes | {"schedule": schedule}, cohort={"dropout": 1})
    output = io.StringIO()
    run.observers.observers += (Lines(Console(file=output)),)
    before = weights_of(run)
    before = {name: tensor.clone() for name, tensor in before.items()}
    run.run(resume=False)
    assert_equal(weights_of(run), before)
    result = Run.load(run.path)
    assert result.rounds["train_loss"].isna().all()
    assert result.rounds[["steps", "samples", "clients", "dropped"]].to_numpy().tolist() == [
        [0, 0, 3, 3],
        [0, 0, 3, 3],
    ]
    assert result.clients["dropped"].tolist() == [1] * 6
    assert result.clients["steps"].tolist() == [0] * 6
    assert not set(result.wire["leg"]) & {"features_grad", "smashed_grad", "labels"}
    assert pd.notna(result.summary["last"]["test_loss"])
    assert "finished" in write_heading(result)
    assert [table.text("markdown") for table in show(result)]
    lines = output.getvalue()
    assert lines.count("nobody trained (3 dropped out)") == 2
    assert "nan" not in lines


# in the middle of a round

STEPS = {0: 3, 1: 2, 2: 1}
"""Of clients of 21, 13 and 6 samples; the first drops out at its third."""


def test_who_drops_out_at_a_step_has_taken_those_before_it(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", schedule=PARALLEL, clients=OWN)
    done = with_drops(run, 1, STEPS, {0})
    nets = nets_on_one_trunk(run)
    for client, number in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]:
        nets[client].step(batch(run, client, number))
    for client in run.clients:
        assert_equal(weights_of(run, client), nets[client].weights())
    assert {c: report["steps"] for c, report in done.reports.items()} == {0: 2, 1: 2, 2: 1}
    assert {c: report["samples"] for c, report in done.reports.items()} == {0: 16, 1: 13, 2: 6}


def test_a_copy_of_who_dropped_out_is_left_out_of_the_average(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", schedule=PARALLEL, aggregation="splitfed_v1")
    with_drops(run, 1, STEPS, {0})
    nets = [net(run), net(run)]
    for each, client in zip(nets, (1, 2), strict=True):
        for images in epoch(run, client, 0):
            each.step(images)
    run.parts.federation.settle(run.clients)
    assert_close(weights_of(run), average([(nets[0].weights(), 13), (nets[1].weights(), 6)]))


def test_under_v2_its_steps_of_the_trunk_stay_and_its_head_is_left_out(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", schedule=PARALLEL, aggregation="splitfed_v2")
    with_drops(run, 1, STEPS, {0})
    nets = nets_on_one_trunk(run)
    for client, number in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]:
        nets[client].step(batch(run, client, number))
    own = ("head", "tail")
    run.parts.federation.settle(run.clients)
    mean = average([(nets[1].weights(own), 13), (nets[2].weights(own), 6)])
    assert_close(weights_of(run), mean | nets[0].weights(("trunk",)))


def test_a_fused_lap_goes_on_without_who_dropped_out_of_it(tmp_path: Path) -> None:
    """With nothing in the last lap but what is lost, two laps are all that was learned."""
    runs = [
        begin(tmp_path / name, schedule=PARALLEL, aggregation="fused", clients=OWN)
        for name in ("whole", "dropped")
    ]
    with_drops(runs[0], 1, {0: 2, 1: 2, 2: 1}, set())
    with_drops(runs[1], 1, STEPS, {0})
    for client in runs[0].clients:
        assert_equal(weights_of(runs[0], client), weights_of(runs[1], client))


def test_who_dropped_out_is_back_in_the_next_round(tmp_path: Path) -> None:
    """With the average of the others, moments of its own, and the batch after the lost one."""
    run = begin(tmp_path / "run", [24, 16], schedule=PARALLEL, aggregation="splitfed_v1")
    with_drops(run, 1, {0: 2, 1: 2}, {0})
    dropped, other = net(run), net(run)
    dropped.step(batch(run, 0, 0))
    other.step(batch(run, 1, 0))
    other.step(batch(run, 1, 1))
    dropped.take(other.weights())
    with_drops(run, 2, {0: 1}, set())
    dropped.step(batch(run, 0, 2))
    run.parts.federation.settle(run.clients)
    assert_equal(weights_of(run), dropped.weights())


@pytest.mark.slow
def test_a_method_may_report_on_who_dropped_out_of_its_only_step(tmp_path: Path) -> None:
    """SplitGuard has its score in every round, steps or none."""
    given = scenario(
        method=[{"kind": "splitguard", "after": 0, "probability": 0.4}],
        clients={"heads": "per_client"},
        cohort={"dropout": 0.5},
        schedule={"rounds": 8, "local_steps": 1},
    )
    run_to_end(given, tmp_path / "run")
    rows = Run.load(tmp_path / "run").clients
    left = rows[(rows["dropped"] == 1) & rows["splitguard"].notna()]
    assert len(left)
    assert (left["steps"] == 0).all()
    assert left["train_loss"].isna().all()
