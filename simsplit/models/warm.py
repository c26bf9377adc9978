"""Weights that a network starts from: of another run, of an export, or of torchvision's names."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError, listed
from simsplit.states import unstacked

FIELD = "model.weights"
_FILE = "model.safetensors"
_BEFORE = (
    *("server/", "holder/", "average/shared/weights.", "average/trunk/weights."),
    "client/0/own.0.",
)
"""What stands before the names of weights in a checkpoint; later ones win."""


def warmed(segment: nn.Module, called: tuple[str, str], path: Path) -> nn.Module:
    """The segment with weights from a file, by their names in the whole network or below `head.`,
    `trunk.` and `tail.`; `called` is which of these it is, and what its names lack.

    Head and trunk must be there in full; a tail for other classes keeps its fresh weights.
    """
    (owner, before), there = called, _read(path, _changed(path))
    missing = []
    with torch.no_grad():
        for name, tensor in segment.state_dict(keep_vars=True).items():
            found = there.get(f"{owner}.{name}", there.get(f"{before}{name}"))
            if found is None or found.shape != tensor.shape:
                got = "nothing" if found is None else "x".join(map(str, found.shape))
                missing.append(f"{owner}.{name} ({'x'.join(map(str, tensor.shape))}, got {got})")
            else:
                tensor.copy_(found)
    if missing and owner != "tail":
        raise ScenarioError(FIELD, f"{path} does not fit the {owner}: {listed(missing, 3)}")
    return segment


def _changed(path: Path) -> float:
    file = _file(path)
    return file.stat().st_mtime


def _file(path: Path) -> Path:
    """The file of weights that a path names: itself, or in an export's or a run's folder."""
    if path.is_file():
        return path
    checkpoints = sorted(path.glob("checkpoints/round-*/state.safetensors"), reverse=True)
    for file in (path / _FILE, *checkpoints):
        if file.is_file():
            return file
    raise ScenarioError(
        FIELD,
        f"{path} has no weights; name a .safetensors file, a folder that `simsplit export` wrote, "
        "or a run directory",
    )


@lru_cache(maxsize=2)
def _read(path: Path, changed: float) -> dict[str, Tensor]:
    """All tensors of a file, by name; of a checkpoint, those that are weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    del changed  # in the cache's key
    try:
        tensors: dict[str, Tensor] = unstacked(load_file(_file(path)))
    except (OSError, SafetensorError) as error:
        raise ScenarioError(FIELD, f"{path} is no safetensors file ({error})") from None
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    for prefix in _BEFORE:
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = tensor
    return weights
