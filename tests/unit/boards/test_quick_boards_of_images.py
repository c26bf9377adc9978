"""Quick boards are measured from nothing: every cell ends, and every defence has its place."""

from pathlib import Path

import pytest
from quick_boards import OF_IMAGES, OF_TEXTS_AND_LABELS, check_complete

from simsplit.boards.track import list_tracks


def test_every_track_is_in_a_part() -> None:
    assert sorted((*OF_IMAGES, *OF_TEXTS_AND_LABELS)) == sorted(list_tracks())


@pytest.mark.slow
@pytest.mark.parametrize("track", OF_IMAGES)
def test_a_quick_board_is_complete(
    track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_complete(track, tmp_path, monkeypatch)
