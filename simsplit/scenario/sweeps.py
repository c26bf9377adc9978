"""A sweep: many cells of one scenario file, each a scenario of its own.

All cells are read and checked before any of them runs; what is wrong names the field and the cell.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.plugins import NO_PLUGINS, Given, Plugins, gathered
from simsplit.report.short_names import short_names
from simsplit.scenario.cell_names import scenario_name
from simsplit.scenario.cells import Draft, expand
from simsplit.scenario.files import Values, assign, read
from simsplit.scenario.loading import parse
from simsplit.scenario.model import Scenario


@dataclass(frozen=True)
class Cell:
    """One scenario of a sweep."""

    name: str
    """Its folder below the sweep's."""
    settings: Mapping[str, Any]
    """What the sweep gave it: dotted field -> value."""
    scenario: Scenario
    label: str = ""
    """Its `name` in a sweep's list, if it has one."""


@dataclass(frozen=True)
class Sweep:
    """A scenario file's cells, in order."""

    name: str
    cells: Sequence[Cell]
    plugins: Plugins = NO_PLUGINS
    """Whose parts the cells' scenarios may name."""

    @property
    def fields(self) -> dict[str, str]:
        """Every swept field, and the short name that its cells are called by."""
        return short_names(list(dict.fromkeys(name for c in self.cells for name in c.settings)))

    def hides(self, field: str) -> bool:
        """Whether every cell sets a field itself, whatever the file or an override says."""
        return all(
            any(f"{field}.".startswith(f"{name}.") for name in cell.settings) for cell in self.cells
        )


def has_sweep(path: str | Path, overrides: Mapping[str, str] | None = None) -> bool:
    """Whether a scenario file, under these overrides, stands for several."""
    return read(Path(path), overrides or {}).get("sweep") is not None


def load_sweep(
    path: str | Path,
    overrides: Mapping[str, str] | None = None,
    plugins: Given = (),
) -> Sweep:
    """Read a scenario file that has a `sweep`; `overrides` apply below what is swept.

    `plugins` are modules with parts of your own: by name, as .py files, or imported.

    >>> len(load_sweep("file.yaml", {"sweep.seed": "[0, 1]"}).cells)  # doctest: +SKIP
    """
    values = read(Path(path), overrides or {})
    declared = values.pop("sweep", None)
    if declared is None:
        raise ScenarioError(
            "sweep", f"{path} has none; add one, such as {{seed: [0, 1, 2]}}, or use: simsplit run"
        )
    name = values.setdefault("name", Scenario.model_fields["name"].default)
    known = gathered(plugins)
    cells, problems = [], _Problems()
    drafts = expand(declared)
    for draft in drafts:
        try:
            cells.append(_cell(draft, values, known))
        except ScenarioError as error:
            problems.note(error, draft.name)
    problems.raise_any(len(drafts))
    _refuse_twins(cells)
    return Sweep(name, tuple(cells), known)


def _cell(draft: Draft, base: Values, plugins: Plugins) -> Cell:
    values = copy.deepcopy(base)
    # a whole part before the fields in it, in whichever order they are swept
    for name in sorted(draft.settings, key=lambda name: name.count(".")):
        assign(values, name, copy.deepcopy(draft.settings[name]))
    if isinstance(values["name"], str):  # anything else is for the scenario to refuse
        values["name"] = scenario_name(values["name"], draft.name)
    return Cell(draft.name, draft.settings, parse(values, plugins), draft.label)


class _Problems:
    """What is wrong with which cells; said once, however many cells share it."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], list[str]] = {}

    def note(self, error: ScenarioError, cell: str) -> None:
        for problem in error.problems:
            self.cells.setdefault((problem.field, problem.reason), []).append(cell)

    def raise_any(self, count: int) -> None:
        """One ScenarioError of all that was noted."""
        if self.cells:
            raise ScenarioError.of_many(
                [
                    ScenarioError(name, f"{reason} ({_whose(cells, count)})")
                    for (name, reason), cells in self.cells.items()
                ]
            )


def _whose(cells: Sequence[str], count: int) -> str:
    if len(cells) == count:
        return f"in all {count} cells of the sweep" if count > 1 else f"in cell {cells[0]}"
    named = f"in cell {cells[0]}"
    return named if len(cells) == 1 else f"{named} and {len(cells) - 1} more"


def _refuse_twins(cells: Sequence[Cell]) -> None:
    """Cells that would be the same run twice, such as a ratio of 8 and one of 8.0."""
    seen: dict[str, str] = {}
    for cell in cells:
        content = cell.scenario.model_dump_json(exclude={"name"})
        if content in seen:
            raise ScenarioError("sweep", f"{seen[content]} and {cell.name} are the same scenario")
        seen[content] = cell.name
