"""Scenarios are made here from files, from plain values or from others, with plugins' parts."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.plugins import Given, gather_plugins
from simsplit.plugins.record import remind
from simsplit.scenario.cells import refuse_sweep
from simsplit.scenario.extending import extend
from simsplit.scenario.files import assign, read
from simsplit.scenario.messages import explain_left_over
from simsplit.scenario.model import Scenario


def load_scenario(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    plugins: Given = (),
) -> Scenario:
    """Read a scenario file; `overrides` maps dotted fields to values, or to YAML as `--set` does.

    `plugins` are modules with parts of your own, given by name, as .py files or imported.

    >>> load_scenario("scenarios/quickstart.yaml", {"clients.count": 4})  # doctest: +SKIP
    """
    values = read(Path(path), overrides or {})
    refuse_sweep(values, Path(path))
    known = gather_plugins(plugins)
    try:
        return parse(values, known)
    except ScenarioError as error:
        remind(error, Path(path).parent, known)  # a scenario in a run directory may need plugins
        raise explain_left_over(error, overrides or {}) from None


def parse(values: Mapping[str, Any], plugins: Given = ()) -> Scenario:
    """Return a scenario from plain values, which may name the parts of plugins."""
    return scenario_class(plugins)(**{str(name): value for name, value in values.items()})


def scenario_of(
    given: "Scenario | Mapping[str, Any] | str | Path",
    changes: Mapping[str, Any],
    plugins: Given = (),
) -> Scenario:
    """Return a scenario from a file, from fields or from another, with some fields changed."""
    if isinstance(given, str | Path):
        return load_scenario(given, changes, plugins)
    if isinstance(given, Scenario):
        if not changes:
            return given
        # As plain values: a change can reach below a part, as method.0.ratio does.
        values, plugins = given.model_dump(mode="json"), given.plugins
    else:
        # `assign` changes values in place, and these are the caller's.
        values = copy.deepcopy(dict(given))
    for field, value in changes.items():
        assign(values, field, value)
    return parse(values, plugins)


def scenario_class(plugins: Given = ()) -> type[Scenario]:
    """Return the class Scenario, with plugins' kinds allowed in its parts."""
    return extend(Scenario, gather_plugins(plugins))
