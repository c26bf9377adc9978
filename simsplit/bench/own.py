"""This bench measures the cost of plugins' methods and models, with their default options."""

from collections.abc import Iterator

import torch

from simsplit.bench.overhead import (
    SIMPLE,
    OverheadCase,
    against_plain,
    assemble_case,
    in_blocks,
    stepper,
)
from simsplit.bench.sides import BenchLines, BenchSide, Figures, Say, ratio_row
from simsplit.plugins import Plugins
from simsplit.report.tables import Table

STEPS = 30


def own(device: str, quick: bool, say: Say, plugins: Plugins) -> Iterator[tuple[Table, Figures]]:
    """Measure a table of the plugins' methods, and one of their models, if there are any."""
    where = torch.device(device)
    if methods := list(plugins.of("METHODS")):
        yield _compare_with_raw(where, quick, say, plugins, methods)
    if models := [
        OverheadCase(f"{kind}, raw", {"kind": kind}, 64, [], 1.05, STEPS, plugins=plugins)
        for kind in plugins.of("MODELS")
    ]:
        yield against_plain(where, quick, say, models)


def _compare_with_raw(
    device: torch.device, quick: bool, say: Say, plugins: Plugins, methods: list[str]
) -> tuple[Table, Figures]:
    """Compare steps with a method and steps without one.

    A plain loop would be no comparison, since a lossy method ends at another loss.
    """
    lines = BenchLines()
    raw = OverheadCase("raw", SIMPLE, 64, [], 1.0, STEPS)
    for kind in methods:
        say(f"overhead: {kind} ...")
        case = OverheadCase(kind, SIMPLE, 64, [{"kind": kind}], 1.0, STEPS, plugins=plugins)
        with_it, without = (assemble_case(each, device, clients=10)[1] for each in (case, raw))
        sides = (
            BenchSide(stepper(with_it), with_it.clients),
            BenchSide(stepper(without), without.clients),
        )
        measured = in_blocks(sides, case, device, quick)
        lines.add(kind, measured, ratio_row(kind, measured, None))
    return lines.table("methods of plugins against raw (SimpleCNN, batch 64)")
