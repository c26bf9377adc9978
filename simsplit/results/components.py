"""Principal components of what the server saw of targets, a file a judgement: for pictures."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.results.directory import replace, writing

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "components"


def save_components(path: Path, number: int, rows: Sequence[Mapping[str, object]]) -> None:
    """Write those of a round's judgement, if there are any; six digits are enough to draw."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()}
        )
    with writing(path / FOLDER):
        (path / FOLDER).mkdir(parents=True, exist_ok=True)
        replace(path / FOLDER / f"round-{number:06d}.csv", text.getvalue().encode())


def load_components(path: Path) -> "pd.DataFrame":
    """A row for each judged round, view, adapter and target; may be empty."""
    import pandas as pd

    files = sorted((path / FOLDER).glob("round-*.csv"))
    return pd.concat(map(pd.read_csv, files), ignore_index=True) if files else pd.DataFrame()
