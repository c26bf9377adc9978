"""A run directory keeps what attacks recovered, in folders with a file for each judged round."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError
from simsplit.foreign import MOST_TABLE, read_bytes, read_text
from simsplit.results.directory import AFTERWARDS, make_folder, replace, writing
from simsplit.results.read_tables import explain_read_errors, read_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

Row = Mapping[str, object]


@dataclass(frozen=True)
class RoundFiles:
    """The files with one ending in one folder; each belongs to a round."""

    folder: str
    ending: str
    name: str = "round-{:06d}"

    def save(self, path: Path, number: int, content: bytes) -> None:
        """Write a round's file into a run directory, or into the folder of an attack."""
        folder = path / self.folder
        with writing(folder):
            make_folder(folder)
            replace(folder / f"{self.name.format(number)}.{self.ending}", content)

    def list_all(self, path: Path) -> list[Path]:
        """List the files of all rounds, in order."""
        return sorted((path / self.folder).glob(f"{self.name.partition('{')[0]}*.{self.ending}"))

    def list_newest(self, path: Path) -> list[Path]:
        """List the newest file of a run, and that of each attack on the finished run."""
        folders = (path, *list_attack_folders(path))
        return [file for each in folders for file in self.list_all(each)[-1:]]


IMAGES = RoundFiles("recovered", "safetensors")
"""Recovered images beside the originals, 8 bits a value."""
TEXTS = RoundFiles("recovered", "jsonl")
"""Recovered texts beside the private ones."""
ROWS = RoundFiles("recovered", "csv", "rows_{:04d}")
"""Recovered rows of numbers beside the originals."""
SESSIONS = RoundFiles("sessions", "jsonl")
"""Prompts and responses as attacks read them, beside the private ones."""
COMPONENTS = RoundFiles("components", "csv")
"""Principal components of what the server saw of targets, for pictures."""
ROC = RoundFiles("roc", "csv")
"""Shares of members and of others above each threshold, by attack and seat."""
CURVES = RoundFiles("convergence", "csv")
"""Figures of attacks with a part of their iterations."""


def list_attack_folders(path: Path) -> Sequence[Path]:
    """List the folders of attacks on the finished run."""
    return sorted(path.glob(AFTERWARDS))


def encode_images(images: "Mapping[str, Tensor]") -> bytes:
    """Encode pixels between 0 and 1, by attack, as safetensors."""
    from safetensors.torch import save

    return save(
        {
            name: (tensor.clamp(0, 1) * 255).round().byte().contiguous()
            for name, tensor in images.items()
        }
    )


def encode_lines(rows: Sequence[Row]) -> bytes:
    """Encode each row as a line of JSON."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def load_images(path: Path, number: int | None = None) -> dict[str, "np.ndarray"]:
    """Load the images of the last judgement, or of one round's, by attack.

    They are uint8, N x C x H x W; the true images are among them as `originals`.
    """
    from safetensors.numpy import load

    kept = IMAGES.list_all(path)
    if number is not None:
        kept = [file for file in kept if file.stem == IMAGES.name.format(number)]
    if not kept:
        when = "" if number is None else f" after round {number}"
        raise RunError(f"{path} has no recovered images{when}; did it have attacks?")
    with explain_read_errors(kept[-1]):
        images: dict[str, np.ndarray] = load(read_bytes(kept[-1], MOST_TABLE))
    return dict(sorted(images.items()))  # safetensors gives them in another order each time


def load_texts(path: Path) -> "pd.DataFrame":
    """Load a row per attack and text of the last judgement: the private and the recovered text."""
    texts = _load_lines(TEXTS, path, ["attack", "text"], dtype=None)
    if texts.empty:
        raise RunError(f"{path} has no recovered texts; did it have attacks?")
    return texts


def load_sessions(path: Path) -> "pd.DataFrame":
    """Load a row per attack and session of the last judgement; may be empty.

    Its columns are `prompt` and `response` as the attack read them, `private_prompt` and
    `private_response`. `tokens_prompt` and `tokens_response` are pairs: the text of a private
    token, and the text that it was read as.
    """
    return _load_lines(SESSIONS, path, ["attack", "session"], dtype=False)


def load_components(path: Path) -> "pd.DataFrame":
    """Load a row for each judged round, view, adapter and target; may be empty."""
    return _load_csv(COMPONENTS.list_all(path))


def load_rates(path: Path) -> "pd.DataFrame":
    """Load a row for each attack on members, seat and threshold of the last judgement, or none."""
    return _load_csv(ROC.list_newest(path))


def load_curves(path: Path) -> "pd.DataFrame":
    """Load the last judgement's row for each attack and part of its iterations; may be empty."""
    return _load_csv(CURVES.list_newest(path))


def _load_lines(
    files: RoundFiles,
    path: Path,
    place: list[str],
    dtype: Any,  # noqa: ANN401 - what pandas takes
) -> "pd.DataFrame":
    import pandas as pd

    tables = []
    for file in files.list_newest(path):
        with explain_read_errors(file):
            text = io.StringIO(read_text(file, MOST_TABLE))
            tables.append(pd.read_json(text, lines=True, dtype=dtype))
    if not tables:
        return pd.DataFrame()
    # Each file repeats the guesses that need no attack, for the same targets.
    return pd.concat(tables).drop_duplicates(place, ignore_index=True)


def _load_csv(files: Sequence[Path]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(map(read_table, files), ignore_index=True) if files else pd.DataFrame()
