"""Values of files that a scenario extends are not shown in its errors.

The author of a scenario names them. One from a stranger may name any YAML file of the user's, whose
values would be printed as unfit for a field.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.scenario.files import read
from simsplit.scenario.messages import ABSENT, find_value
from simsplit.scenario.model import Scenario


@contextmanager
def hide_foreign_values(path: Path, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Open a context whose ScenarioErrors show no value of a file that this one extends.

    Files that ship are no secret.
    """
    try:
        yield
    except ScenarioError as error:
        own = read(path, overrides, whole=False)
        if own.pop("extends", None) is None:
            raise
        whole = read(path, overrides)
        problems = [
            problem if is_own(problem.field, own=own, whole=whole) else _hide(problem.field, path)
            for problem in error.problems
        ]
        each_once = {str(problem): problem for problem in problems}
        raise ScenarioError.of_many([*each_once.values()]) from None


def is_own(field: str, *, own: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Return whether all below a field is the scenario's own."""
    swept = own.get("sweep")
    if isinstance(swept, Mapping) and any(f"{field}.".startswith(f"{name}.") for name in swept):
        field = "sweep"
    mine = find_value(own, field)
    with suppress(RecursionError):  # an alias can make a value that holds itself
        return mine is not ABSENT and mine == find_value(whole, field)
    return False


def _hide(field: str, path: Path) -> ScenarioError:
    name = field.split(".")[0]
    return ScenarioError(
        name if name in Scenario.model_fields else "extends",
        f"does not fit, by a value of a file that {path} extends. Only a file that you name is "
        "shown: simsplit validate FILE",
    )
