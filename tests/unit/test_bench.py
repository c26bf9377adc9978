"""The bench runs, and would not report ratios of two trainings that differ."""

import pytest
import torch

from simsplit.bench import attacking, benches, overhead
from simsplit.bench.attacking import CASES
from simsplit.bench.attacking import Case as Attacked
from simsplit.bench.overhead import Case, _assembled, _feeds, _same_loss, _stepper
from simsplit.bench.plain import PlainLoop
from simsplit.errors import ProtocolError, ScenarioError

TINY = Case("tiny", {"kind": "simplecnn"}, 4, [{"kind": "lightsplit", "ratio": 8}], 1.0, 1)

FOLLOWING = Attacked("pcat", {"kind": "pcat"}, {"kind": "resnet20", "cut": 4, "width": 4}, 4)


def test_losses_that_differ_are_no_comparison() -> None:
    assembler, parts = _assembled(TINY, torch.device("cpu"), clients=2)
    plain = PlainLoop(assembler, _feeds(parts))
    for client in (0, 1, 0):
        _stepper(parts)(client)
        plain.train(client)
    reports = parts.exchange.report
    samples = 12
    assert plain.loss_sum.item() / samples > 0.5
    _same_loss(parts, plain)
    assert reports(0) == {}  # what was compared has been read
    _stepper(parts)(0)
    with pytest.raises(ProtocolError, match="the split ends at loss"):
        _same_loss(parts, plain)


def test_an_unknown_bench_is_named() -> None:
    with pytest.raises(ScenarioError, match="no bench 'overhed', did you mean 'overhead'"):
        next(benches("overhed", device="cpu", quick=True, say=print))


@pytest.mark.slow
def test_the_overhead_bench_yields_its_three_tables() -> None:
    said: list[str] = []
    raw = Case("raw", {"kind": "simplecnn"}, 16, [], 1.1, 20)
    found = list(overhead("cpu", True, said.append, [TINY, raw], {"simplecnn": 100}))
    assert [len(table.rows) for table, _ in found] == [2, 2, 1]
    assert [row[0] for row in found[0][0].rows] == ["tiny", "raw"]
    assert len(said) == 5
    figures = [figure for _, part in found for figure in part.values()]
    assert len(figures) == 5
    assert all(isinstance(figure, dict) and figure["ratio"] > 0 for figure in figures)


@pytest.mark.slow
def test_the_attacks_bench_times_one_that_follows_and_one_that_works() -> None:
    cases = [case for case in CASES if case.name in ("whitebox", "unsplit, batched")]
    ((table, figures),) = attacking("cpu", True, lambda said: None, [*cases, FOLLOWING])
    assert [row[0] for row in table.rows] == ["whitebox", "unsplit, batched", "pcat"]
    assert all(figure["per_s"] > 0 for figure in figures.values())
