"""Poison is undone when its sender is expelled: what it did before does not stay in the trunk."""

from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from hostile import Outcome, Stage, Way
from hostile_ways import GRADIENT, fill, grow_each_time, stay, take_turns

from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
ROUNDS = 4
OWN = {"clients": {"heads": "per_client"}}
COURSES: dict[str, dict[str, Any]] = {
    "own": OWN,
    "handed on": {},
    "v1": {"aggregation": "splitfed_v1"},
    "v2": {"aggregation": "splitfed_v2"},
    "fused": {"aggregation": "fused", "schedule": {"kind": "parallel"}},
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("poison"), 3)


def make(course: str, topology: str = "u_shaped") -> Scenario:
    small = {"clients": {"count": 3}, "schedule": {"rounds": ROUNDS}, "topology": topology}
    return parse(merge(merge(TINY, COURSES[course]), small))


def assert_no_trace_is_left(outcome: Outcome, bad: int) -> None:
    assert outcome.run.expelled[["client", "kind"]].to_numpy().tolist() == [[bad, "expelled"]]
    ends = [party.end for party in outcome.parties if party.site.number != bad]
    assert ends == ["finished"] * 2
    rounds = outcome.run.rounds
    assert rounds["round"].tolist() == list(range(1, ROUNDS + 1))
    assert rounds["test_loss"].max() < 5, rounds["test_loss"].tolist()
    assert not outcome.run.summary["deployed"]["trunk_clipped"]
    steps = outcome.run.clients.pivot_table(index="round", columns="client", values="steps")
    assert not steps.get(bad, steps[(bad + 1) % 3] * 0).any(), "its rounds are undone too"


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("course", COURSES)
def test_large_numbers_every_second_step(
    stage: Stage, course: str, bad: int, tmp_path: Path
) -> None:
    way = Way("1e6", "Begin", take_turns(stay, fill(1e6)), leg="smashed")
    assert_no_trace_is_left(stage.run(make(course), tmp_path, {bad: way}), bad)


def test_where_the_server_has_the_labels(stage: Stage, tmp_path: Path) -> None:
    way = Way("1e6", "Begin", take_turns(stay, fill(1e6)), leg="smashed")
    assert_no_trace_is_left(stage.run(make("own", "vanilla"), tmp_path, {1: way}), 1)


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("course", COURSES)
def test_gradients_that_grow_thirtyfold_a_step(
    stage: Stage, course: str, bad: int, tmp_path: Path
) -> None:
    """In the first round they are 30 times as large, which is allowed, and in the second more."""
    way = Way("larger", "Proceed", grow_each_time(30.0), leg=GRADIENT)
    outcome = stage.run(make(course), tmp_path, {bad: way})
    assert outcome.run.expelled["round"].tolist() == [2]
    assert_no_trace_is_left(outcome, bad)
