"""Which cases of a test are run at every turn, the others only with all of the suite; and many
small ones in one test.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return the cases, all but the chosen ones marked slow."""
    every = list(cases)
    assert all(case in every for case in chosen), "a case that there is not"
    return [c if c in chosen else pytest.param(c, marks=pytest.mark.slow) for c in every]


def quick_rows(rows: Iterable[tuple[Any, ...]], *chosen: tuple[Any, ...]) -> list[Any]:
    """Return cases of several arguments each, all but the chosen ones marked slow."""
    every = list(rows)
    assert all(row in every for row in chosen), "a case that there is not"
    return [r if r in chosen else pytest.param(*r, marks=pytest.mark.slow) for r in every]


Check = Callable[..., None]
SHOWN = 5


def together(*axes: Iterable[Any]) -> Callable[[Check], Check]:
    """Make one test of all combinations, which are a test's first arguments; the rest are fixtures.

    For thousands of cases of a millisecond, each of which would be longer in pytest than in itself.
    None hides another: all that fail are named, and the first few shown. A fixture is not made anew
    for each.
    """
    every = list(itertools.product(*(list(axis) for axis in axes)))
    assert every, "no case at all"

    def over(check: Check) -> Check:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            for case in every:
                try:
                    check(*case, **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                    named = ", ".join(map(str, case))
                    error.add_note(f"the case: {named}")
                    failed[named] = error
            if failed:
                message = f"{len(failed)} of {len(every)} cases: {'; '.join(failed)}"
                raise BaseExceptionGroup(message, list(failed.values())[:SHOWN])

        given = inspect.signature(check)
        rest = list(given.parameters.values())[len(axes) :]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in rest]
        vars(test)["__signature__"] = given.replace(parameters=keyword)
        return test

    return over
