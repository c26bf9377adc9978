"""The trained network comes out: it predicts as the run's own evaluation did."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from gists import gist
from pace import quick
from safetensors.torch import load_file
from texts import text_scenario
from typer.testing import CliRunner

from simsplit import load_trained, run
from simsplit.__main__ import app
from simsplit.assembly.exporting import export
from simsplit.data.samples import IGNORED
from simsplit.errors import RunError, ScenarioError
from simsplit.results import Run

CASES: dict[str, dict[str, Any]] = {
    "raw": {},
    "projected and pulled": {
        "method": [{"kind": "lightsplit", "ratio": 8}, {"kind": "wcc", "weight": 0.01}]
    },
    "a learned lift": {"method": [{"kind": "lightsplit", "ratio": 8, "lift": "learned"}]},
    "learned on both sides": {"method": [{"kind": "learned1x1", "ratio": 4}]},
    "quantised on both legs": {
        "method": [{"kind": "quantise", "legs": ["smashed", "features"], "rounding": "nearest"}]
    },
    "averaged": {"schedule": {"kind": "parallel"}, "aggregation": "splitfed_v2"},
    "trunk copies": {"schedule": {"kind": "parallel"}, "aggregation": "splitfed_v1"},
    "vanilla": {"topology": "vanilla"},
    "bottlenet": {"method": [{"kind": "bottlenet", "ratio": 4}]},
}


@pytest.mark.parametrize("case", quick(CASES, "a learned lift", "vanilla"))
def test_it_predicts_what_the_run_did(tmp_path: Path, case: str) -> None:
    given = scenario(**CASES[case])
    made = run(given, tmp_path / "run")
    data = given.prepare_data()
    batch = data.build_batcher(data.test, torch.device("cpu")).batch(torch.arange(len(data.test)))
    network, last = load_trained(made), made.rounds.iloc[-1]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels).item()
    assert loss == pytest.approx(last["test_loss"], rel=1e-5)
    right = (network.predict(data.test.inputs) == data.test.labels).float().mean().item()
    assert right == pytest.approx(last["test_accuracy"], abs=1e-6)


SIZES = {"width": 16, "layers": 3, "public": True}
WORDS = {"kind": "causal_lm", "sizes": SIZES, "head": 1, "tail": 1}
TEXTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "admi": {"kind": "admi", "heads": 2, "warm_up": 1, "adapter_lr": 0.05, "bottleneck_lr": 0.05},
    "a bottleneck": {"kind": "mid", "weight": 0.001},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(TEXTS, "admi"))
def test_of_texts_it_goes_through_what_methods_learned(tmp_path: Path, case: str) -> None:
    given = text_scenario(tmp_path, model=WORDS, method=[TEXTS[case]] if TEXTS[case] else [])
    made = run(given, tmp_path / "run")
    data = given.prepare_data()
    batch = data.build_batcher(data.test, torch.device("cpu")).batch(torch.arange(len(data.test)))
    with torch.no_grad():
        outputs = load_trained(made)(batch.inputs, *batch.context)
    asked = batch.labels != IGNORED
    loss = torch.nn.functional.cross_entropy(outputs[asked], batch.labels[asked]).item()
    assert loss == pytest.approx(made.rounds.iloc[-1]["test_loss"], rel=1e-5)


def test_of_clients_with_heads_of_their_own_one_is_named(tmp_path: Path) -> None:
    given = scenario(clients={"heads": "per_client"})
    made = run(given, tmp_path / "run")
    test = given.prepare_data().test
    last = made.clients[made.clients["round"] == 2].set_index("client")["test_accuracy"]
    for client in (0, 2):
        right = (
            (load_trained(made, client).predict(test.inputs) == test.labels).float().mean().item()
        )
        assert right == pytest.approx(last[client], abs=1e-6)
    with pytest.raises(RunError, match="0 to 2"):
        load_trained(made)
    with pytest.raises(RunError, match="no client 7"):
        load_trained(made, 7)


def test_the_command_writes_weights_and_what_they_are(tmp_path: Path) -> None:
    made = run(scenario(model={"kind": "mlp", "widths": [8, 8]}), tmp_path / "run")
    outcome = CliRunner().invoke(app, ["export", str(made.path)])
    assert outcome.exit_code == 0, outcome.output
    weights = load_file(made.path / "export" / "model.safetensors")
    network = load_trained(made)
    assert weights.keys() == network.weights().keys()
    assert torch.equal(weights["tail.0.weight"], network.tail[0].weight)
    assert '"classes"' in (made.path / "export" / "export.json").read_text()
    with pytest.raises(RunError, match="not empty"):
        export(network, made.path / "export", "safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("lora", quick([None, {"rank": 2}], {"rank": 2}))
def test_a_language_model_becomes_a_transformers_folder(
    tmp_path: Path, lora: dict[str, int] | None
) -> None:
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from simsplit.pretrain import fetch_pretrained

    folder = str(fetch_pretrained("ci"))
    model = {"kind": "causal_lm", "name": folder, "sizes": None, "head": 1, "tail": 1, "lora": lora}
    source = {"learns": "all"}
    given = text_scenario(tmp_path, model=model, data={"source": source})
    made = run(given, tmp_path / "run")
    network = load_trained(made)
    export(network, tmp_path / "out", "transformers")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")("a lovely film", return_tensors="pt")
    with torch.no_grad():
        ours, theirs = network(tokens["input_ids"]), whole(tokens["input_ids"]).logits
    if lora is None:
        assert torch.equal(ours, theirs)
    assert torch.allclose(ours, theirs, atol=1e-4)
    before = AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.allclose(before(tokens["input_ids"]).logits, theirs, atol=1e-3)


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    made = run(scenario(), tmp_path / "run")
    with pytest.raises(RunError, match="--as safetensors"):
        export(load_trained(made), tmp_path / "out", "transformers")
    for checkpoint in (made.path / "checkpoints").iterdir():
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    with pytest.raises(RunError, match="no checkpoint"):
        load_trained(Run.load(made.path))


def test_weights_of_clients_with_own_heads_need_a_choice(tmp_path: Path) -> None:
    """Each would get those of the first: worse models, and another's private head."""
    given = scenario(clients={"heads": "per_client"}, schedule={"rounds": 1})
    path = run_to_end(given, tmp_path / "run").path
    with pytest.raises(ScenarioError, match=gist("model.weights ... --client N")):
        scenario(model={"weights": str(path)})
