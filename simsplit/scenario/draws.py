"""Random search: `sweep.random` draws cells from ranges and lists where a grid has too many."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simsplit.errors import ScenarioError
from simsplit.scenario.messages import format_value
from simsplit.seeds import derive_seed

COUNT = "count"
_RANGES = ("uniform", "log")
_DIGITS = 3
"""Significant digits of a value from a range; few, so that cells' names stay short."""
_TRIES = 50
"""Draws per requested cell before an error reports that there are too few combinations."""
_SPELLINGS = "write a list of values, {uniform: [low, high]} or {log: [low, high]}"

SCHEMA: dict[str, Any] = {
    "description": "Cells drawn at random: `count` of them, from each field's list or range.",
    "type": ["object", "null"],
    "properties": {COUNT: {"type": "integer", "minimum": 1}},
    "additionalProperties": {
        "anyOf": [
            {"type": ["array", "null"]},
            *(
                {
                    "type": "object",
                    "properties": {kind: {"type": "array", "items": {"type": "number"}}},
                    "required": [kind],
                    "additionalProperties": False,
                }
                for kind in _RANGES
            ),
        ]
    },
}


def draw_cells(where: str, content: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Return the settings of each cell.

    A larger count begins with the cells of a smaller one, so a search can be continued.
    """
    fields = {key: value for key, value in content.items() if key != COUNT and value is not None}
    count = _check_count(f"{where}.{COUNT}", content.get(COUNT), most)
    if not fields:
        raise ScenarioError(where, f"has no fields to draw: {_SPELLINGS}")
    for key, values in fields.items():
        _check_values(f"{where}.{key}", values)
    cells: list[dict[str, Any]] = []
    for index in range(_TRIES * count):
        cell = {key: _draw_value(key, values, index) for key, values in fields.items()}
        # Lists can give a combination twice, and a sweep refuses equal cells.
        if cell not in cells:
            cells.append(cell)
        if len(cells) == count:
            return cells
    raise ScenarioError(
        f"{where}.{COUNT}",
        f"got {count}, but draws gave {len(cells)} combinations; use a smaller count, or a grid",
    )


def _check_count(where: str, count: object, most: int) -> int:
    """Return the number of cells; raise ScenarioError if it is not from 1 to `most`."""
    # True is an int to Python, and hardly a number of cells.
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise ScenarioError(
            where, f"must be the number of cells, from 1 to {most:,}, got {format_value(count)}"
        )
    return count


def _check_values(where: str, values: object) -> None:
    """Raise ScenarioError unless a field has a list of values or a range."""
    if isinstance(values, list) and values:
        return
    if not (isinstance(values, Mapping) and len(values) == 1 and set(values) <= set(_RANGES)):
        raise ScenarioError(where, f"got {format_value(values)}; {_SPELLINGS}")
    ((kind, ends),) = values.items()
    numbers = isinstance(ends, list) and all(_is_number(end) for end in ends)
    if not numbers or len(ends) != 2 or not ends[0] < ends[1]:
        raise ScenarioError(
            f"{where}.{kind}", f"must be two numbers, low before high, got {format_value(ends)}"
        )
    if kind == "log" and ends[0] <= 0:
        raise ScenarioError(f"{where}.{kind}", f"must be above 0, got {format_value(ends)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _draw_value(field: str, values: Sequence[Any] | Mapping[str, list[float]], index: int) -> Any:  # noqa: ANN401
    """Return a field's value in the cell of this index, the same for any number of cells."""
    # The seed does not depend on the scenario's, so each of its seeds runs the same cells.
    rng = np.random.default_rng(derive_seed(index, "sweep", field))
    if not isinstance(values, Mapping):
        return values[int(rng.integers(len(values)))]
    ((kind, (low, high)),) = values.items()
    if kind == "log":
        low, high = math.log(low), math.log(high)
    value = float(rng.uniform(low, high))
    return round_value(math.exp(value) if kind == "log" else value)


def round_value(value: float) -> float:
    """Round a value from a range, so that the names of cells stay short."""
    return float(f"{value:.{_DIGITS}g}")
