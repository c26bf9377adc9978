"""A scenario that a command writes for people has only the fields that differ from defaults."""

import copy
from collections.abc import Iterator
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.plugins import Given
from simsplit.scenario.loading import parse
from simsplit.scenario.model import Scenario

Values = dict[str, Any]
_Path = tuple[str | int, ...]


def shorten(scenario: Scenario, plugins: Given = ()) -> Values:
    """Return the fewest fields that make the same scenario, kinds first.

    Each field is left out once and the rest is read, since a default can depend on other fields.
    """
    values = scenario.model_dump(mode="json")
    wanted = scenario.model_dump_json()
    dropped: list[_Path] = []
    for path in list(_list_paths(values)):
        if path == ("name",) or any(path[: len(above)] == above for above in dropped):
            continue
        fewer = copy.deepcopy(values)
        inner: Any = fewer
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]
        if _makes(fewer, wanted, plugins):
            values = fewer
            dropped.append(path)
    ordered: Values = _put_kinds_first(values)
    return ordered


def _put_kinds_first(values: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Order each mapping as people write it: what a part is, then what it sets."""
    if isinstance(values, list):
        return [_put_kinds_first(one) for one in values]
    if not isinstance(values, dict):
        return values
    first = {name: values[name] for name in ("kind",) if name in values}
    return {name: _put_kinds_first(inner) for name, inner in {**first, **values}.items()}


def _makes(values: Values, wanted: str, plugins: Given) -> bool:
    try:
        return parse(values, plugins).model_dump_json() == wanted
    except ScenarioError:
        return False


def _list_paths(values: object, above: _Path = ()) -> Iterator[_Path]:
    """Yield the paths of all fields, outer ones first; of a list, those inside of its entries."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield (*above, name)
            yield from _list_paths(inner, (*above, name))
    elif isinstance(values, list):
        for place, inner in enumerate(values):
            yield from _list_paths(inner, (*above, place))
