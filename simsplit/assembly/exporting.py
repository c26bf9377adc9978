"""A trained network is exported to files: safetensors, or a folder that transformers can load."""

import json
from pathlib import Path
from typing import Literal

from torch import Tensor

from simsplit.assembly.trained import Trained, convert_to_transformers
from simsplit.errors import RunError
from simsplit.models.language import LanguageConfig
from simsplit.models.tokenizers import load_tokenizer
from simsplit.results.directory import replace, writing

WEIGHTS, FACTS = "model.safetensors", "export.json"
Form = Literal["safetensors", "transformers"]


def export(network: Trained, out: Path, form: Form) -> list[Path]:
    """Write a network into a new or empty folder, and return the files that were written."""
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; give a new or empty folder with --out")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    if form == "transformers":
        model, config = convert_to_transformers(network), network.scenario.model
        assert isinstance(config, LanguageConfig), "convert_to_transformers refuses others"
        with writing(out):
            model.save_pretrained(out)
            load_tokenizer(config.find_folder(), config.revision).save_pretrained(out)
        return sorted(out.iterdir())
    _save(out / WEIGHTS, network.weights())
    facts = {
        "scenario": network.scenario.name,
        "model": network.scenario.model.model_dump(mode="json"),
        "methods": [method.kind_name for method in network.scenario.method],
        **network.facts,
    }
    replace(out / FACTS, (json.dumps(facts, indent=2) + "\n").encode())
    return [out / WEIGHTS, out / FACTS]


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    blob = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    with writing(file):
        replace(file, blob)
