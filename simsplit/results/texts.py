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

    kept = sorted((path / FOLDER).glob("round-*.jsonl"))
    if not kept:
        raise RunError(f"{path} has no recovered texts; did it have attacks?")
    return pd.read_json(kept[-1], lines=True)
