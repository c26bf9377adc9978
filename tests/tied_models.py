"""Tiny saved models that predict tokens with the table that embeds them, and scenarios with one."""

import shutil
from pathlib import Path
from typing import Any

from texts import text_scenario
from transformers import AutoModelForCausalLM

from simsplit.models.whole import Sizes, build_config
from simsplit.pretrain.shipped_models import FOLDER
from simsplit.scenario import Scenario
from simsplit.scenario.files import merge
from simsplit.seeds import isolate


def save_tied(folder: Path, family: str = "llama") -> Path:
    """Save a random model of three layers, with a tokenizer that ships."""
    sizes = {"width": 16, "layers": 3, "vocabulary": 1024, "context": 64}
    config = build_config(Sizes(family=family, **sizes))
    config.tie_word_embeddings = True
    with isolate(0, "tied", family):
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / "ci-0" / name, folder / name)
    return folder


def tied_scenario(path: Path, family: str = "llama", **changes: Any) -> Scenario:
    """Build a tiny scenario of one client with such a model, saved below `path`."""
    folder = path / family
    if not folder.exists():
        save_tied(folder, family)
    model = {"kind": "causal_lm", "name": str(folder), "head": 1, "tail": 1}
    return text_scenario(path, **merge({"model": model, "clients": {"count": 1}}, changes))
