"""Clients on machines of their own give what they give in one process: every table, every weight.

The controls differ where they must, so that the comparison is known to see what it should.
"""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from builders import TINY, image_folder, run_to_end
from deployed import Deployment, assert_as_inline
from texts import CAUSAL, LORA, api_scenario, text_scenario

from simsplit.deploy import frames as codec
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy

ADAM = {"kind": "adam", "lr": 2e-3}
OWN = {"heads": "per_client", "count": 2}
SLOW = {"device": {"phone": 0.5, "edge": 0.5}, "link": "lte"}
STRICT = {"kind": "cosine_mad", "threshold": {"kind": "three_sigma", "sigmas": 1.0}}
"""Flags some honest client or other."""
MLP: dict[str, Any] = {"kind": "mlp", "widths": [16, 12, 10, 8], "head": 1, "tail": 1}
CASES: dict[str, dict[str, Any]] = {
    "shared head, adam": {"train": {"client": ADAM, "server": ADAM}},
    "shared head, momentum, validation": {
        "data": {"validation": 0.1},
        "train": {"client": {"kind": "sgd", "momentum": 0.9, "lookahead": {"every": 2}}},
    },
    "own moments": {"clients": {"handover": "weights"}, "train": {"client": ADAM}},
    "vanilla": {"topology": "vanilla"},
    "own heads, own tails, vanilla": {"clients": OWN, "topology": "vanilla"},
    "own heads, in parallel": {
        "clients": OWN,
        "schedule": {"kind": "parallel", "rounds": 2},
        "train": {"client": ADAM},
    },
    "own heads, one tail": {"clients": {**OWN, "tail": "shared"}},
    "splitfed_v1": {"aggregation": "splitfed_v1", "train": {"client": ADAM, "server": ADAM}},
    "splitfed_v1, vanilla": {"aggregation": "splitfed_v1", "topology": "vanilla"},
    "splitfed_v2": {"aggregation": "splitfed_v2", "schedule": {"kind": "per_client", "rounds": 2}},
    "fused": {"aggregation": "fused", "schedule": {"kind": "parallel", "rounds": 2}},
    "asynchronous": {
        "clients": OWN,
        "schedule": {"kind": "asynchronous", "rounds": 2},
        "network": SLOW,
    },
    "own cuts": {"model": MLP, "clients": {**OWN, "cut": [1, 3]}},
    "own cuts, vanilla": {
        "model": MLP,
        "clients": {**OWN, "cut": [3, 1]},
        "topology": "vanilla",
    },
    "own cuts, one tail": {
        "model": MLP,
        "clients": {**OWN, "tail": "shared", "cut": [3, 1]},
        "train": {"client": ADAM},
    },
    "own cuts, averaged": {
        "model": MLP,
        "clients": {"count": 3, "cut": [2, 1, 3]},
        "aggregation": "splitfed_v2",
        "schedule": {"kind": "per_client", "rounds": 2},
    },
    "own cuts, splitfed_v1": {
        "model": MLP,
        "clients": {"cut": [2, 1]},
        "aggregation": "splitfed_v1",
    },
    "own cuts, noise and bits": {
        "model": {**MLP, "widths": [8, 8, 8, 8]},
        "clients": {**OWN, "cut": [1, 3]},
        "method": [{"kind": "noise"}, {"kind": "quantise"}],
    },
    "in parts, recomputed": {
        "train": {"client": ADAM, "accumulate": 2, "checkpointing": True},
    },
    "channels last": {"train": {"channels_last": True}, "clients": OWN},
    "lightsplit": {"method": [{"kind": "lightsplit", "ratio": 8}, {"kind": "wcc"}]},
    "noise and bits": {"clients": OWN, "method": [{"kind": "noise"}, {"kind": "quantise"}]},
    "topk": {"method": [{"kind": "topk", "ratio": 8}]},
    "gradients in several messages": {
        "clients": OWN,
        "model": {"learns": ["head", "tail"]},
        "method": [{"kind": "private_backprop"}],
    },
    "watched": {"clients": {"count": 3}, "detectors": [{"kind": "cosine_mad"}]},
    "turns rolled back": {
        "clients": {"count": 3},
        "detectors": [{"kind": "safesplit", "threshold": {"kind": "fixed", "above": 1.0}}],
        "schedule": {"kind": "per_client", "rounds": 2},
    },
    "changes in few bits, rounds rolled back": {
        "aggregation": {"kind": "splitfed_v2", "bits": 8},
        "clients": {"count": 3},
        "detectors": [{**STRICT, "response": "rollback"}],
        "schedule": {"rounds": 3},
    },
    "rounds rolled back": {
        "clients": {"count": 3},
        "detectors": [{**STRICT, "response": "rollback"}],
        "schedule": {"order": "random", "rounds": 3},
        "train": {"client": ADAM},
    },
}


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, {"clients": {"count": 2}}), changes))


def compare(deployment: Deployment, given: Scenario, tmp_path: Path) -> Run:
    run = deployment.run(given, tmp_path / "deployed")
    assert set(deployment.ends(given.clients.count)) == {"finished"}
    run_to_end(given, tmp_path / "inline")
    assert_as_inline(tmp_path / "deployed", tmp_path / "inline", range(given.clients.count))
    assert run.summary["deployed"]["as_simulated"]
    return run


@pytest.mark.parametrize("case", CASES)
def test_as_inline(case: str, deployment: Deployment, tmp_path: Path) -> None:
    compare(deployment, scenario(**CASES[case]), tmp_path)


QUANTISED: dict[str, Any] = {**CAUSAL, "lora": LORA, "quantise": "nf4"}


DEEP: dict[str, Any] = {"model": {**CAUSAL, "sizes": {"width": 16, "layers": 4}}}
TEXTS: dict[str, dict[str, Any]] = {
    "sequence_classifier": {},
    "causal_lm": {"model": CAUSAL},
    "quantised": {"model": QUANTISED},
    "own cuts": {**DEEP, "clients": {**OWN, "cut": [1, 2]}},
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_as_inline(case: str, deployment: Deployment, tmp_path: Path) -> None:
    compare(deployment, text_scenario(tmp_path, **TEXTS[case]), tmp_path)


API: dict[str, dict[str, Any]] = {
    "adapters of their own": {},
    "one set for all": {"clients": {"count": 2, "heads": "shared"}},
    "a head alone": {"model": {"learns": ["tail"]}},
    "p3eft": {
        "model": {"adapters": 2},
        "method": [{"kind": "p3eft"}, {"kind": "private_backprop", "messages": 2}],
    },
}


@pytest.mark.parametrize("case", API)
def test_an_api_as_inline(case: str, deployment: Deployment, tmp_path: Path) -> None:
    compare(deployment, api_scenario(tmp_path, **API[case]), tmp_path)


class TestDataOfTheirOwn:
    """What `--data` names: the scenario's own path leads to nothing, and no row is dealt."""

    def as_if_dealt(self, given: Scenario, deployment: Deployment, tmp_path: Path) -> None:
        """Give sites what each client would have been dealt, and compare with the simulation."""
        sites = {n: tmp_path / f"site{n}" for n in range(given.clients.count)}
        elsewhere = given.data.source.model_copy(update={"path": Path("nowhere")})
        data = given.data.model_copy(update={"source": elsewhere})
        served = given.model_copy(update={"data": data})
        deployment.run(served, tmp_path / "deployed", data=sites)
        assert deployment.ends(given.clients.count) == ["finished"] * given.clients.count
        run_to_end(given, tmp_path / "inline")
        assert_as_inline(tmp_path / "deployed", tmp_path / "inline", range(given.clients.count))

    def test_a_folder(self, deployment: Deployment, tmp_path: Path) -> None:
        whole = image_folder(tmp_path / "whole", channels=1, size=28)
        given = parse(
            TINY
            | {
                "data": {
                    "source": {"kind": "folder", "path": whole, "size": 28, "channels": 1},
                    "normalise": "unit",  # a site's own mean and deviation would be others
                },
                "clients": {"count": 2},
            }
        )
        files = sorted((whole / "train").glob("*/*.png"))
        for client, rows in enumerate(given.prepare_data().parts):
            site = shutil.copytree(whole, tmp_path / f"site{client}")
            for row in set(range(len(files))) - set(rows):
                (site / files[row].relative_to(whole)).unlink()
        self.as_if_dealt(given, deployment, tmp_path)

    def test_parquet(self, deployment: Deployment, tmp_path: Path) -> None:
        given = text_scenario(tmp_path)
        whole = tmp_path / "reviews"
        for client, rows in enumerate(given.prepare_data().parts):
            site = shutil.copytree(whole, tmp_path / f"site{client}")
            pq.write_table(
                pq.read_table(whole / "train.parquet").take(rows), site / "train.parquet"
            )
        self.as_if_dealt(given, deployment, tmp_path)


def test_texts_that_clients_write_as_inline(deployment: Deployment, tmp_path: Path) -> None:
    task = {"kind": "generation", "prompt": "{sentence} is", "answer": " about a {topic}"}
    evaluate = {"metrics": ["loss", "rouge_l", "bleu"], "generated_texts": 4, "max_new_tokens": 5}
    given = text_scenario(
        tmp_path,
        model=CAUSAL,
        data={"source": {"task": task, "length": 48}},
        evaluate={**evaluate, "sampling": {"temperature": 1.0}},
    )
    run = compare(deployment, given, tmp_path)
    frames = pd.read_csv(tmp_path / "deployed" / "run" / "socket.csv")
    assert frames["call"].isin(["Write", "WriteOn"]).any()
    assert run.rounds["test_rouge_l"].notna().all()


class TestWhatMustDiffer:
    def test_strides_dropped_in_transit(self, monkeypatch):
        """Were layouts lost, other kernels would round otherwise: the codec keeps them."""
        images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        _, (kept_as_it_was,) = codec.read_frame(codec.write_frame({}, [images]), 2**20)
        monkeypatch.setattr(codec, "_make_dense", lambda tensor: tensor.contiguous())
        _, (dropped,) = codec.read_frame(codec.write_frame({}, [images]), 2**20)
        assert kept_as_it_was.stride() == images.stride() != dropped.stride()

    def test_a_secret_of_their_own(self, deployment: Deployment, tmp_path: Path) -> None:
        noisy = scenario(clients=OWN, method=[{"kind": "noise"}])
        run = deployment.run(noisy, tmp_path / "deployed", mode="private")
        assert deployment.ends(2) == ["finished", "finished"]
        run_to_end(noisy, tmp_path / "inline")
        assert not run.summary["deployed"]["as_simulated"]
        with pytest.raises(AssertionError, match="rounds"):
            assert_as_inline(tmp_path / "deployed", tmp_path / "inline", range(2))
        wire = (tmp_path / "inline" / "wire.csv").read_text()
        assert (tmp_path / "deployed" / "run" / "wire.csv").read_text() == wire, "as many bytes"
