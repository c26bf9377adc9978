"""The network that a run trained is rebuilt here from its last checkpoint."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from simsplit.assembly.assembler import fingerprint, refuse_others
from simsplit.assembly.ownership import Ownership
from simsplit.data.batches import Batch
from simsplit.data.samples import DataInfo
from simsplit.errors import RunError
from simsplit.foreign import refuse_link
from simsplit.methods.method import Step
from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork, LaidOut, Owner, SplitConfig
from simsplit.models.image_classifier import ImageClassifier
from simsplit.models.image_transformer import put_together
from simsplit.models.language import LanguageConfig
from simsplit.models.quantised import collect_weights, dequantise
from simsplit.models.tokenizers import load_tokenizer
from simsplit.models.transformer import get_layers
from simsplit.packets import ClientId, Leg
from simsplit.parties.on_disk import read_client
from simsplit.plugins import Given
from simsplit.renamed import Renamed
from simsplit.results import CHECKPOINTS, SCENARIO, Run, checkpoints, directory
from simsplit.results.directory import writing
from simsplit.scenario import Scenario, load_scenario
from simsplit.scenario.loading import pass_again
from simsplit.states import select_below

if TYPE_CHECKING:
    from transformers import PreTrainedModel


OWNERS: tuple[Owner, ...] = ("head", "trunk", "tail")
WEIGHTS, FACTS = "model.safetensors", "export.json"
Form = Literal["safetensors", "transformers"]


class Trained(Renamed, nn.Module):
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

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by the whole network's names.

        If two segments have a name in common, all names begin with `head.`, `trunk.` or `tail.`.
        """
        return merge_segments({name: self._collect_weights(name) for name in OWNERS})

    def _collect_weights(self, owner: Owner) -> dict[str, Tensor]:
        """Return a segment's weights by their names in the whole network."""
        model, state = self.scenario.model, collect_weights(getattr(self, owner))
        before = model.get_name_prefix(owner)[1] if isinstance(model, LaidOut) else ""
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
    tensors = _load_checkpoint(run, scenario, client)
    with checkpoints.refuse_misfits(run.path):
        return _rebuild(scenario, tensors, run.data, client)


def _load_checkpoint(run: Run, scenario: Scenario, client: ClientId | None) -> dict[str, Tensor]:
    """Return the tensors of a run's last checkpoint; raise RunError if there is none.

    Of clients that rested on disk, they are those of `client` alone.
    """
    digest = checkpoints.compute_digest(scenario.identity())
    checkpoint = checkpoints.load(run.path / CHECKPOINTS, digest)
    if checkpoint is None:
        raise RunError(f"{run.path} has no checkpoint; did the run write one?")
    tensors = checkpoint[0]
    number = _choose_client(scenario, client)
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
    owners = Ownership(scenario, info, torch.device("cpu"))
    model, stacks = owners.model, (owners.client_stack, owners.server_stack)
    refuse_others(fingerprint([model.head, model.trunk, model.tail]), tensors.get("frozen"))
    number = _choose_client(scenario, client)
    modules = {"head": owners.depths.get_head(number), "trunk": model.trunk, "tail": model.tail}
    state = _select_state(tensors, number)
    if client is not None and scenario.clients.heads == "per_client":
        # Of a crowd only those that took part are kept; the others are as they began.
        modules |= owners.start(client)
        model.head, model.tail = modules["head"], modules["tail"]
    _fill(modules, state)
    _fill({"method": stacks[0].modules}, state)
    _fill({"method": stacks[1].modules}, select_below(tensors, "server/"))
    stacks[0].receive_announcements(stacks[1].announce())
    if owners.depths.differ:
        scenario = _cut_for(scenario, owners.depths.get_config(number))
        model = replace(model, head=modules["head"], trunk=owners.depths.get_rest(number))
    return Trained(scenario, model, stacks, facts)


def _cut_for(scenario: Scenario, model: SplitConfig) -> Scenario:
    """Return the scenario as it is for a client with this model alone."""
    clients = scenario.clients.model_copy(update={"cut": None})
    return scenario.model_copy(update={"model": model, "clients": clients})


def _choose_client(scenario: Scenario, client: ClientId | None) -> ClientId:
    """Return the client whose network is wanted; raise RunError if it is missing or unknown."""
    count = scenario.clients.count
    if scenario.has_own_models and client is None:
        raise RunError(
            f"clients have heads of their own; choose one with client, from 0 to {count - 1}"
        )
    if client is not None and not 0 <= client < count:
        raise RunError(f"no client {client}; allowed: 0 to {count - 1}")
    return client or 0


def _select_state(state: Mapping[str, Tensor], client: ClientId) -> dict[str, Tensor]:
    """Return the weights of a client's network: the server's, shared ones and the client's own."""
    own = (f"client/{client}/own.{number}." for number in range(2))
    shared = ("holder/", "average/shared/weights.", "average/trunk/weights.")
    return {
        name: tensor
        for part in ("server/", *shared, *own)
        for name, tensor in select_below(state, part).items()
    }


def _fill(modules: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> None:
    """Copy a state into the modules that it names; frozen weights are not in it."""
    with torch.no_grad():
        for owner, module in modules.items():
            for key, tensor in module.state_dict(keep_vars=True).items():
                if (kept := state.get(f"{owner}.{key}")) is not None:
                    tensor.copy_(kept)


def convert_to_transformers(network: Trained) -> "PreTrainedModel":
    """Return a model of transformers with a trained network's weights, adapters merged.

    A language model's are in the type of the files from which the run began, embeddings untied.
    """
    config = network.scenario.model
    if isinstance(config, ImageClassifier):
        return _convert_classifier(network, config)
    if isinstance(config, LanguageConfig) and config.kind == "causal_lm" and config.sizes is None:
        return _convert_language(network, config)
    raise RunError(
        "only an image_classifier, or a causal_lm that starts from a pretrained model, can be "
        "exported as a transformers folder; use --as safetensors"
    )


def _convert_classifier(network: Trained, config: ImageClassifier) -> "PreTrainedModel":
    """Return a classifier of images with a trained network's weights, and the classes' names."""
    names = network.classes
    model = copy.deepcopy(config.make_whole(tuple(network.facts["sample"]), len(names))[0])
    segments = [_merge_adapters(each) for each in (network.head, network.trunk, network.tail)]
    layers = [_drop_adapters(layer) for each in segments for layer in get_layers(each)]
    put_together(model, segments, layers)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    return model


def _convert_language(network: Trained, config: LanguageConfig) -> "PreTrainedModel":
    """Return a causal language model with a trained network's weights."""
    from simsplit.models.families import find_body, find_family
    from simsplit.models.whole import load_as_saved

    if config.trunk == "skipped":
        raise RunError("the trunk was left out (model.trunk: skipped); use --as safetensors")
    model = load_as_saved(config.find_folder(), config.revision)
    family, body = find_family(model), find_body(model)
    head, trunk, tail = (
        _merge_adapters(part) for part in (network.head, network.trunk, network.tail)
    )
    mine = [layer for part in (head, trunk, tail) for layer in get_layers(part)]
    for own, whole in zip(mine, getattr(body, family.layers), strict=True):
        whole.load_state_dict(_drop_adapters(own))
    getattr(body, family.tokens).load_state_dict(head.tokens.state_dict())
    getattr(body, family.norm).load_state_dict(tail.norm.state_dict())
    if family.positions is not None:
        getattr(body, family.positions).load_state_dict(head.positions.state_dict())
    # Head and tail can have learned apart, so embeddings and output layer no longer share weights.
    model.config.tie_word_embeddings = False
    output = copy.deepcopy(model.get_output_embeddings())  # type: ignore[no-untyped-call]
    output.load_state_dict(tail.reader.state_dict())
    model.set_output_embeddings(output)  # type: ignore[no-untyped-call]
    return model


def _merge_adapters(segment: nn.Module) -> Any:  # noqa: ANN401 - one of three kinds of segments
    """Return a copy of a segment with its adapters added to the weights, quantised or not."""
    made = dequantise(copy.deepcopy(segment))
    for module in made.modules():
        if hasattr(module, "base_layer"):
            cast("Any", module).merge()
    return made


def _drop_adapters(layer: nn.Module) -> dict[str, Tensor]:
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in layer.state_dict().items()
        if "lora_" not in name
    }


def export(network: Trained, out: Path, form: Form) -> list[Path]:
    """Write a network into a new or empty folder, and return the files that were written."""
    _make_empty(out)
    if form == "transformers":
        model, config = convert_to_transformers(network), network.scenario.model
        with writing(out):
            model.save_pretrained(out)
            if isinstance(config, LanguageConfig):
                load_tokenizer(config.find_folder(), config.revision).save_pretrained(out)
        return sorted(out.iterdir())
    return _write_weights(out, network.weights(), network.scenario, network.facts)


def export_passed(run: Run, out: Path, client: ClientId | None, plugins: Given = ()) -> list[Path]:
    """Write the weights of a network that was passed from Python, which need not be there again.

    They have the network's own names: `net.load_state_dict` takes them, without simsplit. Raise
    RunError if layers never learned, as a checkpoint does not have these.
    """
    scenario = load_scenario(run.path / SCENARIO, plugins=plugins)
    tensors = _load_checkpoint(run, scenario, client)
    if "frozen" in tensors:
        raise RunError(
            f"{run.path}: layers of the network never learned, and a checkpoint does not have "
            "these; export in Python: export(load_trained(RUN, model=...), ...)"
        )
    state = _select_state(tensors, _choose_client(scenario, client))
    parts = {owner: select_below(state, f"{owner}.") for owner in OWNERS}
    _make_empty(out)
    return _write_weights(out, merge_segments(parts), scenario, run.data)


def _make_empty(out: Path) -> None:
    """Make a folder to export into; raise RunError if it is a link, or has files."""
    refuse_link(out)
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; give a new or empty folder with --out")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)


def _write_weights(
    out: Path, weights: dict[str, Tensor], scenario: Scenario, about: Mapping[str, Any]
) -> list[Path]:
    """Write weights, and facts about the network and its data."""
    _save(out / WEIGHTS, weights)
    facts = {
        "scenario": scenario.name,
        "model": scenario.model.model_dump(mode="json"),
        "methods": [method.kind_name for method in scenario.method],
        **about,
    }
    directory.replace(out / FACTS, (json.dumps(facts, indent=2) + "\n").encode())
    return [out / WEIGHTS, out / FACTS]


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    blob = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    with writing(file):
        directory.replace(file, blob)
