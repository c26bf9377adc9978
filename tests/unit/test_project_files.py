"""Files beside the code that no run reads: they must fit the package all the same."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from builders import run_to_end, scenario
from commands import Command
from deployed import free_port

from simsplit.__main__ import app
from simsplit.deploy.keys import make_keys
from simsplit.scenario import load_scenario

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_words(service):
    return service["command"].split()


def test_containers_are_built_from_the_wheel_and_get_what_their_commands_name():
    folder = ROOT / "deploy/compose"
    image = (folder / "Dockerfile").read_text()
    assert "COPY dist/simsplit-*.whl /wheels/" in image
    assert (ROOT / ".dockerignore").read_text().split() == ["*", "!dist/*.whl"]
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for service in services.values():
        mounted = [volume.split(":")[1] for volume in service["volumes"]]
        for word in (word for word in read_words(service) if word.startswith("/")):
            inside = any(word == each or word.startswith(f"{each}/") for each in mounted)
            assert inside or word.startswith("/runs/"), (word, mounted)
    assert len(services) == 1 + load_scenario(folder / "scenario.yaml").clients.count


@pytest.mark.deploy
def test_what_the_containers_run_trains_together(tmp_path):
    """Their commands, with the volumes' folders of this machine in place of the containers'."""
    folder = ROOT / "deploy/compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    make_keys(tmp_path / "keys", 3, 2)
    door = f"127.0.0.1:{free_port()}"
    command = Command(tmp_path, ("simsplit",))
    started = []
    for name, service in services.items():
        places = {}
        for volume in service["volumes"]:
            outside, inside = volume.split(":")[:2]
            outside = outside.replace("../../keys", str(tmp_path / "keys"))
            places[inside] = str(folder / outside) if outside.startswith("./") else outside
        places |= {"/runs": str(tmp_path / name), "0.0.0.0:8443": door, "server:8443": door}
        words = [replace_start(word, places) for word in read_words(service)]
        started.append(command.start(*words))
    for process in started:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert (tmp_path / "server/deployed/summary.json").is_file()


def replace_start(word, places):
    for start in places:
        if word == start or word.startswith(f"{start}/"):
            return places[start] + word[len(start) :]
    return word


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
