"""Replaced tokens in whole runs: what crosses, what it is judged by, and resumed runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, experiment, run_to_end
from comparing import assert_equal
from texts import text_scenario

from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.results import Run
from simsplit.scenario import Scenario

pytestmark = pytest.mark.slow
SMALL = {"train_samples": 24, "test_samples": 4}
WORDS = {"kind": "causal_lm", "sizes": {"width": 16}, "head": 1, "tail": 1}
WRITTEN = {"metrics": ["loss", "rouge_l"], "generated_texts": 2, "max_new_tokens": 4}
EVERY = {"kind": "santext", "sensitive": 1.0}


def make_scenario(path: Path, *methods: dict[str, Any], **changes: Any) -> Scenario:
    return text_scenario(path, method=list(methods), **{"data": SMALL, **changes})


def collect_smashed(made: Experiment) -> list[torch.Tensor]:
    """Return what a first step sends, once the run is assembled."""
    seen: list[torch.Tensor] = []

    class Tap:
        def observe(self, packet: Any) -> None:
            if packet.leg is Leg.SMASHED:
                seen.append(packet.tensors[0])

    made.parts.wire.taps.append(Tap())
    made.run(resume=False)
    return seen


@pytest.mark.parametrize(
    "method",
    [
        {**EVERY, "epsilon": 2.0, "fixed": False},
        {"kind": "custext", "epsilon": 5.0, "group": 9},
        {"kind": "rantext", "fixed": False},
    ],
    ids=["santext", "custext", "rantext"],
)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_resumed_run_sends_the_same(method, padding, tmp_path):
    """With texts that are written in evaluation, and a head that learns embeddings."""
    source = {"padding": padding}
    changes = {"model": WORDS, "evaluate": WRITTEN, "data": {**SMALL, "source": source}}
    wanted = make_scenario(tmp_path, method, **changes, schedule={"rounds": 3})
    run_to_end(wanted, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(wanted, tmp_path / "broken", [StopAt(5)]).run(resume=False)
    experiment(wanted, tmp_path / "broken").run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "broken")
    clients = Run.load(tmp_path / "whole").clients
    assert (clients[f"{method['kind']}_changed"] > 0.05).all()


def test_the_vocabulary_is_the_one_before_training(tmp_path):
    wanted = make_scenario(tmp_path, EVERY)
    made = experiment(wanted, tmp_path / "run")
    client = made.parts.pool.clients[0].training
    known = client.end.stack.smashed[0].tokens
    before = client.end.head.tokens.weight.detach().clone()
    made.run(resume=False)
    assert not torch.equal(client.end.head.tokens.weight, before)
    assert torch.equal(known.embeddings, before)
    texts = made.data.train.inputs.flatten().tolist()
    assert known.counts.tolist() == [texts.count(each) for each in range(len(known.counts))]


def test_as_many_bytes_cross_as_without(tmp_path):
    legs = [
        Run.load(run_to_end(make_scenario(tmp_path, *methods), tmp_path / name).path).wire
        for name, methods in (("raw", ()), ("both", (EVERY, {"kind": "custext"})))
    ]
    assert legs[0]["bytes"].tolist() == legs[1]["bytes"].tolist()


def test_a_kept_text_crosses_unchanged_and_a_replaced_one_does_not(tmp_path):
    sent = {
        name: collect_smashed(experiment(make_scenario(tmp_path, *methods), tmp_path / name))
        for name, methods in {
            "raw": (),
            "kept": ({**EVERY, "epsilon": 1e6},),
            "replaced": ({**EVERY, "epsilon": 0.0},),
        }.items()
    }
    assert all(map(torch.equal, sent["raw"], sent["kept"]))
    assert not torch.equal(sent["raw"][0], sent["replaced"][0])


def test_attacks_are_judged_by_the_private_text(tmp_path):
    """Who reads all that crosses knows as much as was kept."""
    read = {}
    for epsilon in (1e6, 0.0):
        wanted = make_scenario(
            tmp_path,
            {**EVERY, "epsilon": epsilon},
            model={**WORDS, "sizes": {"width": 32, "public": True}, "head": 0},
            data={"auxiliary": 0.5},
            clients={"count": 1},
            schedule={"rounds": 1},
            attacks=[{"kind": "sip", "inverter": "gaussian"}],
            targets={"count": 4},
        )
        run = Run.load(run_to_end(wanted, tmp_path / f"run{epsilon}").path)
        read[epsilon] = run.attacks.set_index("attack").loc["sip", "token_accuracy"]
        (file,) = (run.path / "recovered").glob("*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        texts = {row["private"] for row in rows}
        assert all(text.startswith("a ") for text in texts)
    assert read[1e6] > 0.8
    assert read[0.0] < 0.3
