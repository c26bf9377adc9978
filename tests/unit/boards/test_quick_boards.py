"""Quick boards are measured from nothing: every cell ends, and every defence has its place."""

import json
from pathlib import Path

import pytest

from simsplit.boards.track import list_tracks
from simsplit.evidence import measurements, tables


@pytest.mark.slow
@pytest.mark.parametrize("track", list_tracks())
def test_a_quick_board_is_complete(
    track: str, simsplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for module in (measurements, tables):
        monkeypatch.setattr(module, "find_shipped_results", lambda: tmp_path / "none")
    code, out, err = simsplit("board", track, "--tier", "quick", "--jobs", 1, "--json")
    assert code == 0, err
    board = json.loads(out)
    assert board["missing"] == 0
    strengths = {each["strength"]: each for each in board["strengths"]}
    assert not any(each["lacking"] for each in strengths.values())
    # undefended clients are read better than a guess, or send all of their bytes
    assert strengths["none"]["leak"] > 0.2
    assert strengths["none"]["loss"] == 0
