"""This module finds the pretrained models that come with the package.

Each folder is what `simsplit pretrain FOLDER --tier TIER --seed DRAW --half` made, on a machine
whose torch, Python and instructions its `pretraining.json` names. On another machine the command
makes another model of the same form. Results depend on the files, so rows of measurements have
their digests.
"""

import hashlib
from functools import cache
from pathlib import Path

from simsplit.pretrain.pretraining import FACTS
from simsplit.pretrain.tiers import BY_SEED, DRAWS, find_named

FOLDER = Path(__file__).parent / "models"
"""The folder of the models, in the package."""


def find_shipped(name: str) -> Path | None:
    """Return the folder of a named model, such as `demo` or `demo@1`; None if it does not ship."""
    folder = FOLDER / f"{name.partition('@')[0]}-{find_named(name).seed}"
    return folder if (folder / FACTS).is_file() else None


@cache
def digest_shipped(name: str) -> str | None:
    """Return a digest of all that results on a shipped model depend on; None for other models.

    `demo@seed` stands for all of its draws.
    """
    tier = name.removesuffix(BY_SEED)
    names = [f"{tier}@{draw}" for draw in range(DRAWS.get(tier, 0))] if tier != name else [name]
    folders = [folder for each in names if (folder := find_shipped(each)) is not None]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.name != FACTS]
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()
