"""The quick boards, in two parts of like length: a test file of each keeps both cores busy."""

import json
from pathlib import Path

import pytest

from simsplit.evidence import measurements, tables

OF_IMAGES = ("images", "bytes", "backdoor")
OF_TEXTS_AND_LABELS = ("texts", "generation", "labels")


def check_complete(track: str, simsplit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a quick board from nothing, and assert that every defence has its place."""
    monkeypatch.chdir(folder)
    for module in (measurements, tables):
        monkeypatch.setattr(module, "find_shipped_results", lambda: folder / "none")
    code, out, err = simsplit("board", track, "--tier", "quick", "--jobs", 1, "--json")
    assert code == 0, err
    board = json.loads(out)
    assert board["missing"] == 0
    strengths = {each["strength"]: each for each in board["strengths"]}
    assert not any(each["lacking"] for each in strengths.values())
    # undefended clients are read better than a guess, or send all of their bytes
    assert strengths["none"]["leak"] > 0.2
    assert strengths["none"]["loss"] == 0
