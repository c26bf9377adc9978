"""What the README tells a newcomer to type works as it stands."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from builders import TINY, finished

from simsplit.__main__ import _plugins
from simsplit.scenario import parse
from simsplit.scenario.files import merge

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_explained_scenario_is_valid_and_the_shipped_one() -> None:
    explained = parse(yaml.safe_load(blocks("yaml")[0]))
    quickstart = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    shipped = parse(yaml.safe_load(quickstart.read_text(encoding="utf-8")))
    same = ("data", "model", "topology", "clients", "method", "schedule", "train")
    assert all(getattr(explained, name) == getattr(shipped, name) for name in same)


def test_the_method_in_20_lines_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in blocks("python") if "METHODS" in block)
    (tmp_path / "readme_method.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    given = parse(merge(TINY, {"method": [{"kind": "sign"}]}), _plugins(["readme_method"]))
    run = finished(given, tmp_path / "run")
    assert run.live.progress.round == given.schedule.rounds


def test_every_command_named_exists() -> None:
    from simsplit.__main__ import app

    named = set(re.findall(r"^simsplit (\w+)", README, flags=re.MULTILINE))
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert named
    assert named <= known
