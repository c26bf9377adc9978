"""Clients on machines of their own give what they give in one process: every table, every weight.

The controls differ where they must, so that the comparison is known to see what it should.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from builders import TINY, image_folder, run_to_end
from deployed import Deployment, assert_as_inline
from gists import says
from texts import CAUSAL, LORA, OF_PARTIES, api_scenario, text_scenario
from tied_models import tied_scenario

from simsplit.deploy import frames as codec
from simsplit.errors import RunFailedError
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
    "parties": {
        "topology": "vertical",
        "clients": {"count": 2, "heads": "per_client"},
        "data": {"partition": {"kind": "parts"}},
        "model": MLP,
        "method": [{"kind": "noise"}, {"kind": "lightsplit", "ratio": 4, "by": "party 1"}],
        "cohort": {"availability": {"period": 2, "window": 1}},
        "vertical": {"party": 0, "absent": "last"},
        "schedule": {"rounds": 3},
    },
    "parties, labels at the server": {
        "topology": "vertical",
        "clients": {"count": 3, "heads": "per_client"},
        "data": {
            "source": {"kind": "sklearn", "name": "iris"},
            "train_samples": None,
            "test_samples": None,
            "partition": {
                "kind": "columns",
                "groups": {"a": ["sepal *"], "b": ["petal length*"], "c": ["petal width*"]},
            },
        },
        "model": MLP,
        "vertical": {"labels": "server", "join": "sum"},
    },
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
    "weights that learn by dp, drawn batches": {
        "model": {"cut": "l1h"},
        "train": {"batch_size": 4, "dp": {"multiplier": 1.0, "sampling": "poisson"}},
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


SPENDING = ["round", "client", "samples", "times_sent", "epsilon", "epsilon_next"]


def test_a_budget_ends_a_deployed_run_as_it_ends_a_simulation(
    deployment: Deployment, tmp_path: Path
) -> None:
    """A rehearsal has no guarantee, so that its table of it is not there; its counts are equal."""
    given = scenario(
        model={"cut": "l1h", "learns": ["head", "tail"]},
        train={"batch_size": 8, "dp": {"multiplier": 1.0, "sampling": "poisson"}},
        schedule={"rounds": 4},
        stop={"epsilon": 3.5},  # 1.98 after a round, then 3.07, then 4.00
    )
    run = deployment.run(given, tmp_path / "deployed")
    assert set(deployment.ends(given.clients.count)) == {"finished"}
    simulated = Run.load(run_to_end(given, tmp_path / "inline").path)
    assert run.summary["rounds_done"] == simulated.summary["rounds_done"] < 4
    assert run.summary["reason"] == simulated.summary["reason"]
    pd.testing.assert_frame_equal(run.clients[SPENDING], simulated.clients[SPENDING])


@pytest.mark.parametrize("case", CASES)
def test_as_inline(case: str, deployment: Deployment, tmp_path: Path) -> None:
    compare(deployment, scenario(**CASES[case]), tmp_path)


QUANTISED: dict[str, Any] = {**CAUSAL, "lora": LORA, "quantise": "nf4"}


DEEP: dict[str, Any] = {"model": {**CAUSAL, "sizes": {"width": 16, "layers": 4}}}
TEXTS: dict[str, dict[str, Any]] = {
    "sequence_classifier": {},
    "causal_lm": {"model": CAUSAL},
    "fields of parties": OF_PARTIES,
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


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["none", "splitfed_v2"])
def test_one_table_of_tokens_as_inline(
    aggregation: str, deployment: Deployment, tmp_path: Path
) -> None:
    changes = {"clients": {"count": 2}, "aggregation": aggregation}
    compare(deployment, tied_scenario(tmp_path, **changes), tmp_path)


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


def write_parties(folder: Path) -> dict[str, Path]:
    """Write the columns of a bank and of a shop, in different orders of the same people."""
    rng = np.random.default_rng(1)
    people, income = np.arange(60), rng.normal(size=60)
    items = rng.normal(size=60)
    bank = pd.DataFrame({"id": people, "income": income, "town": rng.choice([*"xyz"], 60)})
    bought = np.where(income + items > 0, "yes", "no")
    shop = pd.DataFrame({"id": people, "items": items, "bought": bought}).iloc[::-1]
    files = {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}
    bank.to_csv(files["bank"], index=False)
    shop.to_csv(files["shop"], index=False)
    return files


def of_parties(files: dict[str, Path]) -> Scenario:
    source = {"kind": "joined", "files": {n: str(f) for n, f in files.items()}, "target": "bought"}
    small = {"train_samples": None, "test_samples": None}
    changes = {"clients": {"heads": "per_client"}, "vertical": {"party": "shop"}, "model": MLP}
    return scenario(topology="vertical", data={**small, "source": source}, **changes)


def test_parties_bring_their_own_columns(deployment: Deployment, tmp_path: Path) -> None:
    """Each site reads its own file alone, and the run equals that of all files in one place."""
    files = write_parties(tmp_path)
    apart = of_parties({name: tmp_path / "elsewhere" / file.name for name, file in files.items()})
    run = deployment.run(apart, tmp_path / "deployed", data={0: files["bank"], 1: files["shop"]})
    assert set(deployment.ends(2)) == {"finished"}
    run_to_end(of_parties(files), tmp_path / "inline")
    assert_as_inline(tmp_path / "deployed", tmp_path / "inline", range(2))
    assert run.rounds["train_loss"].notna().all()


def test_parties_with_other_people_are_refused(deployment: Deployment, tmp_path: Path) -> None:
    files = write_parties(tmp_path)
    other = pd.read_csv(files["bank"]).assign(id=lambda frame: frame["id"] + 1)
    other.to_csv(files["bank"], index=False)
    apart = of_parties({name: tmp_path / "elsewhere" / file.name for name, file in files.items()})
    lines: list[str] = []
    with pytest.raises(RunFailedError):
        deployment.run(
            apart,
            tmp_path / "deployed",
            data={0: files["bank"], 1: files["shop"]},
            say=lines.append,
            patience_s=30,
        )
    assert [line for line in lines if says(line, "refused client 0: ... ids")], lines
    deployment.ends(2)
