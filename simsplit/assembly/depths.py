"""Heads of several depths, where clients have cuts of their own, and the trunk behind each.

A head is that of the same model cut there: it starts with the weights that it would have if all
clients had this cut. The trunk is one, that of the shallowest cut; a deeper head's packets enter it
behind the layers that the head has.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from simsplit.models.fresh import CutNetwork, Place, SplitConfig
from simsplit.packets import ClientId
from simsplit.scenario import Scenario

MakeHead = Callable[[SplitConfig], nn.Module]


class Depths:
    """The heads of a scenario's clients, one for each cut, and what follows them at the server."""

    def __init__(
        self,
        scenario: Scenario,
        model: CutNetwork,
        make_head: MakeHead,
        prepare: Callable[[nn.Module], nn.Module],
    ) -> None:
        """Prepare; `make_head` makes the head of a model before training, ready for its device."""
        self._config, self._model = scenario.model, model
        self._make_head, self._prepare = make_head, prepare
        self._count = scenario.clients.count
        self._places: list[Place] = scenario.places if scenario.has_own_cuts else []
        self._heads: dict[Place, nn.Module] = {}
        self._rests: dict[Place, nn.Module] = {}

    @property
    def differ(self) -> bool:
        """Whether clients' cuts differ."""
        return bool(self._places)

    def get_config(self, client: ClientId) -> SplitConfig:
        """Return the model as it is cut for a client."""
        return self._config.cut_at(self._places[client]) if self._places else self._config

    def get_place(self, client: ClientId) -> Place | None:
        """Return a client's cut; None where all have the model's own."""
        return self._places[client] if self._places else None

    def get_head(self, client: ClientId) -> nn.Module:
        """Return the head of a client's cut before training, to be copied."""
        if not self._is_deeper(client):
            return self._model.head
        place = self._places[client]
        if place not in self._heads:
            self._heads[place] = self._make_head(self.get_config(client))
        return self._heads[place]

    def get_rest(self, client: ClientId) -> nn.Module:
        """Return the trunk from a client's cut on, whose modules are those of the whole one."""
        if not self._is_deeper(client):
            return self._model.trunk
        place = self._places[client]
        if place not in self._rests:
            rest = self._config.enter_trunk(self._model.trunk, place)
            self._rests[place] = self._prepare(rest)
        return self._rests[place]

    def list_entries(self) -> dict[ClientId, nn.Module]:
        """Return the trunks of clients with deeper heads."""
        deeper = filter(self._is_deeper, range(len(self._places)))
        return {client: self.get_rest(client) for client in deeper}

    def list_kinds(self) -> list[Sequence[ClientId]]:
        """Group clients by their cuts, the shallowest first; one group where all have one cut."""
        if not self._places:
            return [range(self._count)]
        groups: dict[Place, list[ClientId]] = {}
        for client, place in enumerate(self._places):
            groups.setdefault(place, []).append(client)
        return sorted(groups.values(), key=lambda group: self._measure(group[0]))

    @property
    def deepest(self) -> ClientId:
        """A client of the deepest cut."""
        return self.list_kinds()[-1][0]

    def list_passed(self, weights: Mapping[str, Tensor]) -> dict[ClientId, frozenset[str]] | None:
        """List the names of the server's `weights` that each client's steps pass; None: all."""
        if not self._places:
            return None
        passed: dict[ClientId, frozenset[str]] = {}
        for group in self.list_kinds():
            rest = self.get_rest(group[0]).state_dict(keep_vars=True)
            behind = {id(tensor) for tensor in rest.values()}
            names = frozenset(
                name
                for name, tensor in weights.items()
                if not name.startswith("trunk.") or id(tensor) in behind
            )
            passed |= dict.fromkeys(group, names)
        return passed

    def _is_deeper(self, client: ClientId) -> bool:
        return self._measure(client) > 0

    def _measure(self, client: ClientId) -> int:
        """Return how many layers of the trunk a client's head has."""
        return self._config.count_passed(self._places[client]) if self._places else 0
