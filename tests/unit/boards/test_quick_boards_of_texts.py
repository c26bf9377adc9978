"""Quick boards of texts and labels; see test_quick_boards_of_images."""

from pathlib import Path

import pytest
from quick_boards import OF_TEXTS_AND_LABELS, check_complete


@pytest.mark.slow
@pytest.mark.parametrize("track", OF_TEXTS_AND_LABELS)
def test_a_quick_board_is_complete(
    track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_complete(track, tmp_path, monkeypatch)
