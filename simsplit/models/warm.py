"""Initial weights from a file: of another run, of an export, or with torchvision's names."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError, format_list
from simsplit.states import unstack_clients

FIELD = "model.weights"
_FILE = "model.safetensors"
_BEFORE = (
    *("server/", "holder/", "average/shared/weights.", "average/trunk/weights."),
    "client/0/own.0.",
)
"""Prefixes of the weights' names in a checkpoint; later ones overwrite earlier ones."""


def load_weights(segment: nn.Module, called: tuple[str, str], path: Path) -> nn.Module:
    """Load weights from a file into a segment, in place, and return the segment.

    Weights are found by their names in the whole network, or with the prefix `head.`, `trunk.` or
    `tail.`. `called` is the segment, and the prefix of its names in the whole network. Head and
    trunk must be in the file completely; a tail for other classes keeps its fresh weights.
    """
    (owner, before), stored = called, _read(path, _get_modified_time(path))
    missing = []
    with torch.no_grad():
        for name, tensor in segment.state_dict(keep_vars=True).items():
            weight = stored.get(f"{owner}.{name}", stored.get(f"{before}{name}"))
            if weight is None or weight.shape != tensor.shape:
                got = "nothing" if weight is None else "x".join(map(str, weight.shape))
                missing.append(f"{owner}.{name} ({'x'.join(map(str, tensor.shape))}, got {got})")
            else:
                tensor.copy_(weight)
    if missing and owner != "tail":
        raise ScenarioError(FIELD, f"{path} does not fit the {owner}: {format_list(missing, 3)}")
    return segment


def _get_modified_time(path: Path) -> float:
    file = _find_file(path)
    return file.stat().st_mtime


def _find_file(path: Path) -> Path:
    """Return the file of weights that a path names: itself, or in an export's or run's folder."""
    if path.is_file():
        return path
    checkpoints = sorted(path.glob("checkpoints/round-*/state.safetensors"), reverse=True)
    for file in (path / _FILE, *checkpoints):
        if file.is_file():
            return file
    raise ScenarioError(
        FIELD,
        f"{path} has no weights; allowed: a .safetensors file, a folder that `simsplit export` "
        "wrote, or a run directory",
    )


@lru_cache(maxsize=2)
def _read(path: Path, changed: float) -> dict[str, Tensor]:
    """Read all weights of a file, by name; a checkpoint's other tensors are left out."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    del changed  # a part of the cache's key only: a file that was written again is read again
    try:
        tensors: dict[str, Tensor] = unstack_clients(load_file(_find_file(path)))
    except (OSError, SafetensorError) as error:
        raise ScenarioError(FIELD, f"{path} is not a safetensors file ({error})") from None
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    for prefix in _BEFORE:
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = tensor
    return weights
