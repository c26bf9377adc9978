"""Files that a run directory keeps of what attacks recovered: one a judged round, in folders."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError
from simsplit.results.directory import AFTERWARDS, replace, writing

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

Row = Mapping[str, object]


@dataclass(frozen=True)
class RoundFiles:
    """The files of one folder that have one ending."""

    folder: str
    ending: str
    name: str = "round-{:06d}"

    def save(self, path: Path, number: int, content: bytes) -> None:
        """Write a round's file into a run directory, or into the folder of an attack."""
        folder = path / self.folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            replace(folder / f"{self.name.format(number)}.{self.ending}", content)

    def all_of(self, path: Path) -> list[Path]:
        """List the files of all rounds, in order."""
        return sorted((path / self.folder).glob(f"{self.name.partition('{')[0]}*.{self.ending}"))

    def newest_of(self, path: Path) -> list[Path]:
        """List the newest file of a run, and that of each attack made when the run was over."""
        return [file for each in (path, *afterwards(path)) for file in self.all_of(each)[-1:]]


IMAGES = RoundFiles("recovered", "safetensors")
"""Recovered images beside the originals, 8 bits a value."""
TEXTS = RoundFiles("recovered", "jsonl")
"""Recovered texts beside the private ones."""
ROWS = RoundFiles("recovered", "csv", "rows_{:04d}")
"""Recovered rows of numbers beside the originals."""
SESSIONS = RoundFiles("sessions", "jsonl")
"""Prompts and responses as they were read, beside the private ones."""
COMPONENTS = RoundFiles("components", "csv")
"""Principal components of what the server saw of targets: for pictures."""
CURVES = RoundFiles("convergence", "csv")
"""Figures of attacks with a part of their iterations."""


def afterwards(path: Path) -> Sequence[Path]:
    """Return the folders of attacks that were made when the run was over."""
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
    """Encode rows as JSON, a line each."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def load_images(path: Path, number: int | None = None) -> dict[str, "np.ndarray"]:
    """Load images by attack, `originals` among them: uint8, N x C x H x W; of the last judgement,
    or of one round's.
    """
    from safetensors.numpy import load_file

    kept = IMAGES.all_of(path)
    if number is not None:
        kept = [file for file in kept if file.stem == IMAGES.name.format(number)]
    if not kept:
        when = "" if number is None else f" after round {number}"
        raise RunError(f"{path} has no recovered images{when}; did it have attacks?")
    images: dict[str, np.ndarray] = load_file(kept[-1])
    return images


def load_texts(path: Path) -> "pd.DataFrame":
    """Load a row an attack and text, at the last judgement: the private one, the recovered one."""
    texts = _load_lines(TEXTS, path, ["attack", "text"], dtype=None)
    if texts.empty:
        raise RunError(f"{path} has no recovered texts; did it have attacks?")
    return texts


def load_sessions(path: Path) -> "pd.DataFrame":
    """Load a row per attack and session, at the last judgement: `prompt` and `response` as read,
    `private_prompt` and `private_response`; `tokens_prompt` and `tokens_response` are pairs, what a
    private token says and what it was read as. May be empty.
    """
    return _load_lines(SESSIONS, path, ["attack", "session"], dtype=False)


def load_components(path: Path) -> "pd.DataFrame":
    """Load a row for each judged round, view, adapter and target; may be empty."""
    return _load_csv(COMPONENTS.all_of(path))


def load_curves(path: Path) -> "pd.DataFrame":
    """Load a row for each attack and part of its iterations, judged last; may be empty."""
    return _load_csv(CURVES.newest_of(path))


def _load_lines(
    files: RoundFiles,
    path: Path,
    place: list[str],
    dtype: Any,  # noqa: ANN401 - what pandas takes
) -> "pd.DataFrame":
    import pandas as pd

    tables = [pd.read_json(file, lines=True, dtype=dtype) for file in files.newest_of(path)]
    if not tables:
        return pd.DataFrame()
    # each table has the guesses that need no attack, of the same targets
    return pd.concat(tables).drop_duplicates(place, ignore_index=True)


def _load_csv(files: Sequence[Path]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(map(pd.read_csv, files), ignore_index=True) if files else pd.DataFrame()
