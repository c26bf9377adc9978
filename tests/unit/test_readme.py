"""README is short, and what it shows is what ships."""

import re
import tomllib
from pathlib import Path

import yaml
from pages import hand_written

from simsplit.scenario import parse

ROOT = Path(__file__).parents[2]
README = hand_written()["README.md"]


def blocks(language: str) -> list[str]:
    return [inside for each, inside in README.fences if each == language]


def test_it_is_read_to_the_end() -> None:
    assert len(README.text.encode()) <= 8 * 1024


def test_the_explained_scenario_is_valid_and_the_shipped_one() -> None:
    explained = parse(yaml.safe_load(blocks("yaml")[0]))
    quickstart = ROOT / "scenarios" / "quickstart.yaml"
    shipped = parse(yaml.safe_load(quickstart.read_text(encoding="utf-8")))
    same = ("data", "model", "topology", "clients", "method", "schedule", "train")
    assert all(getattr(explained, name) == getattr(shipped, name) for name in same)


def test_the_plugin_is_one_that_the_tests_run() -> None:
    (shown,) = blocks("python")
    assert shown == (ROOT / "examples" / "plugins" / "sign.py").read_text(encoding="utf-8")


def test_the_picture_of_a_step_is_the_same_and_fits_a_page() -> None:
    picture = blocks("text")[0]
    assert picture in [inside for _, inside in hand_written()["docs/index.md"].fences]
    assert max(map(len, picture.splitlines())) <= 78  # what the site shows between its sidebars


def test_the_rooms_are_those_of_the_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    rooms = re.findall(
        r"^([| ]) (\w+)  +\S", hand_written()["docs/architecture.md"].text, re.MULTILINE
    )
    message = "".join(f"{' | ' if same == '|' else ', '}{room}" for same, room in rooms)
    assert message.removeprefix(", ") == ", ".join(layers["layers"])
