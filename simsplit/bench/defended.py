"""Generation through a given model's cut is timed, and the time that defences of both ends add.

Each defence's training step, warm-up step and generated token are compared with those of the plain
cut, on the same texts. ADMI's paper states 1.5 plain steps, 0.5 steps, and 1.2 to 1.3 tokens.
"""

from collections.abc import Iterator
from typing import Any

import torch

from simsplit.bench.given import random_texts
from simsplit.bench.language import LENGTH, build_run, enter, scenario_on
from simsplit.bench.sides import BenchLines, BenchSide, Figures, Say, ratio_of, ratio_row
from simsplit.bench.writing import measure_writing, prepare_writers
from simsplit.parties.calls import Plan
from simsplit.report.tables import Table

BATCH = 8
STEPS, PAIRS = 1, 5
TOKENS = 16
DEFENCES: tuple[dict[str, Any], ...] = ({"kind": "admi"}, {"kind": "dualguard"}, {"kind": "mid"})


def language_of(device: str, quick: bool, say: Say, model: str) -> Iterator[tuple[Table, Figures]]:
    """Measure generation with a given model, and the cost of defences of its ends."""
    where = torch.device(device)
    given = scenario_on(model, [], BATCH)
    yield measure_writing(given, random_texts(given, LENGTH), where, quick, say, large=True)
    yield _compare_defences(model, where, quick, say)


def _compare_defences(
    model: str, device: torch.device, quick: bool, say: Say
) -> tuple[Table, Figures]:
    lines = BenchLines()
    for method in DEFENCES:
        say(f"language: {method['kind']} against a plain cut ...")
        for case, measured in _measure_defence(model, method, device, quick):
            name = f"{method['kind']}, {case}"
            lines.add(name, measured, ratio_row(name, measured, None))
    title = f"defences of both ends over a plain cut (batches of {BATCH} x {LENGTH} tokens)"
    return lines.table(title)


def _measure_defence(
    model: str, method: dict[str, Any], device: torch.device, quick: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the ratio of each kind of step in its phase; the plain cut always trains."""
    steps, pairs = (1, 2) if quick else (STEPS, PAIRS)
    plain = build_run(model, [], device, batch=BATCH)[1]
    parts = build_run(model, [method], device, batch=BATCH)[1]
    warming, proper = parts.pool.ask(0, Plan(1))
    phases = [("a step of training", proper), *(("a step of warm-up", each) for each in warming)]
    for case, phase in phases:
        enter(parts, phase)
        sides = BenchSide(parts.exchange.step), BenchSide(plain.exchange.step)
        yield case, ratio_of(sides, steps, pairs, device)
    tokens = 4 if quick else TOKENS
    writing_with, writing_plain = (
        BenchSide(prepare_writers(given, random_texts(given, LENGTH), device, tokens))
        for given in (scenario_on(model, each, BATCH) for each in ([method], []))
    )
    measured = ratio_of((writing_with, writing_plain), 1, pairs, device)
    per_token = {key: measured[key] / tokens for key in ("ms", "against_ms")}
    yield "a token written", measured | per_token
