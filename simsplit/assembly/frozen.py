"""A fingerprint of the weights that never learn.

They are in no checkpoint: whoever resumes a run builds them anew. That gives the same run only if
they are the same, and a model of the hub may have moved on, one in a folder been trained again.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from simsplit.errors import RunError


def fingerprint(modules: Iterable[nn.Module]) -> Tensor | None:
    """16 bytes that differ where a frozen weight does; None where every weight learns.

    Of modules as they are built: a phase may freeze others for a while.
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
    """RunError where a checkpoint was written beside other frozen weights than `ours`.

    Without a fingerprint it is an earlier version's, which holds the weights themselves.
    """
    if kept is not None and (ours is None or not torch.equal(ours, kept)):
        raise RunError(
            "the model's frozen weights are not those that the run began with, and checkpoints "
            "hold only what learns. Put the model back as it was (of a hub's, model.revision names "
            "a state), or start anew with another --out"
        )
