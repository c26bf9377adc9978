import json
import shutil

import pytest
from builders import scenario

from simsplit import run
from simsplit.results import Run, saved_scenario
from simsplit.scenario.files import dump, merge


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """One real run of a single round, from which the tests' variants are made."""
    given = scenario(
        name="finished",
        data={"train_samples": 60, "test_samples": 20, "validation": 0.2},
        clients={"count": 2},
        schedule={"rounds": 1},
    )
    return run(given, tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def variant(finished_run, tmp_path):
    """A copy of the run with other fields and other figures."""

    def make(name, scenario=None, last=None, total=None, **summary):
        path = tmp_path / name
        shutil.copytree(finished_run.path, path)
        values = merge(saved_scenario(path), {"name": name, **(scenario or {})})
        (path / "scenario.yaml").write_text(dump(values))
        facts = json.loads((path / "summary.json").read_text()) | {"name": name} | summary
        for chosen in ("last", "best_on_validation", "best_on_test"):
            facts[chosen] = facts.get(chosen) and facts[chosen] | (last or {})
        facts["bytes"]["total"] = total or facts["bytes"]["total"]
        (path / "summary.json").write_text(json.dumps(facts))
        return Run.load(path)

    return make
