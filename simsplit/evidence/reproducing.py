"""Measures what a table lacks: the cells are chosen, trained and attacked, their rows written.

A cell is an ordinary run in a sweep directory below the work folder, so that whatever ends the
command loses at most one round. Rows are written as cells end.
"""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from simsplit.errors import RunError
from simsplit.evidence.cells import MeasuringCell
from simsplit.evidence.claims import Claim
from simsplit.evidence.measurements import Measurement, add
from simsplit.progress import SilentSweep, SweepObserver
from simsplit.report.numbers import measured
from simsplit.results import Run
from simsplit.results.environment import _commit, _version
from simsplit.scenario import Sweep
from simsplit.sweep import run_sweep

WORK = Path("runs/reproduce")
"""The folder of the runs that measure, from which an interrupted command goes on."""
_LEAST_MIN = 0.05


@dataclass(frozen=True)
class Plan:
    """The cells that are to be measured, and what they will take."""

    cells: Sequence[MeasuringCell]
    minutes: Mapping[str, float]
    """Setting -> minutes of one of its cells."""

    def cost(self, cells: Sequence[MeasuringCell] | None = None) -> float:
        """Return the minutes that cells take one after the other; by default all of them."""
        return sum(self.minutes[cell.setting] for cell in (self.cells if cells is None else cells))

    def within(self, budget_min: float) -> "Plan":
        """Return the cells, cheap ones first, that fit a budget.

        Raises:
            RunError: where not even the cheapest fits.
        """
        cheap = sorted(self.cells, key=lambda cell: self.minutes[cell.setting])
        taken: list[MeasuringCell] = []
        spent = 0.0
        for cell in cheap:
            spent += self.minutes[cell.setting]
            if spent > budget_min:
                break
            taken.append(cell)
        if cheap and not taken:
            least = self.minutes[cheap[0].setting]
            raise RunError(
                f"the cheapest cell takes about {least:.3g} min, more than the budget of "
                f"{budget_min:.3g} min; give --budget at least {least:.2g}m"
            )
        return replace(self, cells=taken)


def plan(
    claim: Claim, cells: Sequence[MeasuringCell], rows: Sequence[Measurement]
) -> Plan:
    """Choose the cells whose rows are missing or stale, and say what each will take."""
    del claim
    known = {(row.setting, row.seed) for row in rows}
    lacking = [cell for cell in cells if (cell.setting, cell.seed) not in known]
    return Plan(lacking, estimate(cells, rows))


def estimate(
    cells: Sequence[MeasuringCell], rows: Sequence[Measurement]
) -> dict[str, float]:
    """Estimate the minutes of each setting's cells: as measured, else as the claim says."""
    took: dict[str, float] = {}
    for row in rows:
        took[row.setting] = max(row.minutes, _LEAST_MIN)
    return {cell.setting: took.get(cell.setting, cell.takes_min) for cell in cells}
