"""What the methods and models of plugins cost, with the options that they have by default."""

from collections.abc import Iterator

import torch

from simsplit.bench.overhead import (
    COLUMNS,
    SIMPLE,
    Case,
    Figures,
    Say,
    Side,
    against_plain,
    assembled,
    in_blocks,
    ratio_row,
    stepper,
)
from simsplit.plugins import Plugins
from simsplit.report.tables import Table

STEPS = 30


def own(device: str, quick: bool, say: Say, plugins: Plugins) -> Iterator[tuple[Table, Figures]]:
    """A table of methods, and one of models, where there are any."""
    where = torch.device(device)
    if methods := list(plugins.of("METHODS")):
        yield _against_raw(where, quick, say, plugins, methods)
    if models := [
        Case(f"{kind}, raw", {"kind": kind}, 64, [], 1.05, STEPS, plugins=plugins)
        for kind in plugins.of("MODELS")
    ]:
        yield against_plain(where, quick, say, models)


def _against_raw(
    device: torch.device, quick: bool, say: Say, plugins: Plugins, methods: list[str]
) -> tuple[Table, Figures]:
    """Steps with a method against steps without: a method that is lossy ends at another loss, so a
    plain loop would be no comparison.
    """
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    raw = Case("raw", SIMPLE, 64, [], 1.0, STEPS)
    for kind in methods:
        say(f"overhead: {kind} ...")
        case = Case(kind, SIMPLE, 64, [{"kind": kind}], 1.0, STEPS, plugins=plugins)
        with_it, without = (assembled(each, device, clients=10)[1] for each in (case, raw))
        sides = Side(stepper(with_it), with_it.clients), Side(stepper(without), without.clients)
        measured = in_blocks(sides, case, device, quick)
        row = dict(zip(COLUMNS, ratio_row(kind, measured, 1.0), strict=True)) | {"target": ""}
        rows.append(tuple(row.values()))
        figures[kind] = measured
    return Table("methods of plugins against raw (SimpleCNN, batch 64)", COLUMNS, rows), figures
