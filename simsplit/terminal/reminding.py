"""A user who resumes a run without its plugins is reminded of them.

The plain error, that a kind is unknown, would not say what to do.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from simsplit.errors import ScenarioError
from simsplit.plugins import Plugins
from simsplit.plugins.record import remind
from simsplit.scenario.files import read


@contextmanager
def remind_of_plugins(
    file: Path, overrides: Mapping[str, str], out: Path | None, plugins: Plugins, *, resume: bool
) -> Iterator[None]:
    """Open a context that reads a scenario file, to resume the run or sweep in `out`."""
    try:
        yield
    except ScenarioError as error:
        if resume:
            remind(error, out or _find_default(file, overrides), plugins, cells=True)
        raise


def _find_default(file: Path, overrides: Mapping[str, str]) -> Path:
    """Return the default directory, from plain values, because the scenario is not valid."""
    values = read(file, overrides)
    output = values.get("output")
    root = output.get("root", "runs") if isinstance(output, dict) else "runs"
    return Path(str(root)) / str(values.get("name", "run"))
