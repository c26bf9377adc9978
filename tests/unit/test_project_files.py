"""Files beside the code that no run reads: they must fit the package all the same."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from builders import run_to_end, scenario

from simsplit.__main__ import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_image_copies_all_that_the_wheel_is_built_from():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "deploy/compose/Dockerfile").read_text(), re.M)
    copied = {name for line in copied for name in line.split()}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], "pyproject.toml"} <= copied
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= copied


def test_the_usual_ci_runs_the_same_script_on_pythons_that_are_allowed():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    assert {"run": "bash .ci/run"} in jobs["whole"]["steps"]
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    rows = jobs["default"]["strategy"]["matrix"]["include"]
    for row in rows:
        assert tuple(map(int, row["python"].split("."))) >= tuple(map(int, least.split(".")))
    assert {row["os"].split("-")[0] for row in rows} == {"ubuntu", "macos", "windows"}


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda file: file.stem
)
def test_a_form_for_issues_has_what_such_forms_need(file):
    form = yaml.safe_load(file.read_text())
    assert form["name"]
    assert form["description"]
    assert all(part["attributes"]["label"] for part in form["body"])
    named = [part["id"] for part in form["body"]]
    assert len(set(named)) == len(named)


def test_programs_find_all_pages_of_the_site(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from making.machine_readable import list_pages

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    text = list_pages(nav, "about")
    assert "](./)" in text
    assert "](reference/)" in text
    assert "](howto/sweeps/)" in text
    commands = re.findall(r"`(?:simsplit )?(\w+)[^`]*`", text.split("In Python")[0])
    assert len(commands) > 10
    assert set(commands) <= {command.name for command in app.registered_commands}
    assert text.count("](") == len(re.findall(r"\w\.md", (ROOT / "mkdocs.yml").read_text()))


def test_report_and_export_say_what_they_wrote(simsplit, tmp_path):
    path = run_to_end(scenario(name="run", schedule={"rounds": 1}), tmp_path / "run").path
    said = json.loads(simsplit("report", path, "--json")[1])
    assert Path(said["page"]).is_file()
    said = json.loads(simsplit("export", path, "--json")[1])
    assert said["form"] == "safetensors"
    assert all(Path(file).is_file() for file in said["files"])
