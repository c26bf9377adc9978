"""A search's answer is a scenario file: its best setting, with a comment on where it comes from.

As people write it, it has only the fields that differ from defaults.
"""

import copy
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from simsplit.errors import RunError, ScenarioError
from simsplit.foreign import strip_controls
from simsplit.plugins import Given
from simsplit.report.grouping import Entry
from simsplit.report.ranking import Ranking, describe_best
from simsplit.results import SCENARIO
from simsplit.results.directory import replace
from simsplit.scenario import Scenario, load_scenario, parse

_Values = dict[str, Any]
_Path = tuple[str | int, ...]


def write_best(ranking: Ranking, file: Path, plugins: Given = ()) -> None:
    """Write the best setting as a scenario file; raise RunError if the file exists already."""
    if file.exists():
        raise RunError(f"{file} exists already; choose another name")
    entry = ranking.best.row.entries[0]
    scenario = load_scenario(entry.run.path / SCENARIO, plugins=plugins)
    values = shorten(scenario, plugins)
    values["name"] = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem)
    about = "".join(f"# {line}\n" for line in _describe_origin(ranking, entry))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    try:
        replace(file, f"{about}{text}".encode())
    except OSError as error:
        raise RunError(f"cannot write {file}: {error}") from None


def _describe_origin(ranking: Ranking, entry: Entry) -> list[str]:
    """Return lines that say where the best setting comes from."""
    said = strip_controls(describe_best(ranking)).replace("\n", " ")
    whole = f"{said}. It was ranked among {len(ranking.places)} settings of {entry.sweep_name}."
    return textwrap.wrap(whole, 98, break_long_words=False)


def shorten(scenario: Scenario, plugins: Given = ()) -> _Values:
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
    ordered: _Values = _put_kinds_first(values)
    return ordered


def _put_kinds_first(values: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Order each mapping as people write it: what a part is, then what it sets."""
    if isinstance(values, list):
        return [_put_kinds_first(one) for one in values]
    if not isinstance(values, dict):
        return values
    first = {name: values[name] for name in ("kind",) if name in values}
    return {name: _put_kinds_first(inner) for name, inner in {**first, **values}.items()}


def _makes(values: _Values, wanted: str, plugins: Given) -> bool:
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
