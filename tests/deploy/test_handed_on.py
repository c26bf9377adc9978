"""What one client hands on harms no other: who sent it is judged before who used it.

Each client is hostile in its turn, the first too, with and without a quorum.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from hostile import Outcome, Stage, Way
from hostile_ways import (
    complain_falsely,
    fill,
    grow,
    hand_on,
    map_tensors,
    seal_otherwise,
    set_all,
    set_slot,
    stay,
    wrap_garbage,
)

from simsplit.deploy.handovers import Handovers
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
QUORUMS = pytest.mark.parametrize("quorum", [None, 2])
SEATS = pytest.mark.parametrize("bad", range(3))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("handed"), 3)


def three(quorum: int | None, **changes: Any) -> Scenario:
    small = {"clients": {"count": 3, "quorum": quorum}, "data": {"train_samples": 45}}
    return parse(merge(merge(TINY, small), changes))


def assert_it_costs_its_sender_alone(outcome: Outcome, bad: int) -> None:
    assert outcome.parties[bad].count_done() > 0
    expelled = outcome.run.expelled
    assert expelled[["client", "kind"]].to_numpy().tolist() == [[bad, "expelled"]]
    ends = [party.end for party in outcome.parties if party.site.number != bad]
    assert ends == ["finished"] * 2
    assert len(outcome.run.rounds) == outcome.run.scenario.schedule.rounds
    assert outcome.run.rounds["test_loss"].max() < 10


LIES: dict[str, Callable[[int], Way]] = {
    "garbage for the next": lambda bad: Way(
        "garbage", "HandOver", stay, tamper=wrap_garbage((bad + 1) % 3)
    ),
    "garbage, and no secret": lambda bad: Way(
        "garbage", "HandOver", stay, tamper=wrap_garbage((bad + 1) % 3, discloses=bytes(32))
    ),
    "a false complaint": lambda bad: Way("none", "Begin", stay, tamper=complain_falsely),
}


@QUORUMS
@SEATS
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_key(stage: Stage, lie: str, bad: int, quorum: Any, tmp_path: Path) -> None:
    outcome = stage.run(three(quorum), tmp_path, {bad: LIES[lie](bad)})
    assert_it_costs_its_sender_alone(outcome, bad)


def excuse_growth(handovers: Handovers) -> None:
    """Seal weights that are far too large, with so many own steps that Adam could make them so."""

    def name_steps(about: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        own = {str(handovers.number): [handovers.token, 10**12]}
        return {**about, "made": {**about["made"], **own}}, content

    hand_on(grow(1e7))(handovers)
    seal_otherwise(name_steps)(handovers)


def seal(name: str, change: Any, **more: Any) -> Way:
    return Way(name, "HandOver", stay, tamper=hand_on(change, **more))


OF_WEIGHTS = [
    seal("1e3", set_all(1e3)),
    seal("1e6", set_all(1e6)),
    seal("own times 100", grow(100.0)),
    seal("2^49", set_all(2.0**49)),
    seal("own times 100, and a lie about it", grow(100.0), claims=False),
]
OF_ADAM = [
    seal("a first moment of 2^49", set_slot("exp_avg", 2.0**49)),
    seal("second moments of 0", set_slot("exp_avg_sq", 0.0)),
    seal("step -1", set_slot("step", -1.0)),
    seal("a later step", set_slot("step", 1e6)),
    seal("half a step", set_slot("step", 0.5)),
    Way("own times 1e7, and steps that would excuse it", "HandOver", stay, tamper=excuse_growth),
]
OF_MOMENTUM = [
    seal("momentum of 2^49", set_slot("momentum_buffer", 2.0**49), claims=False),
    seal("momentum of 1e4", set_slot("momentum_buffer", 1e4), claims=False),
]
TO_AVERAGE = [
    Way("1e3", "HandOver", fill(1e3)),
    Way(
        "own times 100", "HandOver", map_tensors(lambda t: 100 * t if t.is_floating_point() else t)
    ),
    Way("1e6", "HandOver", fill(1e6)),
    Way("2^49", "HandOver", fill(2.0**49)),
]
ADAM = {"train": {"client": {"kind": "adam", "lr": 0.01}}, "clients": {"handover": "state"}}
MOMENTUM = {
    "train": {"client": {"kind": "sgd", "lr": 0.01, "momentum": 0.9}},
    "clients": {"handover": "state"},
}
QUIET = {"kind": "safesplit", "threshold": {"kind": "fixed", "above": 1e9}}
COURSES: dict[str, tuple[dict[str, Any], list[Way]]] = {
    "in turn": ({}, OF_WEIGHTS),
    "client after client": ({"schedule": {"kind": "per_client", "rounds": 2}}, OF_WEIGHTS),
    "judged by turns": (
        {"schedule": {"kind": "per_client", "rounds": 2}, "detectors": [QUIET]},
        OF_WEIGHTS,
    ),
    "with adam": (ADAM, [*OF_ADAM, OF_WEIGHTS[2]]),
    "with momentum": (MOMENTUM, OF_MOMENTUM),
    "vanilla": ({"topology": "vanilla"}, OF_WEIGHTS),
    "splitfed_v1": ({"aggregation": "splitfed_v1"}, TO_AVERAGE),
    "splitfed_v2": ({"aggregation": "splitfed_v2"}, TO_AVERAGE),
    "fused": ({"aggregation": "fused", "schedule": {"kind": "parallel", "rounds": 2}}, TO_AVERAGE),
    "in few bits": ({"aggregation": {"kind": "splitfed_v2", "bits": 8}}, TO_AVERAGE),
    "some": ({"cohort": {"fraction": 0.7}, "aggregation": "splitfed_v2"}, TO_AVERAGE),
    **{
        strategy: ({"aggregation": {"kind": "splitfed_v2", "strategy": strategy}}, TO_AVERAGE)
        for strategy in ("fedavgm", "fedadam", "fedmedian")
    },
}


@QUORUMS
@SEATS
@pytest.mark.parametrize("course", COURSES)
def test_weights_that_are_far_too_large(
    stage: Stage, course: str, bad: int, quorum: Any, tmp_path: Path
) -> None:
    """Each course has its own ways to hand on what harms others; seats take them in turn."""
    changes, ways = COURSES[course]
    way = ways[(2 * bad + (quorum is None)) % len(ways)]
    outcome = stage.run(three(quorum, **changes), tmp_path, {bad: way})
    assert_it_costs_its_sender_alone(outcome, bad)


@pytest.mark.parametrize(
    ("course", "way"),
    [
        (course, way)
        for course in ("in turn", "with adam", "splitfed_v1")
        for way in COURSES[course][1]
    ],
    ids=str,
)
def test_each_way(stage: Stage, course: str, way: Way, tmp_path: Path) -> None:
    outcome = stage.run(three(None, **COURSES[course][0]), tmp_path, {0: way})
    assert_it_costs_its_sender_alone(outcome, 0)
