"""A fingerprint of frozen weights shows whether a resumed run has the same model.

Checkpoints do not hold weights that never learn; a resumed run builds them again. They can have
changed since: a model of the hub may have a new revision, one in a folder may have been retrained.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from simsplit.errors import RunError


def fingerprint(modules: Iterable[nn.Module]) -> Tensor | None:
    """Return 16 bytes that identify the frozen weights; None if every weight learns.

    Call it before training: a phase may freeze further weights for some rounds.
    """
    digest, some = hashlib.blake2b(digest_size=16), False
    for module in modules:
        for name, weight in module.named_parameters():
            if not weight.requires_grad:
                some = True
                digest.update(name.encode())
                plain = weight.detach().cpu().contiguous().flatten()
                digest.update(plain.view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8) if some else None


def refuse_others(ours: Tensor | None, kept: Tensor | None) -> None:
    """Raise RunError if a checkpoint was written with other frozen weights than `ours`.

    A checkpoint without a fingerprint (`kept` is None) holds the weights themselves.
    """
    if kept is not None and (ours is None or not torch.equal(ours, kept)):
        raise RunError(
            "the model's frozen weights differ from the ones that the run began with, and "
            "checkpoints hold only weights that learn. Restore the model (model.revision names the "
            "revision of a model on the hub), or start a new run with another --out"
        )
