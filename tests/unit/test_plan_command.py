"""`simsplit plan`: what it prints, what it leaves out, and what it refuses."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import TINY
from gists import says
from typer.testing import CliRunner

import simsplit
from simsplit.__main__ import app
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.scenario import load_sweep, parse
from simsplit.scenario.files import merge

PHONES: dict[str, Any] = {
    "name": "phones",
    "data": {"source": "cifar10"},
    "model": {"kind": "resnet18"},
    "clients": {"count": 500, "heads": "per_client"},
    "schedule": {"kind": "parallel", "rounds": 20},
    "cohort": {"fraction": 0.1},
    "network": {"device": "phone", "link": "lte"},
    "evaluate": {"clients": 2},
}


def write(folder: Path, **changes: Any) -> str:
    file = folder / "given.yaml"
    file.write_text(yaml.safe_dump(merge(TINY, changes)))
    return str(file)


def ask(*words: str, columns: int = 140) -> str:
    # Of a known width: a narrow table is split, and other tests may leave COLUMNS behind.
    width = {"COLUMNS": str(columns)}
    done = CliRunner().invoke(app, ["plan", *words], catch_exceptions=False, env=width)
    assert done.exit_code == 0
    return done.stdout


def test_a_plan_is_a_sentence_and_small_tables(tmp_path: Path) -> None:
    shown = ask(write(tmp_path), "--no-timing", "--set", "network.link=lan")
    first, *rest = shown.splitlines()
    assert says(first, "3 clients ... 2 rounds ... lan, laptop ... client ... server")
    assert "here" not in first
    for word in ("smashed", "head", "client", "datacentre", "activations"):
        assert any(word in line for line in rest), word
    assert not (tmp_path / "runs").exists()


def test_clients_have_their_names(tmp_path: Path) -> None:
    file = write(tmp_path, clients={"names": ["Bonn", "Graz", "Linz"]})
    assert "Graz" in ask(file, "--no-timing")
    assert simsplit.plan(file, timing=False).clients["name"].tolist() == ["Bonn", "Graz", "Linz"]


def test_a_narrow_terminal_gets_narrow_tables(tmp_path: Path) -> None:
    _, *tables = ask(write(tmp_path), "--no-timing", columns=50).splitlines()
    assert max(map(len, tables)) <= 50


def test_json_is_one_document(tmp_path: Path) -> None:
    told = json.loads(ask(write(tmp_path), "--json"))
    assert told["clients"] == 3
    assert told["rounds"] == len(told["tables"]["rounds"]) == 2
    assert told["bytes_total"] == told["tables"]["rounds"][-1]["bytes_total"]
    assert told["bytes_total"] == sum(leg["training"] for leg in told["tables"]["bytes"])
    assert told["train_s"] > 0
    assert told["evaluate_s"] > 0
    assert {each["party"] for each in told["tables"]["memory"]} == {"client", "server"}


def test_a_sweep_has_a_line_a_cell_and_a_total(tmp_path: Path) -> None:
    file = write(tmp_path, sweep={"clients.heads": ["shared", "per_client"]})
    shown = ask(file, "--no-timing")
    assert sum("heads=" in line for line in shown.splitlines()) == 2
    told = json.loads(ask(file, "--no-timing", "--json"))
    assert len(told["cells"]) == 2
    planned = simsplit.plan_sweep(load_sweep(file), timing=False)
    assert planned.table["bytes_total"].tolist() == [
        cell["bytes_total"] for cell in told["cells"].values()
    ]


def test_many_phones_are_planned_without_their_data() -> None:
    forecast = simsplit.plan(PHONES, timing=False)
    assert forecast.facts.samples == {"train": 50_000, "test": 10_000}
    assert (forecast.rounds["clients"] == 50).all()
    assert (forecast.rounds["samples"] == 5_000).all()
    smashed = forecast.bytes.set_index("leg")["training"]["smashed"]
    cut = parse(PHONES).model.compute_shapes((3, 32, 32))[0]
    assert smashed == 20 * 5_000 * math.prod(cut) * 4


def test_flops_go_with_the_samples(tmp_path: Path) -> None:
    forecast = simsplit.plan(write(tmp_path), timing=False)
    flops = forecast.flops.set_index("segment")
    assert flops.loc["trunk", "party"] == "server"
    samples = forecast.rounds["samples"].sum()
    assert (flops["forward_total"] == samples * flops["forward"]).all()
    assert (flops["backward_total"] == 2 * flops["forward_total"]).all()


def test_data_passed_from_python_are_planned() -> None:
    import torch

    given = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 4
    forecast = simsplit.plan(merge(TINY, {"data": {"source": None}}), data=given, timing=False)
    assert forecast.rounds["samples"].tolist() == [32, 32]


def test_texts_passed_from_python_are_read() -> None:
    model = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
    given = {"model": model, "clients": {"count": 2}, "schedule": {"rounds": 1}}
    forecast = simsplit.plan(given, data=["a text", "another text"] * 20, timing=False)
    assert forecast.rounds["samples"].sum() == 32
    assert not forecast.facts.notes


def test_a_deadline_is_that_of_the_network(tmp_path: Path) -> None:
    changes = {"cohort": {"deadline_s": 5.0}, "network": {}, "clients": {"heads": "per_client"}}
    forecast = simsplit.plan(write(tmp_path, **changes), timing=False)
    assert len(forecast.facts.notes) == 1


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"kind": "hub", "name": "nobody/nothing"}, "data.source"),
        ({"kind": "text_hub", "name": "nobody/nothing", "task": "sst2"}, "data.train_samples"),
    ],
)
def test_what_is_not_known_is_asked_for(source: dict[str, Any], field: str) -> None:
    model = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
    texts = source["kind"] == "text_hub"
    given = {"data": {"source": source}, **({"model": model} if texts else {})}
    with pytest.raises(ScenarioError) as caught:
        simsplit.plan(given, timing=False)
    assert caught.value.field == field
    assert says(str(caught.value), "--read-data")


def test_texts_whose_number_is_given_are_planned() -> None:
    model = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
    source = {"kind": "text_hub", "name": "nobody/nothing", "task": "sst2", "length": 12}
    data = {"source": source, "train_samples": 40, "test_samples": 8}
    given = {"data": data, "model": model, "clients": {"count": 2}, "train": {"batch_size": 8}}
    forecast = simsplit.plan({**given, "schedule": {"rounds": 1}}, timing=False)
    assert forecast.bytes.set_index("leg")["training"]["smashed"] == 40 * 12 * 16 * 4


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    changes = {"attacks": [{"kind": "fsha"}], "data": {"auxiliary": 0.3}}
    forecast = simsplit.plan(write(tmp_path, **changes), timing=False)
    assert any("attacks" in note for note in forecast.facts.notes)


def test_a_wrong_field_is_named(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "simsplit", "plan", write(tmp_path), "--set", "clients.count=0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert says(done.stderr, "clients.count: ... 0")
    assert not done.stdout


def test_a_plan_has_the_warnings_of_a_run(tmp_path: Path) -> None:
    words = ["plan", write(tmp_path, threads=4096), "--no-timing"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert says(done.stderr, "warning: ... threads: ... 4096")


def test_the_error_is_one_of_ours() -> None:
    with pytest.raises(SimsplitError):
        simsplit.plan("no-such-scenario", timing=False)


def test_a_budget_beyond_what_noise_is_made_for_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(write(tmp_path)), "--epsilon", "800"])
    assert result.exit_code == 2
    assert says(result.output, "800.0 is not in the range")
