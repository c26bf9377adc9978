"""Curves of attacks in a run directory, a file a judgement."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.results.directory import replace, writing

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "convergence"


def save_curves(path: Path, number: int, rows: Sequence[Mapping[str, object]]) -> None:
    """Write the curves of a round's judgement, if there are any."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with writing(path / FOLDER):
        (path / FOLDER).mkdir(parents=True, exist_ok=True)
        replace(path / FOLDER / f"round-{number:06d}.csv", text.getvalue().encode())


def load_curves(path: Path) -> "pd.DataFrame":
    """A row for each attack and part of its iterations, judged last; may be empty."""
    import pandas as pd

    folders = [path / FOLDER, *sorted(path.glob(f"attacks/*/{FOLDER}"))]
    files = [file for folder in folders for file in sorted(folder.glob("round-*.csv"))[-1:]]
    return pd.concat(map(pd.read_csv, files), ignore_index=True) if files else pd.DataFrame()
