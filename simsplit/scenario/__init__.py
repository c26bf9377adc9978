"""Scenarios: the model that checks them, the files that hold them, and messages about mistakes."""

from simsplit.scenario.loading import (
    differences,
    load_scenario,
    own,
    parse,
    scenario_class,
    scenario_of,
)
from simsplit.scenario.model import Scenario
from simsplit.scenario.schema import file_schema
from simsplit.scenario.sweep_files import Cell, Sweep, has_sweep, load_sweep

__all__ = [
    "Cell",
    "Scenario",
    "Sweep",
    "differences",
    "file_schema",
    "has_sweep",
    "load_scenario",
    "load_sweep",
    "own",
    "parse",
    "scenario_class",
    "scenario_of",
]
