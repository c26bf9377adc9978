"""Who goes on with a run and forgets its plugins is told so, and not that a kind is unknown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from simsplit.errors import ScenarioError
from simsplit.plugins import Plugins
from simsplit.plugins.record import remind
from simsplit.scenario.files import read


@contextmanager
def reminded(
    file: Path, overrides: Mapping[str, str], out: Path | None, plugins: Plugins, *, resume: bool
) -> Iterator[None]:
    """A block that reads a scenario file, to go on with the run or sweep in `out`."""
    try:
        yield
    except ScenarioError as error:
        if resume:
            remind(error, out or _usual(file, overrides), plugins, cells=True)
        raise


def _usual(file: Path, overrides: Mapping[str, str]) -> Path:
    """Where it lies if nobody said otherwise; by plain values, for the scenario is not valid."""
    values = read(file, overrides)
    output = values.get("output")
    root = output.get("root", "runs") if isinstance(output, dict) else "runs"
    return Path(str(root)) / str(values.get("name", "run"))
