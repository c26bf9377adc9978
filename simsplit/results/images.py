"""Recovered images beside the originals, a file a judgement: 8 bits a value, in safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from simsplit.errors import RunError
from simsplit.results.directory import replace, writing

if TYPE_CHECKING:
    import numpy as np

FOLDER = "recovered"
PICTURE = "figures/recovered.png"


def save_images(path: Path, number: int, images: Mapping[str, Tensor]) -> None:
    """Write what attacks made of the targets after a round into a run directory."""
    from safetensors.torch import save

    levels = {
        name: (tensor.clamp(0, 1) * 255).round().byte().contiguous()
        for name, tensor in images.items()
    }
    folder = path / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
        replace(folder / f"round-{number:06d}.safetensors", save(levels))


def load_images(path: Path, number: int | None = None) -> dict[str, "np.ndarray"]:
    """Images by attack, `originals` among them: uint8, N x C x H x W; of the last judgement, or of
    one round's.
    """
    from safetensors.numpy import load_file

    kept = sorted((path / FOLDER).glob("round-*.safetensors"))
    if number is not None:
        kept = [file for file in kept if file.stem == f"round-{number:06d}"]
    if not kept:
        when = "" if number is None else f" after round {number}"
        raise RunError(f"{path} has no recovered images{when}; did it have attacks?")
    images: dict[str, np.ndarray] = load_file(kept[-1])
    return images
