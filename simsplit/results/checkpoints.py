"""A checkpoint is a folder of one round, with tensors in safetensors and the rest in JSON.

Nothing is ever unpickled. A folder is written under another name and renamed when it is complete.
It is used only if its tensors have the size and digest that its JSON states; otherwise the
checkpoint before it is used.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from torch import Tensor

from simsplit.errors import RunError, SimsplitError, format_list
from simsplit.foreign import read_bytes
from simsplit.results.directory import make_folder, replace, writing
from simsplit.results.read_tables import explain_read_errors
from simsplit.results.row_file import RESTED, check_rows
from simsplit.results.shapes import Shape, read_shaped
from simsplit.states import stack_clients, unstack_clients

_TENSORS = "state.safetensors"
_FACTS = "state.json"
_NAME = "round-{:06d}"


@dataclass
class Progress:
    """All of a run's state that is not a tensor."""

    round: int = 0
    """The number of rounds done."""
    tables: dict[str, int] = field(default_factory=dict)
    """The bytes of each table at the time of the checkpoint."""
    holder: int | None = None
    """The client that holds the shared weights."""
    bytes_up: int = 0
    bytes_down: int = 0
    best: float | None = None
    """The best value of the figure that early stopping watches."""
    waited: int = 0
    """The number of evaluations since the best value."""
    elapsed_s: float = 0.0
    simulated_s: float = 0.0
    """Simulated time of the rounds so far, if the scenario has a network."""
    epsilon_next: dict[str, float] = field(default_factory=dict)
    """The epsilon that each client would reach in one more round, where clients count it."""


class _ProgressShape(Shape):
    """The shape of a progress, as JSON has it."""

    round: NonNegativeInt
    tables: dict[str, NonNegativeInt]
    holder: NonNegativeInt | None
    bytes_up: NonNegativeInt
    bytes_down: NonNegativeInt
    best: float | None
    waited: NonNegativeInt
    elapsed_s: float
    simulated_s: float


class _TensorsShape(Shape):
    """The shape of what is known of the file of tensors."""

    bytes: NonNegativeInt
    blake2b: str


class _FactsShape(Shape):
    """The shape of a checkpoint's facts."""

    scenario: str
    progress: _ProgressShape
    tensors: _TensorsShape


def save(
    folder: Path, tensors: Mapping[str, Tensor], progress: Progress, digest: str, keep: int
) -> None:
    """Write a checkpoint, then remove older ones, so that `keep` of them remain."""
    from safetensors.torch import save as to_bytes

    tensors = stack_clients(tensors)
    blob = to_bytes({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    facts = {
        "scenario": digest,
        "progress": asdict(progress),
        "tensors": {"bytes": len(blob), "blake2b": _hash(blob)},
    }
    target = folder / _NAME.format(progress.round)
    partial = folder / f"{target.name}.partial"
    with writing(target):
        make_folder(folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        replace(partial / _TENSORS, blob)
        replace(partial / _FACTS, json.dumps(facts, indent=2).encode())
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _sync(folder)
        # Only now: until the new checkpoint is in place, the older ones are all that a run has.
        for old in _list_folders(folder)[keep:]:
            shutil.rmtree(old)


def load(folder: Path, digest: str) -> tuple[dict[str, Tensor], Progress, list[str]] | None:
    """Return the newest undamaged checkpoint, and a complaint for each newer one that is damaged.

    Return None if there is no checkpoint at all. Raise RunError if the newest undamaged one belongs
    to another scenario, or if all are damaged.
    """
    complaints: list[str] = []
    for candidate in _list_folders(folder):
        try:
            tensors, facts = _read(candidate)
        except RunError as error:
            complaints.append(f"{candidate.name} is damaged ({error})")
            continue
        if facts["scenario"] != digest:
            raise RunError(
                f"{candidate} was written by another scenario; only its length, stopping, "
                "checkpoints, threads and output may change. Resume with the scenario.yaml that "
                "lies in the run directory, or give another --out"
            )
        kept, names = facts["progress"], [each.name for each in fields(Progress)]
        if lacking := [name for name in names if name not in kept]:
            complaints.append(f"{candidate.name} is damaged (it lacks {format_list(lacking)})")
            continue
        return tensors, Progress(**{name: kept[name] for name in names}), complaints
    if complaints:
        raise RunError(f"no usable checkpoint in {folder}: {'; '.join(complaints)}")
    return None


def load_round(folder: Path, digest: str, number: int) -> dict[str, Tensor]:
    """Return the tensors saved after one round; raise RunError if they are missing or damaged."""
    place = folder / _NAME.format(number)
    try:
        tensors, facts = _read(place)
    except RunError as error:
        raise RunError(f"no usable checkpoint of round {number} in {folder}: {error}") from None
    if facts["scenario"] != digest:
        raise RunError(f"{place} was written by another scenario")
    return tensors


def list_rounds(folder: Path) -> list[int]:
    """List the rounds that have a checkpoint, the newest first."""
    return [_get_round(place) or 0 for place in _list_folders(folder)]


def list_named_slots(folder: Path) -> dict[int, np.ndarray]:
    """Return the places of the rows that each checkpoint names, by round; damaged ones name none.

    Only these are read: whoever resumes from a checkpoint has checked it.
    """
    from safetensors import SafetensorError, safe_open

    named = {}
    for place in _list_folders(folder):
        with suppress(OSError, SafetensorError), safe_open(place / _TENSORS, "pt") as opened:
            named[_get_round(place) or 0] = opened.get_tensor(f"{RESTED}slots").numpy()
    return named


def drop_after(folder: Path, number: int) -> None:
    """Remove the checkpoints of later rounds."""
    for place in _list_folders(folder):
        if (_get_round(place) or 0) > number:
            shutil.rmtree(place)


def compute_digest(text: str) -> str:
    """Return a short fingerprint of a resolved scenario."""
    return _hash(text.encode())


@contextmanager
def refuse_misfits(path: Path) -> Iterator[None]:
    """Open a context in which tensors of a checkpoint that do not fit a run are a RunError.

    `path` is the run's.
    """
    try:
        yield
    except SimsplitError:
        raise
    except Exception as error:
        why, *_ = f"{type(error).__name__}: {error}".splitlines()
        raise RunError(
            f"{path}: its checkpoint does not fit its scenario ({why}); remove it to go on from "
            "the one before"
        ) from error


def _read(candidate: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint; raise RunError if it is damaged."""
    from safetensors.torch import load as from_bytes

    facts = read_shaped(candidate / _FACTS, _FactsShape)
    with explain_read_errors(candidate / _TENSORS):
        if (number := facts["progress"]["round"]) != _get_round(candidate):
            raise ValueError(f"it is of round {number}")
        blob = read_bytes(candidate / _TENSORS, facts["tensors"]["bytes"])
        if len(blob) != facts["tensors"]["bytes"]:
            raise ValueError(f"{len(blob)} of {facts['tensors']['bytes']} bytes are there")
        if _hash(blob) != facts["tensors"]["blake2b"]:
            raise ValueError("its content is not what was written")
        tensors = unstack_clients(from_bytes(blob))
    check_rows(candidate.parent, tensors)
    return tensors, facts


def _list_folders(folder: Path) -> list[Path]:
    """List the folders of complete checkpoints, the newest first."""
    folders = (path for path in folder.glob("round-*") if path.is_dir() and not path.is_symlink())
    found = [(number, path) for path in folders if (number := _get_round(path)) is not None]
    # By number: of names, round-1000000 comes before round-999999, and would be removed as old.
    return [path for _, path in sorted(found, reverse=True)]


def _get_round(place: Path) -> int | None:
    """Return the round that a checkpoint's folder names; None if it names none."""
    number = place.name.removeprefix("round-")
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 16 else None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _sync(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
