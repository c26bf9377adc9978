"""Observers: all are notified, in order, and a record of rounds survives what a run survives."""

import json
from pathlib import Path

import pytest
from builders import StopAt, scenario

from simsplit import run, whole_run
from simsplit.observers import OBSERVERS
from simsplit.observers.jsonl import JsonlConfig
from simsplit.progress import Observer, Observers, RoundEnded, RunPlan, Status
from simsplit.rows import ClientRow, RoundRow


class Heard(Observer):
    """An observer that writes down its calls."""

    def __init__(self, name: str, calls: list[tuple[object, ...]]) -> None:
        self.name, self.calls = name, calls

    def begin(self, plan: RunPlan) -> None:
        self.calls.append((self.name, "begin", plan.done))

    def warn(self, message: str) -> None:
        self.calls.append((self.name, "warn", message))

    def step(self, done: int, total: int) -> None:
        self.calls.append((self.name, "step", done, total))

    def round(self, ended: RoundEnded) -> None:
        clients = [row["client"] for row in ended.clients]
        self.calls.append((self.name, "round", ended.row["round"], ended.elapsed_s, clients))

    def end(self, status: Status) -> None:
        self.calls.append((self.name, "end", status))


def end_round(number: int, elapsed_s: float = 1.0, **row: float) -> RoundEnded:
    clients = (ClientRow(number, 0), ClientRow(number, 1))
    return RoundEnded(number, RoundRow.of({"round": number, **row}), clients, {}, elapsed_s)


def plan(done: int) -> RunPlan:
    return RunPlan(Path(), "x", 9, done, 1, 1, "", "")


def lines(path: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (path / "rounds.jsonl").read_text().splitlines()]


def test_several_observers_hear_every_call_in_their_order() -> None:
    lines: list[tuple[object, ...]] = []
    both = Observers([Heard("a", lines), Heard("b", lines)])
    both.begin(plan(2))
    both.warn("careful")
    both.step(1, 3)
    both.round(end_round(3, 0.5))
    both.end("finished")
    expected = [("begin", 2), ("warn", "careful"), ("step", 1, 3), ("round", 3, 0.5, [0, 1])]
    expected.append(("end", "finished"))
    assert lines == [(name, *each) for each in expected for name in "ab"]


def test_a_run_tells_its_own_observers_beside_the_callers(tmp_path: Path) -> None:
    lines: list[tuple[object, ...]] = []
    given = scenario(observers=[{"kind": "jsonl"}, {"kind": "jsonl", "file": "twice.jsonl"}])
    made = run(given, tmp_path / "run", observers=[Heard("caller", lines)])
    assert [each[2] for each in lines if each[1] == "round"] == [1, 2]
    assert [each[4] for each in lines if each[1] == "round"] == [[0, 1, 2]] * 2
    assert lines[-1] == ("caller", "end", "finished")
    first = (made.path / "rounds.jsonl").read_text()
    assert first == (made.path / "twice.jsonl").read_text()
    document = [json.loads(line) for line in first.splitlines()]
    assert [row["test_accuracy"] for row in document] == made.rounds["test_accuracy"].tolist()
    assert all(row["elapsed_s"] > 0 for row in document)


@pytest.mark.slow
def test_a_record_has_each_round_once_whatever_happens_to_the_run(tmp_path: Path) -> None:
    given = scenario(observers=[{"kind": "jsonl"}], schedule={"rounds": 4}, checkpoint={"every": 2})
    steps = 3 * 2 * 3 + 1  # in the fourth round; the last checkpoint is the second's
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "run", observers=[StopAt(steps)])
    assert lines(tmp_path / "run") == [1, 2, 3]
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "tr')  # as a kill leaves it
    run(given, tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == [1, 2, 3, 4]


def test_a_round_that_is_taken_again_replaces_its_line_and_those_behind(tmp_path: Path) -> None:
    """As after a host was lost: training goes on from a checkpoint without a new beginning."""
    observer = JsonlConfig().build(tmp_path)
    observer.begin(plan(0))
    for number, loss in ((1, 0.1), (2, 0.2), (3, 0.3), (2, float("inf"))):
        observer.round(end_round(number, loss=loss))
    document = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [(row["round"], row["loss"]) for row in document] == [(1, 0.1), (2, None)]


def test_a_resumed_run_may_have_other_observers(tmp_path: Path) -> None:
    run(scenario(schedule={"rounds": 1}), tmp_path / "run")
    run(scenario(observers=[{"kind": "jsonl"}]), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == [2]
    late = JsonlConfig().build(tmp_path / "run")  # which has not heard of the first round
    late.begin(plan(2))
    for number in (3, 2, 3):
        late.round(end_round(number))
    assert lines(tmp_path / "run") == [2, 3]


@pytest.mark.parametrize("kind", OBSERVERS)
def test_an_observer_that_ships_is_called_as_its_kind(kind: str) -> None:
    assert OBSERVERS[kind](kind=kind).kind_name == kind  # type: ignore[call-arg]


class Unheard(Observer):
    """Cannot be warned, and counts how often it was to be."""

    dispensable = True

    def __init__(self) -> None:
        self.count = 0

    def warn(self, message: str) -> None:
        self.count += 1
        raise ConnectionError("no server answers")


def test_an_observer_that_fails_before_the_first_round_is_dropped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_run, "rehearse", lambda *_: ["one", "two"])
    failing, calls = Unheard(), list[tuple[object, ...]]()
    watching = [failing, Heard("other", calls)]
    # The run itself warns too: its noise has no guarantee, since the trunk learns.
    given = scenario(
        model={"kind": "simplecnn", "cut": "l1h"},
        train={"dp": {"multiplier": 1.0}},
        schedule={"rounds": 1},
    )
    whole_run.run(given, tmp_path / "run", observers=watching)
    assert sum(call[1] == "warn" for call in calls) > 3, "the run's warning is among them"
    assert failing.count == 1
    assert sum("Unheard failed" in str(call[2]) for call in calls if call[1] == "warn") == 1
