"""Checkpoints: one folder a round, tensors in safetensors and the rest in JSON, written atomically.

Nothing here is ever unpickled. A folder counts only once it has been renamed into place, and only
if its tensors have the size and digest that its JSON states; otherwise the one before it is taken.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from simsplit.errors import RunError
from simsplit.results.directory import replace, writing
from simsplit.states import stacked, unstacked

_TENSORS = "state.safetensors"
_FACTS = "state.json"
_NAME = "round-{:06d}"


@dataclass
class Progress:
    """All of a run's state that is not a tensor."""

    round: int = 0
    """Rounds done."""
    tables: dict[str, int] = field(default_factory=dict)
    """Bytes of each table at that time."""
    holder: int | None = None
    """The client that holds what is shared."""
    bytes_up: int = 0
    bytes_down: int = 0
    best: float | None = None
    """The best value of the figure that early stopping watches."""
    waited: int = 0
    """Evaluations since."""
    elapsed_s: float = 0.0
    simulated_s: float = 0.0
    """Simulated time of the rounds so far, where there is a network."""


def save(
    folder: Path, tensors: Mapping[str, Tensor], progress: Progress, digest: str, keep: int
) -> None:
    """Write a checkpoint; older ones beyond `keep` go only once it stands."""
    from safetensors.torch import save as to_bytes

    tensors = stacked(tensors)
    blob = to_bytes({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    facts = {
        "scenario": digest,
        "progress": asdict(progress),
        "tensors": {"bytes": len(blob), "blake2b": _digest(blob)},
    }
    target = folder / _NAME.format(progress.round)
    partial = folder / f"{target.name}.partial"
    with writing(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        replace(partial / _TENSORS, blob)
        replace(partial / _FACTS, json.dumps(facts, indent=2).encode())
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _sync(folder)
        for old in _folders(folder)[keep:]:
            shutil.rmtree(old)


def load(folder: Path, digest: str) -> tuple[dict[str, Tensor], Progress, list[str]] | None:
    """The newest checkpoint that is whole, with a word on each newer one that is not.

    None where there is no checkpoint at all. RunError where they belong to another scenario, or
    where none of them is whole.
    """
    complaints: list[str] = []
    for candidate in _folders(folder):
        try:
            tensors, facts = _read(candidate)
        except (OSError, ValueError, KeyError) as error:
            complaints.append(f"{candidate.name} is damaged ({error})")
            continue
        if facts["scenario"] != digest:
            raise RunError(
                f"{candidate} was written by another scenario; only its length, stopping, "
                "checkpoints, threads and output may change. Resume with the scenario.yaml that "
                "lies in the run directory, or give another --out"
            )
        return tensors, Progress(**facts["progress"]), complaints
    if complaints:
        raise RunError(f"no usable checkpoint in {folder}: {'; '.join(complaints)}")
    return None


def at(folder: Path, digest: str, number: int) -> dict[str, Tensor]:
    """The tensors kept after one round; RunError where they are not there, or not whole."""
    place = folder / _NAME.format(number)
    try:
        tensors, facts = _read(place)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"no usable checkpoint of round {number} in {folder}: {error}") from None
    if facts["scenario"] != digest:
        raise RunError(f"{place} was written by another scenario")
    return tensors


def drop_after(folder: Path, number: int) -> None:
    """Remove what was kept after later rounds than this."""
    for place in _folders(folder):
        if int(place.name.removeprefix("round-")) > number:
            shutil.rmtree(place)


def digest_of(text: str) -> str:
    """A short fingerprint of a resolved scenario."""
    return _digest(text.encode())


def _read(candidate: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    facts = json.loads((candidate / _FACTS).read_text(encoding="utf-8"))
    blob = (candidate / _TENSORS).read_bytes()
    if len(blob) != facts["tensors"]["bytes"]:
        raise ValueError(f"{len(blob)} of {facts['tensors']['bytes']} bytes are there")
    if _digest(blob) != facts["tensors"]["blake2b"]:
        raise ValueError("its content is not what was written")
    try:
        return unstacked(from_bytes(blob)), facts
    except SafetensorError as error:
        raise ValueError(f"its tensors cannot be read: {error}") from None


def _folders(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    found = [path for path in folder.glob("round-*") if path.is_dir() and path.suffix != ".partial"]
    return sorted(found, reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _sync(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
