"""A sweep's `random`: cells drawn from ranges and lists, where a grid would be too many."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simsplit.errors import ScenarioError
from simsplit.scenario.messages import shown
from simsplit.seeds import seed_for

COUNT = "count"
_RANGES = ("uniform", "log")
_DIGITS = 3
"""Significant digits of what is drawn from a range: as many as a cell's name can bear."""
_TRIES = 50
"""Draws for each cell wanted, before there are said to be too few combinations."""
_HOW = "write a list of values, {uniform: [low, high]} or {log: [low, high]}"

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


def drawn(where: str, content: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """The settings of each cell. The first of many are those of few, so a search can go on."""
    fields = {key: value for key, value in content.items() if key != COUNT and value is not None}
    count = _count(f"{where}.{COUNT}", content.get(COUNT), most)
    if not fields:
        raise ScenarioError(where, f"has no fields to draw: {_HOW}")
    for key, values in fields.items():
        _refuse_odd(f"{where}.{key}", values)
    found: list[dict[str, Any]] = []
    for index in range(_TRIES * count):
        one = {key: _draw(key, values, index) for key, values in fields.items()}
        if one not in found:
            found.append(one)
        if len(found) == count:
            return found
    raise ScenarioError(
        f"{where}.{COUNT}", f"got {count}, and there are {len(found)} combinations; use a grid"
    )


def _count(where: str, count: object, most: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise ScenarioError(
            where, f"must be how many cells to draw, from 1 to {most:,}, got {shown(count)}"
        )
    return count


def _refuse_odd(where: str, values: object) -> None:
    if isinstance(values, list) and values:
        return
    if not (isinstance(values, Mapping) and len(values) == 1 and set(values) <= set(_RANGES)):
        raise ScenarioError(where, f"got {shown(values)}; {_HOW}")
    ((kind, ends),) = values.items()
    numbers = isinstance(ends, list) and all(_number(end) for end in ends)
    if not numbers or len(ends) != 2 or not ends[0] < ends[1]:
        raise ScenarioError(
            f"{where}.{kind}", f"must be two numbers, low before high, got {shown(ends)}"
        )
    if kind == "log" and ends[0] <= 0:
        raise ScenarioError(f"{where}.{kind}", f"must be above 0, got {shown(ends)}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _draw(field: str, values: Sequence[Any] | Mapping[str, list[float]], index: int) -> Any:  # noqa: ANN401
    rng = np.random.default_rng(seed_for(index, "sweep", field))
    if not isinstance(values, Mapping):
        return values[int(rng.integers(len(values)))]
    ((kind, (low, high)),) = values.items()
    if kind == "log":
        low, high = math.log(low), math.log(high)
    value = float(rng.uniform(low, high))
    return float(f"{math.exp(value) if kind == 'log' else value:.{_DIGITS}g}")
