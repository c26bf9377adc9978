"""A client that sends what the run does not take costs itself its place, and nobody else theirs."""

from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from deployed import Deployment
from gists import says

from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
CASES: dict[str, dict[str, Any]] = {
    "own heads": {"clients": {"heads": "per_client"}},
    "shared head": {},
    "splitfed_v2": {"aggregation": "splitfed_v2"},
}


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, {"schedule": {"rounds": 3}}), changes))


def test_what_it_seals_for_others_neither(deployment: Deployment, tmp_path: Path) -> None:
    """The server cannot look into it, but its receiver shows that it is no hand-over."""
    lines: list[str] = []
    run = deployment.run(scenario(), tmp_path, spoils={1: 1}, hands=True, say=lines.append)
    assert [text for text in lines if says(text, "client 1 is expelled: ... hand-over")], lines
    ends = deployment.ends(3)
    assert ends[0] == ends[2] == "finished"
    assert "expelled" in ends[1]
    assert len(run.rounds) == 3


@pytest.mark.parametrize("case", CASES)
def test_the_run_goes_on_without_it(case: str, deployment: Deployment, tmp_path: Path) -> None:
    lines: list[str] = []
    given = scenario(**CASES[case])
    run = deployment.run(given, tmp_path, spoils={1: 5}, say=lines.append)
    assert [text for text in lines if "client 1 is expelled: it sent" in text]
    ends = deployment.ends(3)
    assert ends[0] == ends[2] == "finished"
    assert "expelled" in ends[1]
    assert len(run.rounds) == 3
    steps = run.clients.pivot_table(index="round", columns="client", values="steps")
    assert (steps[1] > 0).tolist() == [True, False, False]
    assert (steps[[0, 2]] > 0).all(axis=None)
    assert run.rounds["test_accuracy"].notna().all()


PARTIES: dict[str, Any] = {
    "topology": "vertical",
    "data": {
        "source": {"kind": "sklearn", "name": "iris"},
        "train_samples": None,
        "test_samples": None,
        "partition": {
            "kind": "columns",
            "groups": {"a": ["sepal *"], "b": ["petal length*"], "c": ["petal width*"]},
        },
    },
    "model": {"kind": "mlp", "widths": [6, 8, 5]},
    "clients": {"count": 3, "heads": "per_client"},
    "vertical": {"party": "a", "absent": "zeros"},
    "method": [
        {"kind": "lightsplit", "ratio": 2, "by": "party b"},
        {"kind": "quantise", "by": "party c"},
    ],
    "schedule": {"rounds": 3},
}


def test_a_hostile_party_of_three_costs_itself_alone(
    deployment: Deployment, tmp_path: Path
) -> None:
    lines: list[str] = []
    run = deployment.run(scenario(**PARTIES), tmp_path, spoils={1: 5}, say=lines.append)
    assert [text for text in lines if "is expelled: it sent" in text]
    ends = deployment.ends(3)
    assert ends[0] == ends[2] == "finished"
    assert "expelled" in ends[1]
    steps = run.clients.pivot_table(index="round", columns="client", values="steps")
    assert (steps[[0, 2]] > 0).all(axis=None)
    assert run.rounds["test_accuracy"].notna().all()
