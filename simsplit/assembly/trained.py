"""The network that a run trained, put together again from its last checkpoint."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from simsplit.assembly.frozen import fingerprint, refuse_others
from simsplit.assembly.ownership import Ownership
from simsplit.data.batches import Batch
from simsplit.data.samples import DataInfo
from simsplit.errors import RunError
from simsplit.methods.base import Step
from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork, LaidOut, Owner
from simsplit.models.language import LanguageConfig
from simsplit.packets import ClientId, Leg
from simsplit.plugins import Given
from simsplit.results import CHECKPOINTS, SCENARIO, Run, checkpoints
from simsplit.scenario import Scenario, load_scenario
from simsplit.states import below

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OWNERS: tuple[Owner, ...] = ("head", "trunk", "tail")


class Trained(nn.Module):
    """Head, trunk and tail, and what the run's methods do between them; in inference mode."""

    def __init__(
        self,
        scenario: Scenario,
        network: CutNetwork,
        stacks: tuple[Stack, Stack],
        told: dict[str, Any],
    ) -> None:
        super().__init__()
        self.head, self.trunk, self.tail = network.head, network.trunk, network.tail
        self.client, self.server = stacks
        self.methods = nn.ModuleList([stack.modules for stack in stacks])
        self.scenario, self.told = scenario, told
        self.eval()

    @property
    def classes(self) -> list[str]:
        """What the outputs stand for."""
        return list(self.told["classes"])

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """The tail's outputs for what a head takes: normalised images, numbers, or tokens."""
        mask = context[0] if context else None
        step = Step(0, 0, 0, self.scenario.seed, training=False, mask=mask)
        topology, batch = self.scenario.crossings, Batch(x, x, torch.arange(len(x)), *context)
        made = topology.headed(self.head, batch)
        sent = _across(Leg.SMASHED, self.client, self.server, made, step)
        features = self.trunk(sent, *topology.beside(batch))
        features = _across(Leg.FEATURES, self.server, self.client, features, step)
        return cast("Tensor", self.tail(features, *context))

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Class numbers: of images as bytes (N x C x H x W), or of numbers as a run was given them.

        Bytes are normalised as in training.
        """
        x = torch.as_tensor(inputs)
        if x.dtype == torch.uint8:
            mean, std = (torch.tensor(self.told[name]).view(-1, 1, 1) for name in ("mean", "std"))
            x = (x.float() / 255 - mean) / std
        return cast("Tensor", self(x).argmax(-1))

    def weights(self) -> dict[str, Tensor]:
        """By name: the whole network's own names where segments have none in common, else below
        `head.`, `trunk.` and `tail.`.
        """
        parts = {name: self._named(name) for name in OWNERS}
        names = [key for state in parts.values() for key in state]
        apart = len(set(names)) < len(names)
        return {
            (f"{part}.{key}" if apart else key): tensor
            for part, state in parts.items()
            for key, tensor in state.items()
        }

    def _named(self, owner: Owner) -> dict[str, Tensor]:
        """A segment's weights by their names in the network as a whole."""
        model, state = self.scenario.model, getattr(self, owner).state_dict()
        before = model.called(owner)[1] if isinstance(model, LaidOut) else ""
        return {f"{before}{key}": tensor for key, tensor in state.items()}


def _across(leg: Leg, sender: Stack, receiver: Stack, x: Tensor, step: Step) -> Tensor:
    """What the other side makes of it, through the wire's format."""
    tensors = sender.pack(leg, sender.encode(x, step), step)
    return receiver.lift(receiver.unpack(leg, tensors, step), step)


def trained(run: Run | str | Path, client: ClientId | None = None, plugins: Given = ()) -> Trained:
    """The network of a run's last checkpoint; of clients with heads of their own, that of `client`.

    >>> trained("runs/first").predict(images)  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else Run.load(run)
    scenario = load_scenario(run.path / SCENARIO, plugins=plugins)
    found = checkpoints.load(run.path / CHECKPOINTS, checkpoints.digest_of(scenario.identity()))
    if found is None:
        raise RunError(f"{run.path} has no checkpoint; did the run come to one?")
    told = run.data
    info = DataInfo(tuple(told["sample"]), len(told["classes"]), texts=scenario.reads_texts)
    owners = Ownership(scenario, info, torch.device("cpu"))
    model, stacks = owners.model, (owners.client_stack, owners.server_stack)
    refuse_others(fingerprint([model.head, model.trunk, model.tail]), found[0].get("frozen"))
    modules = {"head": model.head, "trunk": model.trunk, "tail": model.tail}
    state = _state_of(found[0], _chosen(scenario, client))
    _fill(modules, state)
    _fill({"method": stacks[0].modules}, state)
    _fill({"method": stacks[1].modules}, below(found[0], "server/"))
    stacks[0].hear(stacks[1].announce())
    return Trained(scenario, model, stacks, told)


def _chosen(scenario: Scenario, client: ClientId | None) -> ClientId:
    own, count = scenario.clients.heads == "per_client", scenario.clients.count
    if own and client is None:
        raise RunError(
            f"clients have heads of their own; name one of them: client 0 to {count - 1}"
        )
    if client is not None and not 0 <= client < count:
        raise RunError(f"no client {client}; allowed: 0 to {count - 1}")
    return client or 0


def _state_of(state: Mapping[str, Tensor], client: ClientId) -> dict[str, Tensor]:
    """All weights that `client` would be served with: what is shared, its own, and the server's."""
    own = (f"client/{client}/own.{number}." for number in range(2))
    shared = ("holder/", "average/shared/weights.", "average/trunk/weights.")
    return {
        name: tensor
        for part in ("server/", *shared, *own)
        for name, tensor in below(state, part).items()
    }


def _fill(modules: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> None:
    """Copy a state into the modules that it names; what never learned is not in it."""
    with torch.no_grad():
        for owner, module in modules.items():
            for key, tensor in module.state_dict(keep_vars=True).items():
                if (kept := state.get(f"{owner}.{key}")) is not None:
                    tensor.copy_(kept)


def as_transformers(network: Trained) -> "PreTrainedModel":
    """A causal language model as the library has it: adapters merged, embeddings untied."""
    from simsplit.models.transformer import family_of, layers_of
    from simsplit.models.whole import saved

    config = network.scenario.model
    if not isinstance(config, LanguageConfig) or config.kind != "causal_lm" or config.sizes:
        raise RunError(
            "only a causal_lm that began as a pretrained model can be a transformers folder; use "
            "--as safetensors"
        )
    if config.trunk == "skipped":
        raise RunError("the trunk was left out (model.trunk: skipped); use --as safetensors")
    model = copy.deepcopy(saved(config.folder(), config.revision, None)[0])
    family, body = family_of(model), model.base_model
    head, trunk, tail = (_merged(part) for part in (network.head, network.trunk, network.tail))
    mine = [layer for part in (head, trunk, tail) for layer in layers_of(part)]
    for own, whole in zip(mine, getattr(body, family.layers), strict=True):
        whole.load_state_dict(_without_adapters(own))
    getattr(body, family.tokens).load_state_dict(head.tokens.state_dict())
    getattr(body, family.norm).load_state_dict(tail.norm.state_dict())
    if family.positions is not None:
        getattr(body, family.positions).load_state_dict(head.positions.state_dict())
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(copy.deepcopy(tail.reader))  # type: ignore[no-untyped-call]
    return model


def _merged(segment: nn.Module) -> Any:  # noqa: ANN401 - one of three kinds of segments
    """A copy with its adapters added to the weights."""
    made = copy.deepcopy(segment)
    for module in made.modules():
        if hasattr(module, "base_layer"):
            cast("Any", module).merge()
    return made


def _without_adapters(layer: nn.Module) -> dict[str, Tensor]:
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in layer.state_dict().items()
        if "lora_" not in name
    }
