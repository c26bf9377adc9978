"""Averages of weights of which clients have different parts: each part among those who have it.

Where clients have cuts of their own, a shallow head is the beginning of a deeper one. A layer is
then averaged over the clients whose heads have it, weighted by their samples alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import Tensor

from simsplit.legs import ClientId
from simsplit.schedules.averaging import Averager, StrategyConfig, Update

Names = Mapping[ClientId, frozenset[str]]
"""The names of the weights that each client has."""


class OverlapAverager:
    """Averages of disjoint parts of the weights; each by the same strategy, with its own memory."""

    def __init__(self, parts: Sequence[Averager]) -> None:
        """Average these parts, which together have all weights."""
        self.parts = parts

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averaged weights of all parts."""
        return {name: tensor for part in self.parts for name, tensor in part.weights.items()}

    def average(self, round_number: int, updates: Mapping[ClientId, Update]) -> None:
        """Average each part over the clients that have sent it."""
        for part in self.parts:
            names = part.weights.keys()
            sent = {
                client: ({name: weights[name] for name in names}, samples)
                for client, (weights, samples) in updates.items()
                if names <= weights.keys()
            }
            part.average(round_number, sent)

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next call depends on, as copies."""
        return {name: tensor for part in self.parts for name, tensor in part.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        for part in self.parts:
            own = {n: t for n, t in state.items() if n.split(".", 1)[1] in part.weights}
            part.load(own)


AnyAverager = Averager | OverlapAverager


def build_averager(
    config: StrategyConfig,
    weights: Mapping[str, Tensor],
    where: str,
    buffers: frozenset[str],
    names: Names | None,
) -> AnyAverager:
    """Build the average of clients who have these parts of the weights; None: all have all."""
    if names is None:
        return Averager(config, weights, where, buffers)
    parts = split_overlaps(weights, names.values())
    return OverlapAverager([Averager(config, part, where, buffers) for part in parts])


def split_overlaps(
    weights: Mapping[str, Tensor], parts: Iterable[Collection[str]]
) -> list[dict[str, Tensor]]:
    """Split weights by who has them.

    >>> one = Tensor([1.0])
    >>> split = split_overlaps({"a": one, "b": one, "c": one}, [{"a", "b"}, {"a", "b", "c"}])
    >>> [sorted(each) for each in split]
    [['a', 'b'], ['c']]
    """
    kinds = list(dict.fromkeys(map(frozenset, parts)))
    groups: dict[tuple[bool, ...], dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        groups.setdefault(tuple(name in kind for kind in kinds), {})[name] = tensor
    return list(groups.values())
