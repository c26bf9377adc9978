"""Named tensors inside named tensors: how parts of a state share one flat dict of names."""

from collections.abc import Mapping

import torch
from torch import Tensor

CROWD = 32
"""What more clients than this have in one form is kept in one tensor: names have a price."""
_CLIENT, _ROWS, _WHOSE = "client/", "crowd/", "crowd.clients/"


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The part of a state whose names start with a prefix, under the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def by_client(state: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """What each client has of a state (`client/3/name`), found in one pass."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if name.startswith(_CLIENT):
            _, number, own = name.split("/", 2)
            found.setdefault(int(number), {})[own] = tensor
    return found


def stacked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same state with what a crowd of clients has under a name as the rows of one tensor."""
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(_CLIENT)}
    alike: dict[tuple[str, torch.dtype, torch.Size], dict[int, Tensor]] = {}
    for number, tensors in by_client(state).items():
        for own, tensor in tensors.items():
            alike.setdefault((own, tensor.dtype, tensor.shape), {})[number] = tensor
    for (own, _, _), found in alike.items():
        if len(found) <= CROWD or _ROWS + own in kept:
            kept |= {f"{_CLIENT}{number}/{own}": tensor for number, tensor in found.items()}
        else:
            kept[_ROWS + own] = torch.stack([tensor.detach() for tensor in found.values()])
            kept[_WHOSE + own] = torch.tensor(list(found))
    return kept


def unstacked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state that `stacked` was given; rows are views."""
    plain = {name: tensor for name, tensor in state.items() if not name.startswith((_ROWS, _WHOSE))}
    for own, rows in below(state, _ROWS).items():
        numbers = state[_WHOSE + own].tolist()
        names = (f"{_CLIENT}{number}/{own}" for number in numbers)
        plain |= dict(zip(names, rows.unbind(), strict=True))
    return plain
