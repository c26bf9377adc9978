"""What the README tells a newcomer to type works as it stands."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from simsplit.scenario import parse

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_explained_scenario_is_valid_and_the_shipped_one() -> None:
    explained = parse(yaml.safe_load(blocks("yaml")[0]))
    quickstart = ROOT / "scenarios" / "quickstart.yaml"
    shipped = parse(yaml.safe_load(quickstart.read_text(encoding="utf-8")))
    same = ("data", "model", "topology", "clients", "method", "schedule", "train")
    assert all(getattr(explained, name) == getattr(shipped, name) for name in same)


@pytest.mark.parametrize("name", ["sign", "nearest"])
def test_the_parts_in_20_lines_are_those_that_the_tests_run(name: str) -> None:
    file = ROOT / "examples" / "plugins" / f"{name}.py"
    assert file.read_text(encoding="utf-8") in blocks("python")
    assert f"examples/plugins/{name}.py" in README


def test_every_command_named_exists() -> None:
    from simsplit.__main__ import app

    named = set(re.findall(r"^simsplit (\w+)", README, flags=re.MULTILINE))
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert named
    assert named <= known


def test_every_file_named_exists() -> None:
    named = re.findall(r"(?:scenarios|examples|docs)/[\w/]+\.(?:yaml|py|png)", README)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_rooms_are_those_of_the_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    rooms = re.findall(r"^([| ]) (\w+)  +\S", README.split("## How the code is organised")[1], re.M)
    told = "".join(f"{' | ' if same == '|' else ', '}{room}" for same, room in rooms)
    assert told.removeprefix(", ") == ", ".join(layers["layers"])


def test_every_dict_that_a_plugin_may_export_is_named() -> None:
    from simsplit.plugins.parts import EXPORTS

    assert not [name for name in EXPORTS if f"| `{name}` |" not in README]


def test_the_table_of_parts_is_what_the_command_prints() -> None:
    from simsplit.catalogue import catalogue

    (table,) = catalogue("compatibility")
    command = "simsplit list compatibility"
    between = f"<!-- {command} --format markdown -->\n(.*?)\n<!-- end of {command} -->"
    (told,) = re.findall(between, README, flags=re.DOTALL)
    assert told == table.markdown(), f"paste anew what '{command} --format markdown' prints"
