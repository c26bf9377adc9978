"""No honest client is ever refused: every method, topology, aggregation and kind of data."""

from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from contracts.method_cases import CASES as IMAGES
from contracts.test_text_methods import CASES as TEXTS
from contracts.test_text_methods import make_scenario as text_given
from direct import Sites
from pace import quick
from texts import CAUSAL, LORA, api_scenario, text_scenario

from simsplit.methods import METHODS
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

SMALL: dict[str, Any] = {
    "clients": {"count": 2, "heads": "per_client"},
    "data": {"train_samples": 50, "test_samples": 20, "auxiliary": 0.2},
}
ADAM = {"kind": "adam", "lr": 2e-3}
ELSEWHERE = ("pslf", "marvell", "private_backprop", "p3eft")
"""Methods for two classes, or for frozen trunks: texts have them."""
METHODS_OF_IMAGES = {
    str(case): [config.model_dump(mode="json") for config in case.configs]
    for cases in IMAGES.values()
    for case in cases
    if all(config.kind in METHODS and config.kind not in ELSEWHERE for config in case.configs)
}
METHODS_OF_TEXTS = [
    (kind, fields)
    for kind, several in TEXTS.items()
    for fields in several
    if kind not in ("santext", "custext", "rantext")  # a server without samples cannot build these
]
RUNS: dict[str, dict[str, Any]] = {
    "vanilla": {"topology": "vanilla"},
    "adam, handed on with lookahead": {
        "clients": {"heads": "shared"},
        "train": {"client": {**ADAM, "lookahead": {"every": 2}}},
    },
    "momentum, handed on": {
        "clients": {"heads": "shared"},
        "train": {"client": {"kind": "sgd", "momentum": 0.9, "lookahead": {"every": 2}}},
    },
    "weights alone handed on": {"clients": {"heads": "shared", "handover": "weights"}},
    "splitfed_v1": {"aggregation": "splitfed_v1", "train": {"client": ADAM}},
    "splitfed_v2 in few bits": {
        "aggregation": {"kind": "splitfed_v2", "bits": 8},
        "clients": {"count": 3, "heads": "shared"},
        "cohort": {"fraction": 0.7},
        "schedule": {"rounds": 4},
    },
    "fused, vanilla": {
        "aggregation": "fused",
        "schedule": {"kind": "parallel"},
        "topology": "vanilla",
    },
    "full batches": {"train": {"drop_last": True, "batch_size": 8}},
    "in parts, some of which small batches lack": {
        "train": {"batch_size": 8, "accumulate": 4, "checkpointing": True},
    },
    "in parts, handed on": {
        "clients": {"heads": "shared"},
        "train": {"batch_size": 8, "accumulate": 2},
    },
    "few steps": {"schedule": {"local_steps": 1}, "data": {"validation": 0.2}},
    "bf16": {"train": {"precision": "bf16"}},
    "bf16, vanilla": {"train": {"precision": "bf16"}, "topology": "vanilla"},
    "c3sl, vanilla": {"method": [{"kind": "c3sl", "ratio": 4}], "topology": "vanilla"},
    "c3sl, quantised": {"method": [{"kind": "c3sl", "ratio": 4}, {"kind": "quantise"}]},
    "a large loss": {"train": {"client": {"kind": "sgd", "lr": 2.0}}},
    "views": {"evaluate": {"batch_size": 7, "mirrored": True}},
    "turns rolled back": {
        "clients": {"count": 3, "heads": "shared"},
        "detectors": [{"kind": "safesplit", "threshold": {"kind": "fixed", "above": 1.0}}],
        "schedule": {"kind": "per_client"},
    },
    "rounds rolled back": {
        "clients": {"count": 3, "heads": "shared"},
        "detectors": [
            {
                "kind": "cosine_mad",
                "threshold": {"kind": "three_sigma", "sigmas": 1.0},
                "response": "rollback",
            }
        ],
        "schedule": {"rounds": 3, "order": "random"},
    },
}
RUNS_OF_TEXTS: dict[str, dict[str, Any]] = {
    "classes": {},
    "classes, vanilla": {"topology": "vanilla"},
    "classes, quantised": {"method": [{"kind": "quantise", "bits": 4}]},
    "words": {"model": CAUSAL},
    "words, frozen in 16 bits": {
        "model": {**CAUSAL, "dtype": "bfloat16", "learns": ["head", "tail"], "lora": LORA},
    },
    "words, vanilla": {"model": CAUSAL, "topology": "vanilla"},
    "words that are written": {
        "model": CAUSAL,
        "evaluate": {"metrics": ["loss", "rouge_l"], "generated_texts": 3, "max_new_tokens": 5},
    },
    "words that are written, whole texts": {
        "model": CAUSAL,
        "method": [{"kind": "sparsify"}],
        "evaluate": {"metrics": ["loss", "bleu"], "generated_texts": 3, "max_new_tokens": 5},
    },
    "words that are written, in sessions": {
        "model": CAUSAL,
        "method": [{"kind": "sparsify", "per": "token"}],
        "topology": "vanilla",
        "evaluate": {"metrics": ["loss", "bleu"], "generated_texts": 3, "max_new_tokens": 5},
    },
}
APIS: dict[str, dict[str, Any]] = {
    "adapters": {},
    "p3eft": {
        "model": {"adapters": 2},
        "method": [{"kind": "p3eft"}, {"kind": "private_backprop", "messages": 2}],
    },
}


def assert_nobody_is_refused(given: Scenario, path: Path) -> None:
    sites = Sites(given, path)
    lost: list[str] = []
    sites.lose = lambda client, why, *_: lost.append(f"client {client}: {why}")
    sites.experiment().run(resume=False)
    assert lost == []


@pytest.mark.parametrize(
    "case", quick(METHODS_OF_IMAGES, "topk", "sparsify", "c3sl:2", "cast:int8", "lightsplit")
)
def test_under_a_method_of_images(case: str, tmp_path: Path) -> None:
    methods = METHODS_OF_IMAGES[case]
    assert_nobody_is_refused(parse(merge(merge(TINY, SMALL), {"method": methods})), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fields"), METHODS_OF_TEXTS, ids=str)
def test_under_a_method_of_texts(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert_nobody_is_refused(text_given(tmp_path, kind, fields), tmp_path)


@pytest.mark.parametrize("case", quick(RUNS, "vanilla", "splitfed_v2 in few bits", "bf16"))
def test_in_a_run_of_images(case: str, tmp_path: Path) -> None:
    assert_nobody_is_refused(parse(merge(merge(TINY, SMALL), RUNS[case])), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", quick(RUNS_OF_TEXTS, "classes, vanilla", "words that are written, in sessions")
)
def test_in_a_run_of_texts(case: str, tmp_path: Path) -> None:
    assert_nobody_is_refused(text_scenario(tmp_path, **RUNS_OF_TEXTS[case]), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(APIS, "p3eft"))
def test_of_an_api(case: str, tmp_path: Path) -> None:
    assert_nobody_is_refused(api_scenario(tmp_path, **APIS[case]), tmp_path)
