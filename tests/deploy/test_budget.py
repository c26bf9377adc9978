"""A deployed client counts what its samples have lost, and goes no further than its budget."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from deployed import Deployment
from gists import says

from simsplit.errors import RunFailedError
from simsplit.results import Run
from simsplit.running.live import LiveRun
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy

BUDGET: dict[str, Any] = {
    "clients": {"count": 2},
    "model": {"kind": "simplecnn", "cut": "l1h", "learns": ["head", "tail"]},
    "train": {"dp": {"clip": 1.0, "multiplier": 2.0}, "client": {"kind": "sgd", "lr": 0.01}},
    "schedule": {"rounds": 5},
    "stop": {"epsilon": 5.0},
    "evaluate": {"every": 5},
}


def private(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, BUDGET), changes))


def read_reason(run: Run) -> str:
    return str(json.loads((run.path / "summary.json").read_text())["reason"])


def test_a_run_ends_at_its_budget_and_goes_on_with_a_larger_one(
    deployment: Deployment, tmp_path: Path
) -> None:
    run = deployment.run(private(), tmp_path, mode="private")
    assert deployment.ends(2) == ["finished"] * 2
    done = run.summary["rounds_done"]
    assert 0 < done < 5
    assert says(read_reason(run), f"epsilon ... round {done + 1}")
    (entry,) = run.summary["privacy"]
    assert 0 < entry["epsilon"] <= 5

    # Nothing is sent twice by resuming a run that had ended, so its guarantee stays.
    again = deployment.run(private(), tmp_path, mode="private", resume=True)
    assert deployment.ends(2) == ["finished"] * 2
    assert again.summary["privacy"] == [entry]
    assert read_reason(again) == read_reason(run)

    larger = private(stop={"epsilon": 100.0})
    went_on = deployment.run(larger, tmp_path, mode="private", resume=True)
    assert deployment.ends(2) == ["finished"] * 2
    assert went_on.summary["rounds_done"] == 5
    assert entry["epsilon"] < went_on.summary["privacy"][0]["epsilon"] < 100


def test_clients_refuse_a_server_that_asks_for_more_than_the_budget(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(LiveRun, "find_spent", lambda *_: {})
    with pytest.raises(RunFailedError) as stopped:
        deployment.run(private(), tmp_path, mode="private", patience_s=8, say=heard.append)
    assert says(str(stopped.value), "did not connect")
    assert any(says(each, "client 0 has gone ... budget of epsilon") for each in heard), heard
    ends = deployment.ends(1)
    assert says(ends[0], "client 0 goes no further ... epsilon")
