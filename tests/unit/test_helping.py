"""`simsplit explain` knows every error by its name, and `doctor` shows this machine."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from gists import says
from typer.testing import CliRunner

from simsplit import errors
from simsplit.__main__ import app
from simsplit.errors import (
    DataError,
    Fault,
    OutOfRangeError,
    PluginError,
    RunError,
    RunFailedError,
    ScenarioError,
    SimsplitError,
)
from simsplit.report.grouping import refuse_unfinished
from simsplit.terminal.error_kinds import KINDS, find_kind
from simsplit.terminal.examining import FEATURES

FAULT = Fault("mine.py", "method", "mine", "encode", "a tensor", "None")
ROOT = Path(__file__).parents[2]
NAMED = {
    "E-SCENARIO-01": ScenarioError("method.0.kind", "unknown 'x', allowed: raw"),
    "E-SCENARIO-02": ScenarioError("model.lora", "needs peft: pip install '.[text]'"),
    "E-SCENARIO-04": ScenarioError("seed", "must be positive"),
    "E-SCENARIO-05": ScenarioError("servers", "only an API asks several"),
    "E-SCENARIO-06": ScenarioError("scenario", "cannot read quikstart: No such file or directory"),
    "E-DATA-01": DataError("data.source.path: no file /x.csv"),
    "E-DATA-02": DataError("data.source.path: x.csv is not in UTF-8"),
    "E-DATA-03": DataError("data.source.target: no column 'x'"),
    "E-RUN-01": RunError("x: no such folder"),
    "E-RUN-04": RunError("x: rounds.csv is damaged"),
    "E-RUN-05": RunError("x: another process first"),
    "E-FAILED-01": RunFailedError("loss not finite"),
    "E-PLUGIN-01": PluginError(FAULT),
    "E-PROTOCOL-01": OutOfRangeError("not finite"),
    "E-COMMAND-01": SimsplitError("--set takes FIELD=VALUE, got 'x'"),
    "E-FILE-01": FileNotFoundError(2, "no", "x"),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_error_has_its_kinds_name(name):
    assert find_kind(NAMED[name]).name == name


def test_a_run_that_has_not_finished_is_not_damaged():
    running = SimpleNamespace(path="x", summary={"status": "running"})
    with pytest.raises(RunError) as refused:
        refuse_unfinished([SimpleNamespace(run=running)])  # type: ignore[list-item]
    assert find_kind(refused.value).name == "E-RUN-05"


def test_every_class_has_a_kind_that_takes_any_message():
    names = [kind.name for kind in KINDS]
    assert sorted(set(names)) == sorted(names)
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, SimsplitError):
            nearest = next(c for c in cls.__mro__ if any(kind.of is c for kind in KINDS))
            own = [kind.pattern for kind in KINDS if kind.of is nearest]
            assert own[-1] == ""
            assert all(own[:-1])


def run_command(*words):
    return CliRunner().invoke(app, [*words])


def test_explain_prints_cause_and_cure_and_lists_all_names():
    outcome = run_command("explain", "e-data-03")
    kind = next(kind for kind in KINDS if kind.name == "E-DATA-03")
    assert all(text in outcome.output for text in (kind.cause, kind.cure))
    listed = run_command("explain").output
    assert [line.split()[0] for line in listed.splitlines()] == [kind.name for kind in KINDS]
    wrong = run_command("explain", "E-DATA-3")
    assert isinstance(wrong.exception, SimsplitError)
    assert "E-DATA-03" in str(wrong.exception)


def test_an_error_ends_with_the_command_that_explains_it(simsplit):
    code, _, err = simsplit("show", "nothing-here")
    assert code == 2
    assert says(err, "error: nothing-here ... simsplit explain E-RUN-01)")


def test_doctor_imports_no_torch_and_says_what_is_missing():
    lacks = "e.FEATURES['none'] = ('text', ('nothing_here',))"
    ask = f"import json, sys, simsplit.terminal.examining as e; {lacks}; "
    ask += "print(json.dumps([e.examine(), 'torch' in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    facts, has_torch = json.loads(done.stdout)
    assert not has_torch
    assert "[text]" in facts["missing"]["none"]
    assert facts["packages"]["torch"]
    assert facts["disk_free_bytes"] > 0


def test_doctor_prints_one_screen():
    outcome = run_command("doctor")
    assert outcome.exit_code == 0
    assert len(outcome.output.splitlines()) <= 24
    assert {"versions", "memory", "disk", "GPUs", "cache"} <= {
        line.split()[0] for line in outcome.output.splitlines() if line.strip()
    }
    assert json.loads(run_command("doctor", "--json").output)["processors"] >= 1


def test_features_name_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {extra for extra, _ in FEATURES.values()} <= extras.keys()
