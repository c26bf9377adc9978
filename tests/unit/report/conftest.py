import json
import shutil

import pytest
from builders import scenario
from written_leaks import write_leaks

from simsplit import run
from simsplit.results import Run, load_saved_scenario
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
        shutil.copytree(finished_run.path, path, ignore=shutil.ignore_patterns("checkpoints"))
        values = merge(load_saved_scenario(path), {"name": name, **(scenario or {})})
        (path / "scenario.yaml").write_text(dump(values))
        facts = json.loads((path / "summary.json").read_text()) | {"name": name} | summary
        for chosen in ("last", "best_on_validation", "best_on_test"):
            facts[chosen] = facts.get(chosen) and facts[chosen] | (last or {})
        facts["bytes"]["total"] = total or facts["bytes"]["total"]
        (path / "summary.json").write_text(json.dumps(facts))
        return Run.load(path)

    return make


@pytest.fixture
def with_labels(variant):
    """A run that two attacks looked at twice, by tables written by hand.

    The gradients of its second adapter tell most, and all gradients lie on one line; signs turn
    between the judgements.
    """

    def make(name="labels", seed=0, **fields):
        run = variant(name, {"seed": seed, **fields})
        lines, seen = [], "round,view,adapter,target,label,x,y"
        heads = ("round", "attack", "view", "adapter", "metric", "value")
        bounds = {"low": 0.2, "high": 1.0, "samples": 4, "known": 0}
        for number, sign in ((1, 1), (2, -1)):
            for adapter, leak in ((0, 0.6), (1, 0.5 + number / 4)):
                lines.append((number, "spectral", "gradient", adapter, "auc", leak))
            lines.append((number, "kmeans", "features", 0, "accuracy", 0.75))
            lines.append((number, "kmeans", "features", 0, "purity", 0.99))
            lines.append((number, "chance", "", 0, "auc", 0.55))
            lines.append((number, "chance", "", 0, "accuracy", 0.56))
            lines.append((number, "chance", "", 0, "purity", 0.57))
            lines.append((number, "majority", "", 0, "accuracy", 0.5))
            rows = [seen]
            for target in range(4):
                x, y, label = sign * (target - 1.5), sign * (target % 2 - 0.5), target // 2
                rows.append(f"{number},features,0,{target},{label},{x},{y}")
                rows += [f"{number},gradient,{n},{target},{label},{x},1e-7" for n in (0, 1)]
            (run.path / "components").mkdir(exist_ok=True)
            (run.path / f"components/round-{number:06d}.csv").write_text("\n".join(rows) + "\n")
        made = [dict(zip(heads, line, strict=True)) | bounds for line in lines]
        write_leaks(run.path, "labels", made)
        return Run.load(run.path)

    return make
