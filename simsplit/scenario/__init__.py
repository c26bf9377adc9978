"""The scenario: its model, the files that it is read from, and the messages about its mistakes."""

from simsplit.scenario.model import (
    Scenario,
    file_schema,
    load_scenario,
    parse,
    scenario_class,
)

__all__ = ["Scenario", "file_schema", "load_scenario", "parse", "scenario_class"]
