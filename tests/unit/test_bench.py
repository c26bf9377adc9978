"""The bench runs, and would not report ratios of two trainings that differ."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import bench
import gpu_timing
import pytest
import torch
from benches import HOMES, choose_benches
from benches.attacking import CASES, TEXT_ATTACKS, AttackCase, measure_attacks
from benches.language import count_passes, language_of
from benches.writing import _refuse_other_texts, measure_writing
from gists import says

from simsplit.bench import Bench, overhead
from simsplit.bench.overhead import (
    OverheadCase,
    _refuse_other_loss,
    assemble_case,
    feed_of,
    stepper,
)
from simsplit.bench.parties import PartiesCase
from simsplit.bench.sides import PlainLoop, share_imports
from simsplit.errors import ProtocolError
from simsplit.network.clock import Flops
from simsplit.report.tables import Table
from simsplit.schedules.exchange import Exchange

TINY = OverheadCase("tiny", {"kind": "simplecnn"}, 4, [{"kind": "lightsplit", "ratio": 8}], 1.0, 1)

FOLLOWING = AttackCase("pcat", {"kind": "pcat"}, {"kind": "resnet20", "cut": 4, "width": 4}, 4)


BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cryptography", "grpc", "ray", "flwr"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import gpu_timing
from benches import HOMES, choose_benches

for name in HOMES.keys() - {"deploy", "scale"}:
    choose_benches([name], None)
"""


@pytest.mark.slow
def test_benches_but_those_of_hosts_and_deployments_need_no_extra() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], env=share_imports(), check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", HOMES)
def test_every_bench_is_found(name: str) -> None:
    assert callable(choose_benches([name], None)[name])


def test_a_lap_is_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways take laps, of heads, trunk, tails and optimizers: one to warm up, one timed."""
    laps, take = [], Exchange.step_together
    monkeypatch.setattr(Exchange, "step_together", lambda *given: (laps.append(1), take(*given))[1])
    figures = gpu_timing.compare_laps(torch.device("cpu"), quick=True)
    assert len(laps) == 4
    assert figures["looped, ms"] > 0 < figures["stacked, ms"]


def test_losses_that_differ_are_no_comparison() -> None:
    assembler, parts = assemble_case(TINY, torch.device("cpu"), clients=2)
    plain = PlainLoop(assembler, {client: feed_of(parts, client) for client in parts.clients})
    for client in (0, 1, 0):
        stepper(parts)(client)
        plain.train(client)
    samples = 12
    assert plain.loss_sum.item() / samples > 0.5
    _refuse_other_loss(parts, plain)
    assert parts.exchange.collect_reports([0]) == {0: {}}  # what was compared has been read
    stepper(parts)(0)
    with pytest.raises(ProtocolError, match="ends at loss"):
        _refuse_other_loss(parts, plain)


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["overhed"], "overhed ... overhead"),
        (["overhead", "--model", "folder"], "overhead ... language, attacks"),
    ],
)
def test_an_unknown_bench_is_named(words, gist, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        bench.main(words)
    assert error.value.code == 2
    assert says(capsys.readouterr().err, gist)


def small_bench(name: str, *titles: str) -> Bench:
    def measure(device, quick, say):
        for number, title in enumerate(titles):
            say(f"{name}: {title} ...")
            figures = {"case": {"ratio": 1.0 + number, "unknown": float("nan")}}
            yield Table(title, ("case", "ratio"), [("case", f"{1.0 + number}")]), figures

    return measure


FIRST, SECOND = ({"case": {"ratio": 1.0 + n, "unknown": None}} for n in range(2))


def test_json_is_one_document_by_bench_and_table(simsplit, monkeypatch):
    monkeypatch.setattr("simsplit.bench.overhead", small_bench("one", "first", "second"))
    code, out, err = simsplit("bench", "--json")
    assert code == 0
    document = {"overhead": {"first": FIRST, "second": SECOND}}
    assert json.loads(out, parse_constant=pytest.fail) == document
    assert err.splitlines()[0] == "one: first ..."


def test_without_json_tables_are_shown_as_they_come(capsys, monkeypatch):
    made = {"one": small_bench("one", "first", "second"), "other": small_bench("other", "third")}
    monkeypatch.setattr(bench, "choose_benches", lambda names, model: made)
    assert bench.main([]) == 0
    out = capsys.readouterr().out
    titles = ["first", "second", "third"]
    assert [line.strip() for line in out.splitlines() if line.strip() in titles] == titles


@pytest.mark.slow
def test_the_overhead_bench_yields_its_four_tables_in_one_document(simsplit, monkeypatch) -> None:
    raw = OverheadCase("raw", {"kind": "simplecnn"}, 16, [], 1.1, 20)
    halves = [PartiesCase("halves", {"kind": "mlp"}, 2, 20)]
    small = partial(overhead, cases=[TINY, raw], further={"simplecnn": 30}, parties=halves)
    crowd = OverheadCase("100 clients against 1", {"kind": "simplecnn"}, 4, [], 1.05, 10)
    monkeypatch.setattr(sys.modules[overhead.__module__], "CROWD", crowd)
    monkeypatch.setattr("simsplit.bench.overhead", small)
    code, out, _ = simsplit("bench", "overhead", "--quick", "--json")
    assert code == 0
    (tables,) = json.loads(out, parse_constant=pytest.fail).values()
    assert [len(figures) for figures in tables.values()] == [2, 1, 2, 1]
    assert list(next(iter(tables.values()))) == ["tiny", "raw"]
    every = [figure for table in tables.values() for figure in table.values()]
    assert all(figure["ratio"] > 0 for figure in every)


@pytest.mark.slow
def test_the_attacks_bench_times_one_that_follows_and_one_that_works() -> None:
    cases = [case for case in CASES if case.name in ("whitebox", "unsplit, batched")]
    attacks, (of_labels, took), of_texts = measure_attacks(
        "cpu", True, lambda said: None, [*cases, FOLLOWING]
    )
    assert list(of_texts[1]) == [attack["kind"] for attack in TEXT_ATTACKS]
    assert all(figure["minutes"] > 0 for figure in of_texts[1].values())
    table, figures = attacks
    assert [row[0] for row in of_labels.rows] == list(took) == ["spectral", "kmeans"]
    assert [row[0] for row in table.rows] == ["whitebox", "unsplit, batched", "pcat"]
    assert all(figure["per_s"] > 0 for figure in figures.values())


def test_a_mixture_is_worth_its_passes() -> None:
    """By hand: 3 heads, 3 trunks and a tail, then a third of 3 heads and 4 trunks, of 3 parts."""
    assert count_passes(Flops(1.0, 1.0, 1.0), messages=3, inputs=3) == pytest.approx(
        (7 + 7 / 3) / 3
    )
    assert count_passes(Flops(1.0, 2.0, 1.0), messages=1, inputs=1) > 1


def test_other_tokens_are_no_comparison() -> None:
    _refuse_other_texts([[1, 2]], [[1, 2]], "whole texts")
    with pytest.raises(ProtocolError, match="other tokens"):
        _refuse_other_texts([[1, 2]], [[1, 3]], "whole texts")


@pytest.mark.slow
def test_the_language_bench_holds_the_cut_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own check that both end at the same loss included."""
    module = sys.modules[count_passes.__module__]
    monkeypatch.setattr(module, "LENGTH", 8)
    monkeypatch.setattr(module, "BATCH", 2)
    writer = sys.modules[measure_writing.__module__]
    monkeypatch.setattr(writer, "PROMPT", 8)
    monkeypatch.setattr(writer, "BATCH", 2)
    whole, mixed, served, written = module.language("cpu", quick=True, say=lambda line: None)
    assert [figures["ratio"] > 0 for figures in written[1].values()] == [True, True]
    assert {"api over peft", *(name for name, *_ in module.API_CASES)} == set(served[1])
    assert [row[0] for row in whole[0].rows] == ["batch 2 x 8", "batch 4 x 8"]
    assert mixed[1]["MixGuard over its passes"]["passes"] > 2
    monkeypatch.setattr(sys.modules[language_of.__module__], "BATCH", 2)
    measure = choose_benches(["language"], module.pretrain_model(tmp_path))["language"]
    cut, writes, defended = measure("cpu", True, lambda line: None)
    (against_whole,) = cut[1].values()
    assert (against_whole["target"], against_whole["ratio"] > 0) == (1.02, True)
    assert writes[1].keys() == written[1].keys()
    assert writes[1]["writing over whole texts"]["pairs"] == 1
    cases = ["a step of training", "a step of warm-up", "a token written"]
    expected = [f"{kind}, {case}" for kind in ("admi", "dualguard") for case in cases]
    assert [*defended[1]] == [*expected, f"mid, {cases[0]}", f"mid, {cases[2]}"]
    assert [row[3] for row in defended[0].rows] == [""] * len(defended[1])
