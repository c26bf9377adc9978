"""The network that a run trained is rebuilt here from its last checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from simsplit.assembly.assembler import fingerprint, refuse_others
from simsplit.assembly.ownership import Ownership
from simsplit.assembly.trained_parties import fill, join_heads, read_portions
from simsplit.data.batches import Batch
from simsplit.data.samples import DataInfo
from simsplit.errors import RunError
from simsplit.legs import ClientId, Leg
from simsplit.methods.method import Step
from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork, LaidOut, Owner
from simsplit.models.quantised import collect_weights
from simsplit.models.tied import COPY, TABLE, are_tied, untie
from simsplit.parties.on_disk import read_client
from simsplit.plugins import Given
from simsplit.results import CHECKPOINTS, SCENARIO, Run, checkpoints
from simsplit.scenario import Scenario, load_scenario
from simsplit.scenario.loading import pass_again
from simsplit.states import select_below

OWNERS: tuple[Owner, ...] = ("head", "trunk", "tail")


class Trained(nn.Module):
    """A trained network in inference mode: head, trunk and tail, with the methods between them."""

    def __init__(
        self,
        scenario: Scenario,
        network: CutNetwork,
        stacks: tuple[Stack, Stack],
        facts: dict[str, Any],
    ) -> None:
        """Join the parts; `facts` is the content of the run's `data.json`."""
        super().__init__()
        self.head, self.trunk, self.tail = network.head, network.trunk, network.tail
        self.client, self.server = stacks
        self.methods = nn.ModuleList([stack.modules for stack in stacks])
        self.scenario, self.facts = scenario, facts
        self.eval()

    @property
    def classes(self) -> list[str]:
        """The names of the outputs' classes."""
        return list(self.facts["classes"])

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """Return the tail's outputs for the head's inputs: normalised images, numbers or tokens."""
        mask = context[0] if context else None
        step = Step(0, 0, 0, self.scenario.seed, training=False, mask=mask)
        topology, batch = self.scenario.crossings, Batch(x, x, torch.arange(len(x)), *context)
        made = topology.headed(self.head, batch)
        sent = _send_across(Leg.SMASHED, self.client, self.server, made, step)
        features = self.trunk(sent, *topology.beside(batch))
        features = _send_across(Leg.FEATURES, self.server, self.client, features, step)
        return cast("Tensor", self.tail(features, *context))

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return class numbers for images as bytes (N x C x H x W), or for numbers as in the data.

        Bytes are normalised as in training.
        """
        x = torch.as_tensor(inputs)
        if x.dtype == torch.uint8:
            mean, std = (torch.tensor(self.facts[name]).view(-1, 1, 1) for name in ("mean", "std"))
            x = (x.float() / 255 - mean) / std
        return cast("Tensor", self(x).argmax(-1))

    @property
    def tied(self) -> dict[str, str]:
        """Names that `weights` leaves out, and the weights that they name: a common table."""
        return {COPY: TABLE} if are_tied(self.head, self.tail) else {}

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by the whole network's names.

        If two segments have a name in common, all names begin with `head.`, `trunk.` or `tail.`.
        """
        return merge_segments({name: self._collect_weights(name) for name in OWNERS})

    def _collect_weights(self, owner: Owner) -> dict[str, Tensor]:
        """Return a segment's weights by their names in the whole network."""
        model, state = self.scenario.model, collect_weights(getattr(self, owner))
        if owner == "tail" and self.tied:
            del state[COPY.removeprefix("tail.")]
        before = model.name_prefixes.get(owner, "") if isinstance(model, LaidOut) else ""
        return {f"{before}{key}": tensor for key, tensor in state.items()}


def merge_segments(parts: Mapping[Owner, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the weights of segments by one name each, with the segment's if two have one name."""
    names = [key for state in parts.values() for key in state]
    apart = len(set(names)) < len(names)
    return {
        (f"{part}.{key}" if apart else key): tensor
        for part, state in parts.items()
        for key, tensor in state.items()
    }


def _send_across(leg: Leg, sender: Stack, receiver: Stack, x: Tensor, step: Step) -> Tensor:
    """Return the values that the other side decodes after they have crossed on a leg."""
    tensors = sender.pack(leg, sender.encode(x, step), step)
    return receiver.lift(receiver.unpack(leg, tensors, step), step)


def load_trained(
    run: Run | str | Path,
    client: ClientId | str | None = None,
    plugins: Given = (),
    *,
    model: Any = None,  # noqa: ANN401 - what `run` takes
) -> Trained:
    """Return the network of a run's last checkpoint.

    `client` selects one network, by number or name, if clients have heads of their own. `model` is
    a network like the one that the run was given, if it was given one; its weights are replaced.

    >>> trained("runs/first").predict(images)  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else Run.load(run)
    scenario = load_scenario(run.path / SCENARIO, plugins=plugins)
    pass_again(scenario, model=model)
    if isinstance(client, str):
        client = run.client_names.find(client)
    tensors = load_checkpoint(run, scenario, client)
    with checkpoints.refuse_misfits(run.path):
        return _rebuild(scenario, tensors, run.data, client)


def load_checkpoint(run: Run, scenario: Scenario, client: ClientId | None) -> dict[str, Tensor]:
    """Return the tensors of a run's last checkpoint; raise RunError if there is none.

    Of clients that rested on disk, they are those of `client` alone.
    """
    digest = checkpoints.compute_digest(scenario.identity())
    checkpoint = checkpoints.load(run.path / CHECKPOINTS, digest)
    if checkpoint is None:
        raise RunError(f"{run.path} has no checkpoint; did the run write one?")
    tensors = checkpoint[0]
    number = choose_client(scenario, client)
    with checkpoints.refuse_misfits(run.path):
        own = read_client(run.path / CHECKPOINTS, tensors, scenario.clients.count, number)
    return tensors | {f"client/{number}/{name}": tensor for name, tensor in own.items()}


def _rebuild(
    scenario: Scenario,
    tensors: Mapping[str, Tensor],
    facts: dict[str, Any],
    client: ClientId | None,
) -> Trained:
    """Build a network and fill it with a checkpoint's tensors."""
    info = DataInfo(tuple(facts["sample"]), len(facts["classes"]), texts=scenario.reads_texts)
    if scenario.parties:
        shapes = tuple(each.shape for each in read_portions(facts))
        info = replace(info, parts=shapes)
    owners = Ownership(scenario, info, torch.device("cpu"))
    model, stacks = owners.model, (owners.client_stack, owners.server_stack)
    refuse_others(fingerprint([model.head, model.trunk, model.tail]), tensors.get("frozen"))
    if scenario.parties:
        return _rebuild_parties(owners, tensors, facts)
    number = choose_client(scenario, client)
    modules = {"head": owners.depths.get_head(number), "trunk": model.trunk, "tail": model.tail}
    state = select_state(tensors, number)
    if client is not None and scenario.clients.heads == "per_client":
        # Of a crowd only those that took part are kept; the others are as they began.
        modules |= owners.start(client)
        model.head, model.tail = modules["head"], modules["tail"]
    if COPY in state and are_tied(modules["head"], modules["tail"]):
        untie(modules["head"])  # a run of the time when each end learned a copy
    fill(modules, state)
    fill({"method": stacks[0].modules}, state)
    fill({"method": stacks[1].modules}, select_below(tensors, "server/"))
    stacks[0].receive_announcements(stacks[1].announce())
    if owners.depths.differ:
        clients = scenario.clients.model_copy(update={"cut": None})
        own = {"model": owners.depths.get_config(number), "clients": clients}
        scenario = scenario.model_copy(update=own)
        model = replace(model, head=modules["head"], trunk=owners.depths.get_rest(number))
    return Trained(scenario, model, stacks, facts)


def _rebuild_parties(
    owners: Ownership, tensors: Mapping[str, Tensor], facts: dict[str, Any]
) -> Trained:
    """Build the network that parties trained together; its head takes whole samples."""
    scenario, model = owners.scenario, owners.model
    states = [select_state(tensors, party) for party in scenario.parties]
    reader = states[scenario.label_party]
    fill({"trunk": model.trunk, "tail": model.tail}, reader)
    fill({"method": owners.list_server_modules()["method"]}, select_below(tensors, "server/"))
    heads = join_heads(owners, states, facts)
    # What a head sends has crossed within it: no method is left for the smashed data.
    stacks = [Stack((), each.features, each.side, each.sent) for each in heads.stacks[0]]
    return Trained(scenario, replace(model, head=heads), (stacks[0], stacks[1]), facts)


def choose_client(scenario: Scenario, client: ClientId | None) -> ClientId:
    """Return the client whose network is wanted; raise RunError if it is missing or unknown."""
    count = scenario.clients.count
    if scenario.has_own_models and client is None:
        raise RunError(
            f"clients have heads of their own; choose one with client, from 0 to {count - 1}"
        )
    if client is not None and not 0 <= client < count:
        raise RunError(f"no client {client}; allowed: 0 to {count - 1}")
    return client or 0


def select_state(state: Mapping[str, Tensor], client: ClientId) -> dict[str, Tensor]:
    """Return the weights of a client's network: the server's, shared ones and the client's own."""
    own = (f"client/{client}/own.{number}." for number in range(2))
    shared = ("holder/", "average/shared/weights.", "average/trunk/weights.")
    return {
        name: tensor
        for part in ("server/", *shared, *own)
        for name, tensor in select_below(state, part).items()
    }
