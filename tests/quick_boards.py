"""The quick boards, in two parts of like length: a test file of each keeps both cores busy."""

from pathlib import Path

import pytest

from simsplit import board
from simsplit.evidence import evidence_tables, measurements

OF_IMAGES = ("images", "bytes", "backdoor", "members")
OF_TEXTS_AND_LABELS = ("texts", "generation", "labels", "vertical")


def check_complete(track: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a quick board from nothing, and assert that every defence has its place.

    It is measured from Python: the command would take a signal that is to end the tests for its
    own, and a test run that is stopped from outside would read as a board that is not complete.
    """
    monkeypatch.chdir(folder)
    for module in (measurements, evidence_tables):
        monkeypatch.setattr(module, "find_shipped_results", lambda: folder / "none")
    measured = board(track, "quick", measure=True)
    strengths = {each["strength"]: each for each in measured.to_dict("records")}
    assert not any(each["lacking"] for each in strengths.values())
    assert all(each["seeds"] for each in strengths.values())
    # undefended clients are read better than a guess, or send all of their bytes
    assert strengths["none"]["leak"] > 0.2
    assert strengths["none"]["loss"] == 0
