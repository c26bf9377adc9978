"""A trained network is written for use elsewhere: one file of weights, or a transformers folder."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor, nn

from simsplit.assembly.trained import (
    OWNERS,
    Trained,
    choose_client,
    load_checkpoint,
    merge_segments,
    select_state,
)
from simsplit.errors import RunError
from simsplit.foreign import refuse_link
from simsplit.legs import ClientId
from simsplit.models.image_classifier import ImageClassifier
from simsplit.models.image_transformer import put_together
from simsplit.models.language import LanguageConfig
from simsplit.models.quantised import dequantise
from simsplit.models.tied import are_tied
from simsplit.models.tokenizers import load_tokenizer
from simsplit.models.transformer import get_layers
from simsplit.plugins import Given
from simsplit.results import SCENARIO, Run, directory
from simsplit.results.directory import writing
from simsplit.scenario import Scenario, load_scenario
from simsplit.states import select_below

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS, FACTS = "model.safetensors", "export.json"
Form = Literal["safetensors", "transformers"]


def convert_to_transformers(network: Trained) -> "PreTrainedModel":
    """Return a model of transformers with a trained network's weights, adapters merged.

    A language model's are in the type of the files from which the run began. Its embeddings are
    tied as in these, unless head and tail have learned a table each.
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
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not are_tied(network.head, network.tail):  # head and tail have a table each
        model.config.tie_word_embeddings = False
        output = copy.deepcopy(output)
        model.set_output_embeddings(output)  # type: ignore[no-untyped-call]
    output.load_state_dict(tail.reader.state_dict())
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
    about = {**network.facts, **({"tied": network.tied} if network.tied else {})}
    return _write_weights(out, network.weights(), network.scenario, about)


def export_passed(run: Run, out: Path, client: ClientId | None, plugins: Given = ()) -> list[Path]:
    """Write the weights of a network that was passed from Python, which need not be there again.

    They have the network's own names: `net.load_state_dict` takes them, without simsplit. Raise
    RunError if layers never learned, as a checkpoint does not have these.
    """
    scenario = load_scenario(run.path / SCENARIO, plugins=plugins)
    tensors = load_checkpoint(run, scenario, client)
    if "frozen" in tensors:
        raise RunError(
            f"{run.path}: layers of the network never learned, and a checkpoint does not have "
            "these; export in Python: export(load_trained(RUN, model=...), ...)"
        )
    state = select_state(tensors, choose_client(scenario, client))
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
    from safetensors.torch import save

    blob = save({name: tensor.detach().contiguous() for name, tensor in weights.items()})
    with writing(out / WEIGHTS):
        directory.replace(out / WEIGHTS, blob)
    facts = {
        "scenario": scenario.name,
        "model": scenario.model.model_dump(mode="json"),
        "methods": [method.kind_name for method in scenario.method],
        **about,
    }
    directory.replace(out / FACTS, (json.dumps(facts, indent=2) + "\n").encode())
    return [out / WEIGHTS, out / FACTS]
