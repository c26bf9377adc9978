"""This module keeps the states of many parts in one flat dict of named tensors."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

CROWD = 32
"""If more clients than this have tensors of the same name and form, these are stacked into one.

A file with a name for each of thousands of clients' tensors is slow to write and to read.
"""
_CLIENT, _ROWS, _WHOSE = "client/", "crowd/", "crowd.clients/"


def select_below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the part of a state whose names start with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def split_by_client(state: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Split a state by client (`client/3/name`), in one pass over its names."""
    clients: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if name.startswith(_CLIENT):
            _, number, own = name.split("/", 2)
            clients.setdefault(int(number), {})[own] = tensor
    return clients


def stack_clients(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the tensors that many clients have under one name as rows of one tensor."""
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(_CLIENT)}
    alike: dict[tuple[str, torch.dtype, torch.Size], dict[int, Tensor]] = {}
    for number, owned in split_by_client(state).items():
        for own, tensor in owned.items():
            alike.setdefault((own, tensor.dtype, tensor.shape), {})[number] = tensor
    for (own, _, _), tensors in alike.items():
        # one name can have only one stack: clients with another form keep tensors of their own
        if len(tensors) <= CROWD or _ROWS + own in kept:
            kept |= {f"{_CLIENT}{number}/{own}": tensor for number, tensor in tensors.items()}
        else:
            kept[_ROWS + own] = torch.stack([tensor.detach() for tensor in tensors.values()])
            kept[_WHOSE + own] = torch.tensor(list(tensors))
    return kept


def unstack_clients(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `stacked`; the clients' tensors are views of the rows."""
    plain = {name: tensor for name, tensor in state.items() if not name.startswith((_ROWS, _WHOSE))}
    for own, rows in select_below(state, _ROWS).items():
        numbers = state[_WHOSE + own].tolist()
        names = (f"{_CLIENT}{number}/{own}" for number in numbers)
        plain |= dict(zip(names, rows.unbind(), strict=True))
    return plain


def measure_norm(tensors: Iterable[Tensor]) -> float:
    """Return the largest 2-norm of some tensors; NaN if any has a NaN, inf if one overflows."""
    floating = [t.detach() for t in tensors if t.is_floating_point() and t.numel()]
    if not floating:
        return 0.0
    return float(torch.stack(torch._foreach_norm(floating)).max())
