"""Which cases of a test are run at every turn: the others only with all of the suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """The cases, all but the chosen ones marked slow."""
    every = list(cases)
    assert all(case in every for case in chosen), "a case that there is not"
    return [c if c in chosen else pytest.param(c, marks=pytest.mark.slow) for c in every]


few_cells_or_all = pytest.mark.parametrize(
    "cells", quick([slice(2), slice(None)], slice(2)), ids=["the first two", "all"]
)
"""Of a sweep that is shipped: all its cells say much the same twice."""
