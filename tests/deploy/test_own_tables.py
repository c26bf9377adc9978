"""A page's own tables, from two files to a deployment: its commands as one types them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from commands import Command
from deployed import free_port, needs_psi
from pages import command_lines, hand_written

from simsplit.results import Run

pytestmark = [pytest.mark.deploy, pytest.mark.slow]
PAGE = hand_written()["docs/howto/vertical.md"]
OWN = re.compile(r"mine\.yaml|attacked|runs/own|deploy keys")


def save_files(folder: Path) -> None:
    """Save the tables and scenarios that the page has one save."""
    (made,) = (text for language, text in PAGE.fences if language == "python")
    (folder / "make_tables.py").write_text(made)
    code, _, err = Command(folder, ("make_tables",)).run()
    assert not code, err
    for language, text in PAGE.fences:
        if language == "yaml" and (name := re.search(r"^name: (mine|attacked)$", text, re.M)):
            (folder / f"{name[1]}.yaml").write_text(text)


def list_commands() -> Iterator[list[str]]:
    """Yield the page's commands on these files, in their order."""
    for language, text in PAGE.fences:
        for words in command_lines(text) if not language else ():
            if OWN.search(shlex.join(words)):
                yield words[1:]


@needs_psi
def test_own_tables_are_run_planned_attacked_exported_and_deployed(tmp_path: Path) -> None:
    save_files(tmp_path)
    simsplit = Command(tmp_path, ("simsplit",))
    address = f"127.0.0.1:{free_port()}"
    typed = [[address if "8443" in word else word for word in words] for words in list_commands()]
    assert [words[0] for words in typed if words[0] in ("serve", "join")] == [
        "serve",
        *["join"] * 2,
    ]
    at_once = []
    for words in typed:
        if words[0] in ("serve", "join"):
            at_once.append(simsplit.start(*words))
            continue
        code, out, err = simsplit.run(*words)
        assert not code, (words, err)
        assert words[0] != "clients" or {"bank", "shop"} <= {*re.findall(r"\w+", out)}
    for process in at_once:
        _, err = process.communicate(timeout=180)
        assert not process.returncode, err
    deployed, inline = (Run.load(tmp_path / "runs" / name) for name in ("deployed", "own"))
    pd.testing.assert_frame_equal(deployed.rounds, inline.rounds)
    assert deployed.summary["deployed"]["as_simulated"]
