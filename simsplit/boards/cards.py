"""A card hands in a user's rows: what they were measured with, where, and the plugin's digest."""

import json
from pathlib import Path
from typing import Any

from simsplit.boards.entries import Board
from simsplit.boards.guests import Guest
from simsplit.errors import RunError, SimsplitError
from simsplit.evidence.measurements import Measurement
from simsplit.results.directory import make_folder, replace


def write_card(board: Board, guest: Guest, file: Path) -> None:
    """Write the rows of a user's methods and attacks into a file.

    Raises:
        SimsplitError: where there are none.
        RunError: where the file cannot be written.
    """
    rows = _list_own_rows(board)
    if not rows:
        raise SimsplitError("--card: nothing of yours is measured on this board; give --method")
    card = {
        "track": board.name,
        "tier": board.tier,
        "methods": [dict(each) for each in guest.methods],
        "attacks": [dict(each) for each in guest.attacks],
        "plugins": [
            {"name": Path(str(each["name"])).name, "digest": each["digest"]}
            for each in guest.plugins.describe_origins()
        ],
        "rows": [_describe(row) for row in rows],
    }
    try:
        make_folder(file.parent)
        replace(file, json.dumps(card, indent=1, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror or error}") from None


def _list_own_rows(board: Board) -> list[Measurement]:
    """List the rows that a user's plugins have a part in."""
    own = {digest for cell in board.own_cells for digest in cell.digests.values()}
    return [row for row in board.table.fresh if row.digest in own]


def _describe(row: Measurement) -> dict[str, Any]:
    """Return a row as plain values, without the path of anything."""
    return {
        "setting": row.setting,
        "seed": row.seed,
        "figure": row.figure,
        "value": row.value,
        "digest": row.digest,
        "version": row.version,
        "machine": row.machine,
        "threads": row.threads,
        "minutes": row.minutes,
        "date": row.date,
    }
