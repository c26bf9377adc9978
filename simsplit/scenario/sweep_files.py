"""A sweep is many scenarios in one file: its cells.

All cells are read and checked before any of them runs; an error names the field and the cell.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError, SimsplitError, format_count
from simsplit.observers import OBSERVERS
from simsplit.plugins import NO_PLUGINS, Given, Plugins, gather_plugins
from simsplit.report.short_names import short_names
from simsplit.scenario import search_config
from simsplit.scenario.cells import Draft, expand, name_scenario
from simsplit.scenario.files import Values, assign, read
from simsplit.scenario.hiding import hide_foreign_values
from simsplit.scenario.loading import parse
from simsplit.scenario.messages import describe_unknown
from simsplit.scenario.model import Scenario
from simsplit.scenario.search_config import Search
from simsplit.schedules.schedule import DEFAULT_ROUNDS


@dataclass(frozen=True)
class Cell:
    """One scenario of a sweep."""

    name: str
    """The name of the cell, and of its folder below the sweep's."""
    settings: Mapping[str, Any]
    """The swept fields' values: dotted field -> value."""
    scenario: Scenario
    label: str = ""
    """The `name` of its entry in `sweep.list`; empty if it has none."""


@dataclass(frozen=True)
class Sweep:
    """The cells of a scenario file, in order."""

    name: str
    cells: Sequence[Cell]
    plugins: Plugins = NO_PLUGINS
    """The plugins whose parts the cells' scenarios may name."""
    search: Search | None = None
    """What chooses settings one after the other, if anything does; `cells` are examples then."""
    declared: Any = None
    """The field `sweep` as it was written."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """The file's other fields, which all cells share."""
    observers: Sequence[str] = ()
    """Kinds of observers that were added to all cells."""

    @property
    def is_search(self) -> bool:
        """Whether settings are drawn to find the best, rather than listed to compare all."""
        return self.search is not None or "random" in (self.declared or ())

    def try_settings(self, tried: Sequence[Mapping[str, Any]]) -> "Sweep":
        """Return the sweep whose cells have the settings that a search has chosen so far."""
        drafts = expand(self.declared, [dict(each) for each in tried])
        cells = [_make_cell(draft, dict(self.base), self.plugins) for draft in drafts]
        return add_observers_to_sweep(replace(self, cells=tuple(cells)), self.observers)

    @property
    def fields(self) -> dict[str, str]:
        """The short name of every swept field, as cells' names use it."""
        return short_names(list(dict.fromkeys(name for c in self.cells for name in c.settings)))

    def hides(self, field: str) -> bool:
        """Return whether every cell sets a field, so that its value in the file has no effect."""
        # The dots keep `train.client` from hiding `train.client_x`.
        return all(
            any(f"{field}.".startswith(f"{name}.") for name in cell.settings) for cell in self.cells
        )


def has_sweep(path: str | Path, overrides: Mapping[str, str] | None = None) -> bool:
    """Return whether a scenario file with these overrides has a `sweep`."""
    return read(Path(path), overrides or {}).get("sweep") is not None


def load_sweep(
    path: str | Path,
    overrides: Mapping[str, str] | None = None,
    plugins: Given = (),
) -> Sweep:
    """Read a scenario file that has a `sweep`; swept values replace those of `overrides`.

    `plugins` are modules with parts of your own, given by name, as .py files or imported.

    >>> len(load_sweep("file.yaml", {"sweep.seed": "[0, 1]"}).cells)  # doctest: +SKIP
    """
    values = read(Path(path), overrides or {})
    with hide_foreign_values(Path(path), overrides or {}):
        return _make_sweep(path, values, gather_plugins(plugins))


def _make_sweep(path: str | Path, values: Values, known: Plugins) -> Sweep:
    declared = values.pop("sweep", None)
    if declared is None:
        raise ScenarioError(
            "sweep", f"{path} has none; add one, such as {{seed: [0, 1, 2]}}, or use: simsplit run"
        )
    # Cells' scenarios are named after it, so it must be there.
    name = values.setdefault("name", Scenario.model_fields["name"].default)
    cells: list[Cell] = []
    wrong: dict[tuple[str, str], list[str]] = {}
    drafts = expand(declared)
    for draft in drafts:
        try:
            cells.append(_make_cell(draft, values, known))
        except ScenarioError as error:
            for problem in error.problems:
                wrong.setdefault((problem.field, problem.reason), []).append(draft.name)
    if wrong:  # a problem that several cells share is reported once
        raise ScenarioError.of_many(
            [
                ScenarioError(where, f"{reason} ({_format_cells(names, len(drafts))})")
                for (where, reason), names in wrong.items()
            ]
        )
    _refuse_twins(cells)
    search = search_config.read(declared)
    if search is not None:
        for cell in cells:
            _refuse_choice_by_test(search, cell.scenario)
            _refuse_unfit_pruning(search, cell.scenario)
            _refuse_other_axes(search, cell)
    return Sweep(name, tuple(cells), known, search, declared, values)


def _refuse_choice_by_test(search: Search, scenario: Scenario) -> None:
    """Raise ScenarioError unless a search chooses by data that its result is not told on."""
    where = f"sweep.{search_config.FORM}.figure"
    if search.figure is not None and search.figure.startswith("test_"):
        raise ScenarioError(
            where, f"got {search.figure}: a search must not choose by the test data; use validation"
        )
    if search.figure is None and not getattr(scenario.data, "validation", None):
        raise ScenarioError(
            where,
            "chooses by validation data, of which there are none; hold some out: "
            "data.validation: 0.1",
        )


def _refuse_unfit_pruning(search: Search, scenario: Scenario) -> None:
    """Raise ScenarioError unless a pruner can judge settings by validation data on the way."""
    where = f"sweep.{search_config.FORM}.pruner"
    if search.pruner is None:
        return
    if search.figure is not None and search.figure not in scenario.figures:
        named = [name for name in scenario.figures if name.startswith("validation_")]
        known = ", ".join(named) or "none, without data.validation"
        raise ScenarioError(
            where,
            f"judges rounds by a figure on validation data, and {search.figure} is none; "
            f"{search_config.FORM}.figure may be: {known}",
        )
    if scenario.schedule.epochs is not None:
        raise ScenarioError(where, "needs a number of rounds; use schedule.rounds, not epochs")
    if (count := count_evaluations(scenario)) <= search.grace:
        raise ScenarioError(
            where,
            f"has nothing to give up: settings are evaluated {format_count(count, 'time')}, "
            f"and {search_config.FORM}.grace is {search.grace}; "
            "more rounds, or a smaller evaluate.every",
        )


def count_evaluations(scenario: Scenario) -> int:
    """Return how many rounds of a scenario's schedule are evaluated."""
    rounds = scenario.schedule.rounds
    rounds = DEFAULT_ROUNDS if rounds is None else rounds
    return sum(scenario.evaluate.due(number, rounds) for number in range(1, rounds + 1))


def _refuse_other_axes(search: Search, cell: Cell) -> None:
    """Raise ScenarioError for fields beside a search: it would choose by a mean over them."""
    beside = [name for name in cell.settings if name not in (*search.fields, "seed")]
    if beside:
        raise ScenarioError(
            f"sweep.{search_config.FORM}",
            f"has {beside[0]} beside it, and would choose by a mean over its values; search over "
            f"it too, or sweep seeds alone (grid: {{seed: [0, 1, 2]}})",
        )


def _make_cell(draft: Draft, base: Values, plugins: Plugins) -> Cell:
    """Return the cell of a draft, its scenario checked."""
    values = copy.deepcopy(base)
    # A whole part must be set before the fields in it, in whichever order they are swept.
    for name in sorted(draft.settings, key=lambda name: name.count(".")):
        assign(values, name, copy.deepcopy(draft.settings[name]))
    if isinstance(values["name"], str):  # the scenario refuses any other type
        values["name"] = name_scenario(values["name"], draft.name)
    return Cell(draft.name, draft.settings, parse(values, plugins), draft.label)


def _format_cells(cells: Sequence[str], count: int) -> str:
    """Return the words that name the cells of a problem."""
    if len(cells) == count:
        return f"in all {count} cells of the sweep" if count > 1 else f"in cell {cells[0]}"
    named = f"in cell {cells[0]}"
    return named if len(cells) == 1 else f"{named} and {len(cells) - 1} more"


def _refuse_twins(cells: Sequence[Cell]) -> None:
    """Raise ScenarioError for cells with equal scenarios, such as ratios of 8 and 8.0."""
    seen: dict[str, str] = {}
    for cell in cells:
        # Names are left out, since they always differ.
        content = cell.scenario.model_dump_json(exclude={"name"})
        if content in seen:
            raise ScenarioError("sweep", f"{seen[content]} and {cell.name} are the same scenario")
        seen[content] = cell.name


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
    return replace(sweep, cells=cells, observers=kinds)
