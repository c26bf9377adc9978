"""What commands with --json print: plain values, and numbers as they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.packets import Leg
from simsplit.report.entries import load_entries
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.scenario import Scenario

Document = dict[str, Any]


def of_run(run: Run) -> Document:
    """A run's summary, and where it lies."""
    return {**run.summary, "path": str(run.path)}


def of_comparison(paths: Sequence[Path]) -> Document:
    """Each run's summary, and what its sweep set; which cells are left out, and why."""
    entries, left_out = load_entries(paths)
    runs = [
        {
            "sweep": entry.sweep and str(entry.sweep),
            "set": dict(entry.settings),
            **of_run(entry.run),
        }
        for entry in entries
    ]
    return {"runs": runs, "left_out": left_out}


def of_attack(run: Run, name: str) -> Document:
    """Describe what attacks of one's kind recovered, and the guesses that need none."""
    figures = PRESENTATIONS[run.find_kind(name)].describe(run)
    return {"path": str(run.path), "attack": name, "figures": figures}


def of_tables(tables: Sequence[Table]) -> list[Document]:
    """Tables as their titles and rows."""
    return [
        {
            "title": table.title,
            "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        }
        for table in tables
    ]


def of_scenario(scenario: Scenario) -> Document:
    """What a valid scenario would send, as far as that is known before anything is loaded."""
    info = scenario.data.describe()
    if info is None or not scenario.model.at_hand:
        return {"valid": True, "shapes": None}
    (cut, features), (smashed, sent) = scenario.shapes(info)
    shapes = {"cut": {"shape": cut, "sent": smashed}}
    if scenario.crossings.has(Leg.FEATURES):
        shapes["features"] = {"shape": features, "sent": sent}
    return {"valid": True, "shapes": shapes}


def of_mistakes(error: ScenarioError) -> Document:
    """What is wrong with a scenario, by field."""
    problems = [{"field": each.field, "reason": each.reason} for each in error.problems]
    return {"valid": False, "problems": problems}
