"""Observers that `--track` adds to a scenario or a sweep."""

from collections.abc import Sequence
from dataclasses import replace

from simsplit.errors import SimsplitError
from simsplit.observers import OBSERVERS
from simsplit.scenario.loading import parse
from simsplit.scenario.messages import describe_unknown
from simsplit.scenario.model import Scenario
from simsplit.scenario.sweeps import Sweep


def add_observers(scenario: Scenario, kinds: Sequence[str]) -> Scenario:
    """Return the scenario with these kinds of observers added, unless it has them already."""
    known = [*OBSERVERS, *scenario.plugins.of("OBSERVERS")]
    for kind in kinds:
        if kind not in known:
            raise SimsplitError(f"--track: {describe_unknown(kind, known)}")
    has = [observer.kind_name for observer in scenario.observers]
    more = [{"kind": kind} for kind in dict.fromkeys(kinds) if kind not in has]
    if not more:
        return scenario
    values = scenario.model_dump(mode="json")
    return parse({**values, "observers": [*values["observers"], *more]}, scenario.plugins)


def add_observers_to_sweep(sweep: Sweep, kinds: Sequence[str]) -> Sweep:
    """Return the sweep with these kinds of observers added to all cells."""
    cells = [replace(cell, scenario=add_observers(cell.scenario, kinds)) for cell in sweep.cells]
    return replace(sweep, cells=cells)
