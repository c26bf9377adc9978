"""CONTRIBUTING.md lists each file that a shipped part touches: every file that names all parts."""

import re
from pathlib import Path

import pytest

from simsplit.attacks.on_labels import ON_LABELS
from simsplit.attacks.on_members import ON_MEMBERS
from simsplit.attacks.on_sessions import ON_SESSIONS
from simsplit.catalogue import collect_groups

ROOT = Path(__file__).parents[2]
FOLDERS = ("simsplit", "tests", "tools", "docs")
GROUPS = ("methods", "detectors", "attacks", "poisons")
OF_EVERY_PART = "Every part"
ELSEWHERE = {*ON_SESSIONS, *ON_LABELS, *ON_MEMBERS, "handed_weights"}
"""Attacks whose contracts go over their registry, or are unit tests of their own."""


def list_files(title: str) -> set[str]:
    """Return the files that a list of CONTRIBUTING.md names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"**{title}")
    section = re.split(r"^\*\*", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"`([\w/.-]+\.(?:py|md|bib|txt))`", section))


def title_of(group: str) -> str:
    return f"{'An' if group == 'attacks' else 'A'} {group.removesuffix('s')}**"


@pytest.mark.parametrize("group", GROUPS)
def test_files_that_name_every_part_of_a_group_are_listed(group: str) -> None:
    kinds = set(collect_groups()[group]) - {"malicious"}
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
    naming = {
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix in {".py", ".md", ".bib", ".txt"}
        and kinds <= set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    }
    assert "tools/golden/cases.py" in naming, "or it looked at nothing"
    assert naming <= list_files(OF_EVERY_PART) | list_files(title_of(group))


@pytest.mark.parametrize("group", GROUPS)
def test_the_parts_of_a_group_stand_in_the_files_that_are_listed(group: str) -> None:
    """Each kind is in one of the registries, in a contract, and on the page of threats."""
    listed = list_files(title_of(group))
    there = [file for file in listed if "NAME" not in file and "/" in file]
    assert not [file for file in there if not (ROOT / file).is_file()]
    for place in (f"simsplit/{group}/", "tests/contracts/", "docs/threats.md"):
        files = [ROOT / file for file in there if file.startswith(place)]
        words = {w for f in files for w in re.findall(r"\w+", f.read_text(encoding="utf-8"))}
        missing = set(collect_groups()[group]) - {"malicious"} - words
        assert not missing - ELSEWHERE, place


def test_what_tests_ask_of_every_part_is_listed() -> None:
    common = list_files(OF_EVERY_PART)
    assert {"simsplit/catalogue/references.bib", "tests/golden/sentences.txt"} <= common
