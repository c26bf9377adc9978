"""A hostile client costs itself its place: the run finishes, and the others never notice.

Each case runs through the real server on the loopback address. A run has several hostile clients,
each with a way of its own (see `hostile.py`), and two honest ones, which have the last numbers: so
the first client is expelled too. What hostile parties could once do, and the tests that show that
they cannot:

- an answer ends the run, or drives honest clients out: `test_nobody_notices` and its variants for
  texts and methods;
- finite poison strikes the innocent: `huge` and `largest` there, and
  `tests/unit/deploy/test_trunk_watch.py`;
- a resumed server waits for the expelled, and the first client cannot be spared:
  `test_each_client_in_every_course_and_a_killed_server`;
- a client that stays away, or fails again and again: `TestAClientThatStaysAway`, and the way `fails
  again and again`.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from comparing import TABLES
from hostile import Stage, Way, assert_nobody_noticed
from hostile_ways import (
    ADAPTERS,
    COUNTS,
    FRAMES,
    GRADIENT,
    LABELS,
    NAN,
    NOTHING,
    SEALED,
    TOKENS,
    UNDOING,
    WEIGHTS,
    fill,
    of_figures,
    of_packets,
    seal_otherwise,
    set_answer,
    set_header,
    stay,
)
from texts import CAUSAL, api_scenario, text_scenario

from simsplit.errors import RunFailedError, ScenarioError
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
HOSTILE, HONEST = 6, 2

BASE = {"clients": {"count": HOSTILE + HONEST}, "train": {"batch_size": 8}}


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, BASE), changes))


WRITING = {"kind": "generation", "prompt": "{sentence} is", "answer": " about a {topic}"}
OWN = {"clients": {"heads": "per_client"}}
STRICT = {"kind": "cosine_mad", "threshold": {"kind": "three_sigma", "sigmas": 1.0}}
"""Flags some honest client or other."""
SCENARIOS: dict[str, dict[str, Any]] = {
    "handed on": {},
    "own": OWN,
    "vanilla": {"topology": "vanilla"},
    "v1": {"aggregation": "splitfed_v1"},
    "v2": {"aggregation": "splitfed_v2"},
    "bits": {"aggregation": {"kind": "splitfed_v2", "bits": 8}},
    "rounds": {"detectors": [{**STRICT, "response": "rollback"}]},
    "fused": {"aggregation": "fused", "schedule": {"kind": "parallel", "rounds": 2}},
}
WAYS: dict[str, list[Way]] = {
    "handed on": [*NOTHING, *COUNTS, *FRAMES, *SEALED],
    "own": [
        *of_packets("Begin", "smashed"),
        *of_packets("Proceed", GRADIENT, after=1),
        *of_packets("Probe", "smashed")[::4],
        *of_figures("ReportRound"),
        *of_figures("Assess"),
        Way("none", "Assess", set_answer({})),
        Way("another number", "Note", set_header(number=99)),
    ],
    "vanilla": LABELS,
    "v1": [*WEIGHTS, *of_packets("Begin", "smashed")[::5], *of_figures("ReportRound")[::3]],
    "v2": [*WEIGHTS, *of_packets("Proceed", GRADIENT)[::5]],
    "bits": WEIGHTS,
    "fused": [*of_packets("Begin", "smashed"), *of_packets("Proceed", GRADIENT)],
}


TEXTS: dict[str, tuple[dict[str, Any], list[Way]]] = {
    "texts": ({}, of_packets("Begin", "smashed")),
    "texts, vanilla": (
        {"topology": "vanilla"},
        [*LABELS, *of_packets("Begin", "smashed")[::5]],
    ),
    "texts, written": (
        {
            **OWN,
            "model": CAUSAL,
            "data": {"source": {"task": WRITING, "length": 48}},
            "evaluate": {"metrics": ["rouge_l"], "generated_texts": 3, "max_new_tokens": 3},
        },
        [*of_packets("Write", "smashed")[::4], *of_packets("WriteOn", "smashed")[1::4]],
    ),
    "api": ({}, [*TOKENS, *ADAPTERS, *of_packets("Proceed", GRADIENT)[::3]]),
}
METHODS: dict[str, list[dict[str, Any]]] = {
    "lightsplit": [{"kind": "lightsplit", "ratio": 8}, {"kind": "wcc"}],
    "quantise": [{"kind": "quantise"}],
    "topk": [{"kind": "topk", "ratio": 8}],
    "sparsify": [{"kind": "sparsify"}],
    "c3sl": [{"kind": "c3sl"}],
    "cast": [{"kind": "cast"}],
}


def _chunks() -> Iterator[tuple[str, list[Way]]]:
    for name, ways in WAYS.items():
        for start in range(0, len(ways), HOSTILE):
            yield name, ways[start : start + HOSTILE]


def _name(part: object) -> str:
    return str(part) if isinstance(part, str) else f"{part[0]} ..."  # type: ignore[index]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    made = Stage(tmp_path_factory.mktemp("hostile"), HOSTILE + HONEST)
    # so that memory has all that torch and Flower load
    made.run(scenario(aggregation="splitfed_v2"), made.folder / "first", {})
    return made


@cache
def _prepare(given: str) -> Any:
    return scenario(**SCENARIOS[given]).prepare_data()


@pytest.mark.parametrize("ways", range(5), ids=str)
@pytest.mark.parametrize("given", TEXTS)
def test_nobody_notices_with_texts(stage: Stage, given: str, ways: int, tmp_path: Path) -> None:
    changes, every = TEXTS[given]
    if chosen := every[ways * HOSTILE : (ways + 1) * HOSTILE]:
        make = api_scenario if given == "api" else text_scenario
        assert_nobody_noticed(stage, make(tmp_path, **merge(BASE, changes)), tmp_path, chosen)


@pytest.mark.parametrize("ways", range(4), ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_nobody_notices_with_methods(stage: Stage, method: str, ways: int, tmp_path: Path) -> None:
    every = of_packets("Begin", "smashed")
    if method == "cast":  # float16 is what it sends
        every = [way for way in every if way.name != "float16"]
    chosen = every[ways * HOSTILE : (ways + 1) * HOSTILE]
    assert_nobody_noticed(stage, scenario(**OWN, method=METHODS[method]), tmp_path, chosen)


@pytest.mark.parametrize(("given", "ways"), list(_chunks()), ids=_name)
def test_nobody_notices(stage: Stage, given: str, ways: list[Way], tmp_path: Path) -> None:
    assert_nobody_noticed(stage, scenario(**SCENARIOS[given]), tmp_path, ways)


NETWORK = {"device": {"phone": 0.5, "edge": 0.5}, "link": "lte"}
COURSES: dict[str, dict[str, Any]] = {
    **{name: changes for name, changes in SCENARIOS.items() if name != "vanilla"},
    "async": {**OWN, "schedule": {"kind": "asynchronous"}, "network": NETWORK},
    "turns": {
        "detectors": [{"kind": "safesplit", "threshold": {"kind": "fixed", "above": 1e9}}],
        "schedule": {"kind": "per_client"},
    },
    "some": {**OWN, "evaluate": {"clients": 1}, "cohort": {"fraction": 0.5}},
}


class Killed(BaseException):
    """Raised after a round, as if the server's power were gone."""


class Kills(Observer):
    """Kills the server after a round."""

    def __init__(self, number: int) -> None:
        self.number = number

    def round(self, ended: RoundEnded) -> None:
        if ended.number == self.number:
            raise Killed


def three(course: str, **changes: Any) -> Scenario:
    # four where a detector responds, since it compares three
    small = {"clients": {"count": 4 if course == "rounds" else 3}, "schedule": {"rounds": 3}}
    return parse(merge(merge(merge(TINY, COURSES[course]), small), changes))


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("course", COURSES)
def test_each_client_in_every_course_and_a_killed_server(
    stage: Stage, course: str, bad: int, tmp_path: Path
) -> None:
    """The run goes on without the client, and so does a server that is killed and resumed."""
    given, ways = three(course), {bad: Way("not a number", "Begin", fill(NAN), after=1)}
    outcome = stage.run(given, tmp_path, ways)
    assert outcome.run.expelled[["client", "kind"]].to_numpy().tolist() == [[bad, "expelled"]]
    honest = given.clients.count - 1
    assert [p.end for p in outcome.parties if p.site.number != bad] == ["finished"] * honest
    assert len(outcome.run.rounds) == 3
    with pytest.raises(Killed):
        stage.run(given, tmp_path / "again", ways, observers=[Kills(2)])
    again = stage.run(given, tmp_path / "again", {}, absent=[bad], resume=True)
    assert [party.end for party in again.parties] == ["finished"] * honest
    assert again.run.expelled.equals(outcome.run.expelled)
    for table in TABLES:
        one, other = (run.path / f"{table}.csv" for run in (outcome.run, again.run))
        assert not one.exists() or one.read_text() == other.read_text(), table


def drop_a_step(about: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Name one step fewer of each client than the weights include."""
    made = {name: [token, steps - 1] for name, (token, steps) in about["made"].items()}
    return {**about, "made": made}, content


@pytest.mark.parametrize("bad", range(3))
def test_the_first_hand_over_after_a_restart(stage: Stage, bad: int, tmp_path: Path) -> None:
    """The last client holds the weights at a restart; the server knows which steps they include."""
    given = three("handed on")
    with pytest.raises(Killed):
        stage.run(given, tmp_path, {}, observers=[Kills(1)])
    way = Way("of fewer steps", "HandOver", stay, tamper=seal_otherwise(drop_a_step))
    outcome = stage.run(given, tmp_path, {bad: way}, resume=True)
    assert outcome.run.expelled[["client", "kind"]].to_numpy().tolist() == [[bad, "expelled"]]
    assert [p.end for p in outcome.parties if p.site.number != bad] == ["finished"] * 2
    assert len(outcome.run.rounds) == 3


@pytest.mark.parametrize("way", UNDOING, ids=str)
def test_a_round_that_is_undone(stage: Stage, way: Way, tmp_path: Path) -> None:
    """Detectors flag an honest client or other, and have the others undo the round."""
    outcome = stage.run(three("rounds"), tmp_path, {0: way})
    assert outcome.parties[0].count_done() > 0
    assert outcome.run.expelled[["client", "kind"]].to_numpy().tolist() == [[0, "expelled"]]
    assert [party.end for party in outcome.parties if party.site.number] == ["finished"] * 3
    assert outcome.run.summary["status"] == "finished"


class TestAClientThatStaysAway:
    def test_stops_the_run_until_the_owner_continues_without_it(self, stage, tmp_path):
        given = three("handed on")
        with pytest.raises(Killed):
            stage.run(given, tmp_path, {}, observers=[Kills(1)])
        with pytest.raises(RunFailedError, match="--without 1"):
            stage.run(given, tmp_path, {}, absent=[1], resume=True, patience_s=1)
        outcome = stage.run(given, tmp_path, {}, absent=[1], resume=True, without=[1])
        assert self.list_left_out(outcome.run) == [[1, 2, "without"]]
        steps = outcome.run.clients.pivot_table(index="round", columns="client", values="steps")
        assert (steps[1] > 0).tolist() == [True, False, False]
        assert (steps[[0, 2]] > 0).all(axis=None)

    def test_from_the_start(self, stage, tmp_path):
        outcome = stage.run(three("v2"), tmp_path, {}, absent=[0], without=[0])
        assert self.list_left_out(outcome.run) == [[0, 1, "without"]]
        assert set(outcome.run.wire["client"]) == {1, 2}
        assert outcome.run.summary["deployed"]["clients"][0] is None

    def test_costs_itself_its_place_where_there_is_a_quorum(self, stage, tmp_path):
        given = three("v1", clients={"quorum": 2})
        outcome = stage.run(given, tmp_path, {}, absent=[2], patience_s=2)
        assert self.list_left_out(outcome.run) == [[2, 1, "away"]]
        assert [party.end for party in outcome.parties] == ["finished"] * 2

    def test_but_no_more_than_the_quorum_allows(self, stage, tmp_path):
        given = three("v1", clients={"quorum": 3})
        with pytest.raises(RunFailedError, match="client 2"):
            stage.run(given, tmp_path, {}, absent=[2], patience_s=1)
        with pytest.raises(ScenarioError) as refused:
            stage.run(given, tmp_path / "without", {}, without=[2])
        assert refused.value.field == "clients.quorum"
        with pytest.raises(ScenarioError):
            stage.run(three("v1"), tmp_path / "unknown", {}, without=[3])

    def test_an_expulsion_below_the_quorum_stops_the_run(self, stage, tmp_path):
        given = three("v2", clients={"quorum": 3})
        ways = {0: Way("not a number", "Begin", fill(NAN))}
        with pytest.raises(RunFailedError, match="2 of 3 clients"):
            stage.run(given, tmp_path, ways)
        assert self.list_left_out(Run.load(tmp_path / "run")) == [[0, 1, "expelled"]]

    @staticmethod
    def list_left_out(run: Run) -> list[list[Any]]:
        return run.expelled[["client", "round", "kind"]].to_numpy().tolist()
