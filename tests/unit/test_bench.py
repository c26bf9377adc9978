"""The bench runs, and would not report ratios of two trainings that differ."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from simsplit.bench import Bench, benches, measure_attacks, overhead
from simsplit.bench.attacking import CASES, TEXT_ATTACKS, AttackCase
from simsplit.bench.language import count_passes, language_of
from simsplit.bench.overhead import (
    OverheadCase,
    _refuse_other_loss,
    assemble_case,
    feed_of,
    stepper,
)
from simsplit.bench.sides import PlainLoop
from simsplit.bench.writing import _refuse_other_texts, measure_writing
from simsplit.errors import ProtocolError, SimsplitError
from simsplit.network.clock import Flops
from simsplit.report.tables import Table

TINY = OverheadCase("tiny", {"kind": "simplecnn"}, 4, [{"kind": "lightsplit", "ratio": 8}], 1.0, 1)

FOLLOWING = AttackCase("pcat", {"kind": "pcat"}, {"kind": "resnet20", "cut": 4, "width": 4}, 4)


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


def test_an_unknown_bench_is_named() -> None:
    with pytest.raises(SimsplitError, match=r"'overhed'.*'overhead'"):
        next(benches("overhed", device="cpu", quick=True, say=print))


def test_a_model_of_the_users_is_measured_by_one_bench() -> None:
    with pytest.raises(SimsplitError, match=r"bench overhead.*bench la"):
        next(benches("overhead", device="cpu", quick=True, say=print, model="folder"))


def small_bench(name: str, *titles: str) -> Bench:
    def bench(device, quick, say):
        for number, title in enumerate(titles):
            say(f"{name}: {title} ...")
            figures = {"case": {"ratio": 1.0 + number, "unknown": float("nan")}}
            yield Table(title, ("case", "ratio"), [("case", f"{1.0 + number}")]), figures

    return bench


@pytest.fixture
def two_small_benches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"one": small_bench("one", "first", "second"), "other": small_bench("other", "third")}
    monkeypatch.setattr("simsplit.bench.BENCHES", made)


FIRST, SECOND = ({"case": {"ratio": 1.0 + n, "unknown": None}} for n in range(2))


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["one"], {"one": {"first": FIRST, "second": SECOND}}),
        ([], {"one": {"first": FIRST, "second": SECOND}, "other": {"third": FIRST}}),
    ],
)
@pytest.mark.usefixtures("two_small_benches")
def test_json_is_one_document_by_bench_and_table(words, gist, simsplit):
    code, out, err = simsplit("bench", *words, "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail) == gist
    assert err.splitlines()[0] == "one: first ..."


@pytest.mark.usefixtures("two_small_benches")
def test_without_json_tables_are_shown_as_they_come(simsplit):
    code, out, _ = simsplit("bench")
    assert code == 0
    assert [line.strip() for line in out.splitlines() if line.strip() in TITLES] == TITLES


TITLES = ["first", "second", "third"]


@pytest.mark.slow
def test_the_overhead_bench_yields_its_three_tables_in_one_document(simsplit, monkeypatch) -> None:
    raw = OverheadCase("raw", {"kind": "simplecnn"}, 16, [], 1.1, 20)
    small = partial(overhead, cases=[TINY, raw], further={"simplecnn": 30})
    crowd = OverheadCase("100 clients against 1", {"kind": "simplecnn"}, 4, [], 1.05, 10)
    monkeypatch.setattr(sys.modules[overhead.__module__], "CROWD", crowd)
    monkeypatch.setattr("simsplit.bench.BENCHES", {"overhead": small})
    code, out, _ = simsplit("bench", "overhead", "--quick", "--json")
    assert code == 0
    (tables,) = json.loads(out, parse_constant=pytest.fail).values()
    assert [len(figures) for figures in tables.values()] == [2, 2, 1]
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
    named = {"name": "language", "model": module.pretrain_model(tmp_path)}
    monkeypatch.setattr(sys.modules[language_of.__module__], "BATCH", 2)
    cut, writes, defended = benches(**named, device="cpu", quick=True, say=lambda line: None)
    (against_whole,) = cut[2].values()
    assert (against_whole["target"], against_whole["ratio"] > 0) == (1.03, True)
    assert (writes[0], writes[2].keys()) == ("language", written[1].keys())
    assert writes[2]["writing over whole texts"]["pairs"] == 1
    cases = ["a step of training", "a step of warm-up", "a token written"]
    expected = [f"{kind}, {case}" for kind in ("admi", "dualguard") for case in cases]
    assert [*defended[2]] == [*expected, f"mid, {cases[0]}", f"mid, {cases[2]}"]
    assert [row[3] for row in defended[1].rows] == [""] * len(defended[2])
