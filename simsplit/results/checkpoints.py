"""A checkpoint is a folder of one round, with tensors in safetensors and the rest in JSON.

Nothing is ever unpickled. A folder is written under another name and renamed when it is complete.
It is used only if its tensors have the size and digest that its JSON states; otherwise the
checkpoint before it is used.
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
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
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


def load_round(folder: Path, digest: str, number: int) -> dict[str, Tensor]:
    """Return the tensors saved after one round; raise RunError if they are missing or damaged."""
    place = folder / _NAME.format(number)
    try:
        tensors, facts = _read(place)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"no usable checkpoint of round {number} in {folder}: {error}") from None
    if facts["scenario"] != digest:
        raise RunError(f"{place} was written by another scenario")
    return tensors


def drop_after(folder: Path, number: int) -> None:
    """Remove the checkpoints of later rounds."""
    for place in _list_folders(folder):
        if int(place.name.removeprefix("round-")) > number:
            shutil.rmtree(place)


def compute_digest(text: str) -> str:
    """Return a short fingerprint of a resolved scenario."""
    return _hash(text.encode())


def _read(candidate: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    facts = json.loads((candidate / _FACTS).read_text(encoding="utf-8"))
    blob = (candidate / _TENSORS).read_bytes()
    if len(blob) != facts["tensors"]["bytes"]:
        raise ValueError(f"{len(blob)} of {facts['tensors']['bytes']} bytes are there")
    if _hash(blob) != facts["tensors"]["blake2b"]:
        raise ValueError("its content is not what was written")
    try:
        return unstack_clients(from_bytes(blob)), facts
    except SafetensorError as error:
        raise ValueError(f"its tensors cannot be read: {error}") from None


def _list_folders(folder: Path) -> list[Path]:
    """List the folders of complete checkpoints, the newest first."""
    folders = (path for path in folder.glob("round-*") if path.is_dir())
    return sorted((path for path in folders if path.suffix != ".partial"), reverse=True)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _sync(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
