"""Observers that are named beside a scenario, as `--track` does."""

from collections.abc import Sequence
from dataclasses import replace

from simsplit.errors import SimsplitError
from simsplit.observers import OBSERVERS
from simsplit.scenario.loading import parse
from simsplit.scenario.messages import unknown
from simsplit.scenario.model import Scenario
from simsplit.scenario.sweeps import Sweep


def tracked(scenario: Scenario, kinds: Sequence[str]) -> Scenario:
    """The scenario with these observers as well, each once; its own keep their fields."""
    known = [*OBSERVERS, *scenario.plugins.of("OBSERVERS")]
    for kind in kinds:
        if kind not in known:
            raise SimsplitError(f"--track: {unknown(kind, known)}")
    has = [observer.word for observer in scenario.observers]
    more = [{"kind": kind} for kind in dict.fromkeys(kinds) if kind not in has]
    if not more:
        return scenario
    values = scenario.model_dump(mode="json")
    return parse({**values, "observers": [*values["observers"], *more]}, scenario.plugins)


def tracked_sweep(sweep: Sweep, kinds: Sequence[str]) -> Sweep:
    """The sweep with these observers in all of its cells."""
    cells = [replace(cell, scenario=tracked(cell.scenario, kinds)) for cell in sweep.cells]
    return replace(sweep, cells=cells)
