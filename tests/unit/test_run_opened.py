"""A run as Python opens it: its scenario is one, with its fields as plain values too; notebooks."""

import json
import re

import pytest
from builders import run_to_end, scenario
from gists import gist

from simsplit import Run, RunError, Scenario, run
from simsplit.results import load_saved_scenario

PLUGIN = """
from typing import Literal
from simsplit import Method, MethodConfig

class Same(Method):
    def encode(self, z, step):
        return z

class SameConfig(MethodConfig):
    \"\"\"Nothing at all.\"\"\"
    kind: Literal["same"] = "same"
    def build(self, site):
        return Same()

METHODS = {"same": SameConfig}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    path = tmp_path_factory.mktemp("opened") / "a<b>&'c d"
    run_to_end(scenario(), path)
    return Run.load(path)


def test_the_scenario_of_a_run_is_one(done):
    assert isinstance(done.scenario, Scenario)
    assert done.scenario.clients.count == 3
    assert done.scenario == scenario()


def test_its_fields_are_read_as_those_of_a_dict(done):
    plain = load_saved_scenario(done.path)
    assert done.fields == plain
    assert done.scenario["clients"]["count"] == plain["clients"]["count"]
    assert dict(done.scenario) == {**done.scenario} == dict(done.scenario.items()) == plain
    assert done.scenario.get("no such") is None
    assert "seed" in done.scenario
    assert "clients.count" not in done.scenario
    with pytest.raises(KeyError):
        done.scenario["no such"]


def test_a_plugins_run_needs_it_for_the_scenario_alone(tmp_path):
    (tmp_path / "same.py").write_text(PLUGIN)
    given = {"method": [{"kind": "same"}], "schedule": {"rounds": 1}}
    values = scenario(schedule={"rounds": 1}).model_dump(mode="json") | given
    values["schedule"] = {"kind": "round_robin", "rounds": 1}
    made = run(values, tmp_path / "run", plugins=[tmp_path / "same.py"])
    assert made.scenario.method[0].kind_name == "same"
    opened = Run.load(tmp_path / "run")
    assert opened.fields["method"][0]["kind"] == "same"
    with pytest.raises(RunError, match=gist("same.py")):
        _ = opened.scenario
    again = Run.load(tmp_path / "run", plugins=[tmp_path / "same.py"])
    assert again.scenario.method[0].kind_name == "same"


def test_a_notebook_shows_how_it_went(done):
    html, accuracy = done._repr_html_(), done.summary["last"]["test_accuracy"]
    cells = [re.sub("<[^>]*>", "", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    assert cells[0].startswith("statusfinished, 2 of 2 rounds")
    assert f"{accuracy:.1%}" in html
    assert "MiB" in html or "KiB" in html
    assert "simsplit show" in html
    assert "<b>" not in html  # of the path's name
    assert "a&lt;b&gt;&amp;" in html
    assert "href" not in html
    (done.path / "report.html").write_text("")
    assert "href=" in done._repr_html_()
    (done.path / "report.html").unlink()


def test_a_notebook_shows_runs_that_have_no_results(tmp_path, done):
    (tmp_path / "scenario.yaml").write_text((done.path / "scenario.yaml").read_text())
    assert "without a summary" in Run.load(tmp_path)._repr_html_()
    facts = {"status": "failed", "rounds_done": 1, "rounds": 2, "reason": "<script>\x1b[1m"}
    (tmp_path / "summary.json").write_text(json.dumps(facts))
    html = Run.load(tmp_path)._repr_html_()
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "failed, 1 of 2 rounds" in html
