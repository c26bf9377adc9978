"""A run directory records the run's plugins, to be named in messages; they are never imported."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.foreign import read_facts
from simsplit.plugins.gathering import Plugins
from simsplit.plugins.loading import Origin
from simsplit.results.directory import ENVIRONMENT


def remind(error: ScenarioError, folder: Path, plugins: Plugins, *, cells: bool = False) -> None:
    """Raise RunError if a kind is unknown because plugins of the run in a folder are missing.

    `cells`: consider the runs in the folders below it too, as a sweep has them.
    """
    if not any(problem.reason.startswith("unknown '") for problem in error.problems):
        return
    runs = [folder, *(sorted(folder.glob("*/")) if cells else ())]
    before = [origin for run in runs for origin in _read_origins(run)]
    missing = {
        _format_flag(one): None
        for one in before
        if not any(_is_same(one, given) for given in plugins.origins)
    }
    if missing:
        again = "it" if len(missing) == 1 else "them"
        raise RunError(f"{folder} was made with {' '.join(missing)}; pass {again} again") from None


def list_changed(folder: Path, plugins: Plugins) -> list[str]:
    """List warnings about plugins whose files have changed since a run began."""
    return [
        f"the plugin {now.name} has changed since this run began; what is resumed may not be what "
        "an uninterrupted run would have come to"
        for before in _read_origins(folder)
        for now in plugins.origins
        if _is_same(before, now) and before.digest != now.digest
    ]


def _read_origins(folder: Path) -> Iterator[Origin]:
    """Yield the plugins of the run in a folder; none if its record cannot be read."""
    known = {field.name for field in fields(Origin)}
    # The file may be missing, or be another program's.
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        plugins = read_facts(folder / ENVIRONMENT).get("plugins", [])
        yield from [Origin(**{name: one[name] for name in known}) for one in plugins]


def list_flags(folder: Path) -> list[str]:
    """List the words that name the plugins of a folder's run on a command line."""
    return [word for origin in _read_origins(folder) for word in _format_flag(origin).split(" ", 1)]


def _is_same(one: Origin, other: Origin) -> bool:
    return one.name == other.name or (one.file is not None and one.file == other.file)


def _format_flag(origin: Origin) -> str:
    """Return the option that names a plugin again."""
    if not origin.portable:
        return "plugins given from Python"
    if not origin.by_file:
        return f"--plugin {origin.module}"
    file, here = Path(str(origin.file)), Path.cwd()
    return f"--plugin {file.relative_to(here) if file.is_relative_to(here) else file}"
