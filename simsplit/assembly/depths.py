"""Heads of several depths, where clients have cuts of their own, and the trunk behind each.

A head is that of the same model cut there: it starts with the weights that it would have if all
clients had this cut. The trunk is one, that of the shallowest cut; a deeper head's packets enter it
behind the layers that the head has.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from simsplit.data import DataInfo
from simsplit.legs import ClientId
from simsplit.models.fresh import CutNetwork, Owner, Place, SplitConfig
from simsplit.models.frozen import share_frozen
from simsplit.models.joins import join_parts
from simsplit.models.recomputing import recompute_units
from simsplit.models.tied import tie
from simsplit.scenario import Scenario


def place_segment(
    module: nn.Module, owner: Owner, scenario: Scenario, device: torch.device
) -> nn.Module:
    """Move a module to the device, and freeze it unless its segment learns."""
    if not any(weight.is_meta for weight in module.parameters()):  # as of a model too large
        module = module.to(device)
    if owner not in scenario.model.learning:
        module.requires_grad_(False)
    if scenario.train.channels_last:
        module = module.to(memory_format=torch.channels_last)
    return module


def prepare_segment(segment: nn.Module, scenario: Scenario) -> nn.Module:
    """Let a segment that trains compute activations again, if the scenario says so."""
    return recompute_units(segment) if scenario.train.checkpointing else segment


class Depths:
    """The heads of a scenario's clients, one for each cut, and what follows them at the server."""

    def __init__(
        self, scenario: Scenario, info: DataInfo, model: CutNetwork, device: torch.device
    ) -> None:
        self._scenario, self._info, self._device = scenario, info, device
        self._config, self._model = scenario.model, model
        self._places: list[Place] = scenario.places if scenario.has_own_cuts else []
        self._parties = scenario.parties
        self._own_heads: dict[ClientId, nn.Module] = {0: model.head}
        """The heads of parties, which take samples of different shapes."""
        self._heads: dict[Place, nn.Module] = {}
        self._rests: dict[Place, nn.Module] = {}
        self._is_tied = False

    def tie_heads(self) -> None:
        """Let all heads embed tokens with the tail's table from now on."""
        self._is_tied = True
        for head in (self._model.head, *self._heads.values()):
            tie(head, self._model.tail)

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
        if self._parties:
            if client not in self._own_heads:
                own = self._make_head(self._config, self._info.of_party(client))
                self._own_heads[client] = own
            return self._own_heads[client]
        if not self._is_deeper(client):
            return self._model.head
        place = self._places[client]
        if place not in self._heads:
            made = self._make_head(self.get_config(client), self._info)
            # Its first layers' frozen weights are those of the shallowest head.
            self._heads[place] = share_frozen(made, self._model.head)
            if self._is_tied:
                tie(made, self._model.tail)
        return self._heads[place]

    def _make_head(self, model: SplitConfig, info: DataInfo) -> nn.Module:
        """Make the head of a deeper cut, or a party's, as it is before training."""
        scenario = self._scenario
        made = model.segment("head", info.shape, info.classes, scenario.seed)
        placed = place_segment(made, "head", scenario, self._device)
        return prepare_segment(placed, scenario)

    def get_rest(self, client: ClientId) -> nn.Module:
        """Return the trunk from a client's cut on, whose modules are those of the whole one."""
        if self._parties:
            return _Joined(self._model.trunk, self._scenario, self._info, client)
        if not self._is_deeper(client):
            return self._model.trunk
        place = self._places[client]
        if place not in self._rests:
            rest = self._config.enter_trunk(self._model.trunk, place)
            self._rests[place] = prepare_segment(rest, self._scenario)
        return self._rests[place]

    def list_entries(self) -> dict[ClientId, nn.Module]:
        """Return the trunks of clients with deeper heads."""
        clients = range(len(self._places))
        return {client: self.get_rest(client) for client in clients if self._is_deeper(client)}

    def list_kinds(self) -> list[Sequence[ClientId]]:
        """Group clients by their cuts, the shallowest first; one group where all have one cut."""
        if self._parties:
            return [[party] for party in self._parties]
        if not self._places:
            return [range(self._scenario.clients.count)]
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


class _Joined(nn.Module):
    """A trunk behind one party's head, where zeros stand for what the other parties send."""

    def __init__(
        self, trunk: nn.Module, scenario: Scenario, info: DataInfo, party: ClientId
    ) -> None:
        super().__init__()
        self.trunk, self.party, self.how = trunk, party, scenario.joining.join
        self.shapes = [scenario.model.compute_shapes(shape)[0] for shape in info.parts]

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        """Join the party's output with zeros, and run the trunk."""
        parts = [x.new_zeros(len(x), *shape) for shape in self.shapes]
        parts[self.party] = x
        out: Tensor = self.trunk(join_parts(parts, self.how), *beside)
        return out
