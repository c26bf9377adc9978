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

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY
from comparing import TABLES
from hostile import (
    Stage,
    Way,
    blame,
    fail,
    fill,
    map_tensors,
    nest,
    send,
    send_number,
    set_answer,
    set_every_figure,
    set_fields,
    set_figures,
    set_header,
    set_tensors,
)
from texts import CAUSAL, api_scenario, text_scenario

from simsplit.errors import RunFailedError, ScenarioError
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
HOSTILE, HONEST = 6, 2
MOST_GROWN = 256 * 2**20
"""Bytes by which the peak memory of the process may rise in a run, clients included."""
GRADIENT = "features_grad"
NAN, HUGE, LARGEST = float("nan"), 1e20, 3e38


def of_packets(call: str, leg: str, **more: Any) -> list[Way]:
    """List ways to send a packet that is not the one that is due."""
    at = {"leg": leg, **more}
    return [
        Way("not a number", call, fill(NAN), **at),
        Way("huge", call, fill(HUGE), **at),
        Way("largest", call, fill(LARGEST), **at),
        Way("float64", call, map_tensors(torch.Tensor.double), **at),
        Way("float16", call, map_tensors(torch.Tensor.half), **at),
        Way("bfloat16", call, map_tensors(torch.Tensor.bfloat16), **at),
        Way("integers", call, map_tensors(torch.Tensor.long), **at),
        Way("fewer columns", call, map_tensors(lambda t: t[..., :-1].contiguous()), **at),
        Way("another dimension", call, map_tensors(lambda t: t[None]), **at),
        Way("without rows", call, map_tensors(lambda t: t[:0]), **at),
        Way("too many rows", call, map_tensors(lambda t: torch.cat([t] * 99)), **at),
        Way("without tensors", call, set_tensors(), **at),
        Way("ten masks", call, _repeat_last, **at),
        Way("of another client", call, set_fields(client=9), **at),
        Way("of another round", call, set_fields(round=7), **at),
        Way("on no leg", call, set_fields(leg="backdoor"), **at),
        Way("as a hand-over", call, set_fields(leg="handover"), **at),
        Way("as a broadcast", call, set_fields(leg="broadcast"), **at),
        Way("in a session", call, set_fields(session=5), **at),
        Way("with names", call, set_fields(names=["a", "b", "c"]), **at),
        Way("twice", call, _send_twice, **at),
        Way("none at all", call, set_answer(None), **at),
    ]


def _repeat_last(answer: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    tensors += [tensors[-1]] * 10
    answer["answer"][0]["tensors"] = len(tensors)


def _send_twice(answer: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    answer["answer"] *= 2
    tensors += tensors


def of_figures(call: str) -> list[Way]:
    """List ways to report figures that are none."""
    return [
        Way("not a number", call, set_every_figure(NAN)),
        Way("infinite", call, set_every_figure(float("inf"))),
        Way("1e308", call, set_every_figure(1e308)),
        Way("of 400 digits", call, send_number(400)),
        Way("of 5000 digits", call, send_number(5000)),
        Way("words", call, set_every_figure("much")),
        Way("negative", call, set_every_figure(-1e9)),
        Way("others", call, set_figures(simulated_s=1.0, round=7)),
        Way("a list", call, set_answer([1.0])),
    ]


NOTHING = [
    *(Way("a number", call, set_answer(1)) for call in ("Hear", "Enter", "keep")),
    Way("a number", "back_to", set_answer(1)),
    Way("fields", "Enter", set_header(more=1)),
]
COUNTS = [
    *(Way(str(n), "CountSteps", set_answer(n)) for n in (-1, "7", None, True, 1.5, 2**50, 2**60)),
    Way("with tensors", "CountSteps", lambda answer, tensors: tensors.append(torch.ones(3))),
]
FRAMES = [
    Way("garbage", "Begin", send(b"garbage" * 30)),
    Way("empty", "Begin", send(b"")),
    Way("nested", "Begin", nest),
    Way("another number", "Begin", set_header(number=99)),
    Way("fails again and again", "Begin", fail, after=1),
    Way("too large", "Begin", send(b"x" * 2**25)),
    Way("blames nobody", "Receive", blame),
    Way("blames nobody", "Enter", blame),
]
LABELS = [
    Way("10^6", "Begin", map_tensors(lambda t: torch.full_like(t, 10**6), 1), leg="smashed"),
    Way("-7", "Begin", map_tensors(lambda t: torch.full_like(t, -7), 1), leg="smashed"),
    Way("of floats", "Begin", map_tensors(torch.Tensor.float, 1), leg="smashed"),
    Way("in four bytes", "Begin", map_tensors(torch.Tensor.int, 1), leg="smashed"),
    Way("fewer", "Begin", map_tensors(lambda t: t[:-1], 1), leg="smashed"),
    Way("of two dimensions", "Begin", map_tensors(lambda t: t[:, None], 1), leg="smashed"),
]
WEIGHTS = [
    Way("largest", "HandOver", fill(LARGEST)),
    Way("huge", "HandOver", fill(HUGE)),
    Way("not a number", "HandOver", fill(NAN)),
    Way("float64", "HandOver", map_tensors(torch.Tensor.double)),
    Way("another shape", "HandOver", map_tensors(lambda t: t[None])),
    Way("without names", "HandOver", set_fields(names=[])),
    Way("without tensors", "HandOver", set_tensors()),
    Way("of another client", "HandOver", set_fields(client=9)),
    Way("on another leg", "HandOver", set_fields(leg="smashed")),
]


TOKENS = [
    Way("negative", "Begin", map_tensors(lambda t: t - 9), leg="inputs"),
    Way("unknown", "Begin", map_tensors(lambda t: t + 10**6), leg="inputs"),
    Way("in eight bytes", "Begin", map_tensors(torch.Tensor.long), leg="inputs"),
    Way("without a mask", "Begin", lambda a, t: _drop(a, t, 1), leg="inputs"),
    Way("too long", "Begin", map_tensors(lambda t: torch.cat([t] * 99, 1)), leg="inputs"),
    Way("none", "Begin", lambda a, t: _drop(a, t, 2), leg="inputs"),
]
ADAPTERS = [
    Way("not a number", "Begin", lambda a, t: _change_last(t, t[-1] * NAN), leg="inputs"),
    Way("largest", "Begin", lambda a, t: _change_last(t, t[-1] * 0 + LARGEST), leg="inputs"),
    Way("float64", "Begin", lambda a, t: _change_last(t, t[-1].double()), leg="inputs"),
    Way("of one less", "Begin", lambda a, t: _change_last(t, t[-1][:-1]), leg="inputs"),
]


def _drop(answer: dict[str, Any], tensors: list[torch.Tensor], count: int) -> None:
    """Leave out the first tensors of the first packet."""
    del tensors[:count]
    answer["answer"][0]["tensors"] -= count


def _change_last(tensors: list[torch.Tensor], tensor: torch.Tensor) -> None:
    tensors[-1] = tensor


BASE = {"clients": {"count": HOSTILE + HONEST}, "train": {"batch_size": 8}}


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, BASE), changes))


WRITING = {"kind": "generation", "prompt": "{sentence} is", "answer": " about a {topic}"}
OWN = {"clients": {"heads": "per_client"}}
SCENARIOS: dict[str, dict[str, Any]] = {
    "handed on": {},
    "own": OWN,
    "vanilla": {"topology": "vanilla"},
    "v1": {"aggregation": "splitfed_v1"},
    "v2": {"aggregation": "splitfed_v2"},
    "bits": {"aggregation": {"kind": "splitfed_v2", "bits": 8}},
    "fused": {"aggregation": "fused", "schedule": {"kind": "parallel", "rounds": 2}},
}
WAYS: dict[str, list[Way]] = {
    "handed on": [*NOTHING, *COUNTS, *FRAMES],
    "own": [
        *of_packets("Begin", "smashed"),
        *of_packets("Proceed", GRADIENT, after=1),
        *of_packets("Probe", "smashed")[::4],
        *of_figures("ReportRound"),
        *of_figures("Assess"),
        Way("none", "Assess", set_answer({})),
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


def assert_nobody_noticed(stage: Stage, given: Scenario, out: Path, ways: Sequence[Way]) -> None:
    """Run with these hostile clients: each is expelled, and the others have finished."""
    outcome = stage.run(given, out, dict(enumerate(ways)))
    honest = range(len(ways), given.clients.count)
    idle = [str(ways[p.site.number]) for p in outcome.parties[: len(ways)] if not p.count_done()]
    assert not idle, "ways that were never taken"
    expelled = outcome.run.expelled
    kinds = {} if expelled.empty else dict(zip(expelled["client"], expelled["kind"], strict=True))
    spared = [str(way) for number, way in enumerate(ways) if kinds.pop(number, "") != "expelled"]
    assert not spared
    assert not kinds, "an honest client was expelled"
    ends = {party.site.number: party.end for party in outcome.parties}
    assert {ends[number] for number in honest} == {"finished"}, ends
    rounds, clients = outcome.run.rounds, outcome.run.clients
    assert list(rounds["round"]) == list(range(1, given.schedule.rounds + 1))
    assert rounds.filter(like="test_").notna().all(axis=None)
    assert (clients[clients["client"].isin(honest)]["steps"] > 0).all()
    assert outcome.run.summary["status"] == "finished"
    assert outcome.grown < MOST_GROWN, outcome.grown


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
STRICT = {"kind": "cosine_mad", "threshold": {"kind": "three_sigma", "sigmas": 1.0}}
COURSES: dict[str, dict[str, Any]] = {
    **{name: changes for name, changes in SCENARIOS.items() if name != "vanilla"},
    "async": {**OWN, "schedule": {"kind": "asynchronous"}, "network": NETWORK},
    "turns": {
        "detectors": [{"kind": "safesplit", "threshold": {"kind": "fixed", "above": 1e9}}],
        "schedule": {"kind": "per_client"},
    },
    "rounds": {"detectors": [{**STRICT, "response": "rollback"}]},
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
    small = {"clients": {"count": 3}, "schedule": {"rounds": 3}}
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
    assert [p.end for p in outcome.parties if p.site.number != bad] == ["finished"] * 2
    assert len(outcome.run.rounds) == 3
    with pytest.raises(Killed):
        stage.run(given, tmp_path / "again", ways, observers=[Kills(2)])
    again = stage.run(given, tmp_path / "again", {}, absent=[bad], resume=True)
    assert [party.end for party in again.parties] == ["finished"] * 2
    assert again.run.expelled.equals(outcome.run.expelled)
    for table in TABLES:
        one, other = (run.path / f"{table}.csv" for run in (outcome.run, again.run))
        assert not one.exists() or one.read_text() == other.read_text(), table


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
