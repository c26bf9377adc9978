"""Tiny text scenarios: made-up reviews in a parquet folder, read byte by byte."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

GOOD, BAD = ("fine", "lovely", "bright"), ("dull", "awful", "grim")
THINGS = ("film", "play", "song", "old book", "show")


def reviews(path: Path, count: int = 60) -> Path:
    """Write train.parquet and test.parquet with columns sentence, label and topic."""
    path.mkdir(parents=True, exist_ok=True)
    for split, number, seed in (("train", count, 0), ("test", count // 3, 1)):
        rng = np.random.default_rng(seed)
        rows = [_review(rng) for _ in range(number)]
        pq.write_table(pa.Table.from_pylist(rows), path / f"{split}.parquet")
    return path


def _review(rng: np.random.Generator) -> dict[str, Any]:
    label = int(rng.integers(2))
    word, thing = rng.choice((BAD, GOOD)[label]), str(rng.choice(THINGS))
    return {"sentence": f"a {word} {thing}", "label": label, "topic": thing}


TINY: dict[str, Any] = {
    "name": "texts",
    "seed": 3,
    "data": {"source": {"kind": "text_parquet", "task": "sst2", "length": 32}},
    "model": {"kind": "sequence_classifier", "sizes": {"width": 16}, "head": 1, "tail": 1},
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {
        "batch_size": 8,
        "client": {"kind": "adam", "lr": 0.002},
        "server": {"kind": "adam", "lr": 0.002},
    },
    "threads": 1,
    "output": {"figures": False},
}


def text_scenario(path: Path, **changes: Any) -> Scenario:
    """Build a tiny scenario on reviews below `path`, with fields merged over it."""
    where = {"data": {"source": {"path": str(reviews(path / "reviews"))}}}
    return parse(merge(merge(TINY, where), changes))


CAUSAL: dict[str, Any] = {
    "kind": "causal_lm",
    "sizes": {"width": 16, "layers": 3},
    "head": 1,
    "tail": 1,
}
"""Random weights; without sizes it would be simsplit's own model, which takes minutes to make."""

LORA = {"rank": 2, "alpha": 4}

OF_PARTIES: dict[str, Any] = {
    "topology": "vertical",
    "clients": {"heads": "per_client"},
    "data": {
        "source": {
            "task": {
                "kind": "classification",
                "prompt": "{topic} {sentence}",
                "names": ["negative", "positive"],
            }
        },
        "partition": {"kind": "columns", "groups": {"a": ["topic"], "b": ["sentence"]}},
    },
    "model": {"sizes": {"family": "bert"}, "head": 1, "tail": 0},
}
"""One party has what a review is about, the other what it says, and the class."""


def api_scenario(path: Path, family: str = "llama", **changes: Any) -> Scenario:
    """Build a tiny scenario of two clients with adapters of their own."""
    model = {
        "kind": "adapted_classifier",
        "sizes": {"family": family, "width": 16, "layers": 2},
        "lora": LORA,
    }
    given = {
        **TINY,
        "data": {"source": {**TINY["data"]["source"], "path": str(reviews(path / "reviews"))}},
        "model": model,
        "topology": "api",
        "clients": {"count": 2, "heads": "per_client"},
    }
    return parse(merge(given, changes))
