"""Recovered texts beside the private ones, a file a judgement."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.results.directory import replace, writing
from simsplit.results.images import FOLDER

if TYPE_CHECKING:
    import pandas as pd


def save_texts(path: Path, number: int, texts: Sequence[dict[str, object]]) -> None:
    """Write what attacks made of the targets after a round into a run directory."""
    folder = path / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
        lines = [json.dumps(text, ensure_ascii=False) for text in texts]
        replace(folder / f"round-{number:06d}.jsonl", ("\n".join(lines) + "\n").encode())


def load_texts(path: Path) -> "pd.DataFrame":
    """A row an attack and text, at the last judgement: what was private, what was recovered."""
    import pandas as pd

    folders = [path / FOLDER, *sorted(path.glob(f"attacks/*/{FOLDER}"))]
    kept = [sorted(folder.glob("round-*.jsonl"))[-1:] for folder in folders]
    tables = [pd.read_json(file, lines=True) for files in kept for file in files]
    if not tables:
        raise RunError(f"{path} has no recovered texts; did it have attacks?")
    together = pd.concat(tables)
    # each table has the guesses that need no attack, of the same targets
    return together.drop_duplicates(["attack", "text"], ignore_index=True)
