"""Cuts of clients' own: who keeps how much of the network.

A server's trunk begins at the shallowest cut, and is entered where a client's head ends. HSplitLoRA
(Lin et al., 2025, arXiv:2505.02795) chooses such cuts by the clients' computing budgets. Here the
scenario names them, and the trunk's layers between two cuts learn from the clients that pass them
alone: they are not averaged with those layers of deeper heads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import Strict

Place = Annotated[int, Strict()] | str
ClientCuts = Place | tuple[Place, ...] | dict[str, Place]
"""One cut for all clients, one for each, or one by the client's device or name."""


def assign_cuts(
    cuts: ClientCuts,
    clients: Sequence[Iterable[str]],
    default: Place,
) -> list[Place]:
    """Return each client's cut; `clients` has the words by which each is known, its name first.

    >>> assign_cuts({"phone": 1}, [["Bonn", "phone"], ["Graz", "laptop"]], default=2)
    [1, 2]
    >>> assign_cuts(3, [[], []], default=2), assign_cuts((1, 3), [[], []], default=2)
    ([3, 3], [1, 3])
    """
    if isinstance(cuts, Mapping):
        return [next((cuts[w] for w in words if w in cuts), default) for words in clients]
    return list(cuts) if isinstance(cuts, tuple) else [cuts] * len(clients)


def read_cuts(value: object) -> object:
    """Return what a scenario has in its place; raise ValueError for what is no cut."""
    if isinstance(value, Mapping):
        if not value:
            raise ValueError("must name a device or a client, got {}")
        return {str(word): _read_cut(each) for word, each in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_read_cut, value))
    return value if value is None else _read_cut(value)


def _read_cut(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(
        f"got {value!r}; allowed: a cut of the model, a list with one for each client, or a "
        "mapping from devices or clients' names"
    )
