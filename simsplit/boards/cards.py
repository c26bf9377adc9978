"""A card hands in a user's rows: what they were measured with, where, and the plugin's digest."""

import json
from pathlib import Path

from simsplit.boards.card_checks import CardRow
from simsplit.boards.entries import Board
from simsplit.boards.guests import Guest
from simsplit.errors import RunError, SimsplitError
from simsplit.results.directory import make_folder, replace


def write_card(board: Board, guest: Guest, file: Path) -> None:
    """Write the rows of a user's methods and attacks into a file; refuse where there are none."""
    # a user's plugins have a part in these, and nothing of them is the path of anything
    own = {digest for cell in board.own_cells for digest in cell.digests.values()}
    rows = [row for row in board.table.fresh if row.digest in own]
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
        "rows": [{name: getattr(row, name) for name in CardRow.model_fields} for row in rows],
    }
    try:
        make_folder(file.parent)
        replace(file, json.dumps(card, indent=1, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write {file}: {error.strerror or error}") from None
