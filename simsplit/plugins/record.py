"""Which plugins a run was made with, as its directory has it: names to be told, never to import."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.plugins.gathering import Plugins
from simsplit.plugins.loading import Origin
from simsplit.results.directory import ENVIRONMENT


def remind(error: ScenarioError, folder: Path, plugins: Plugins, *, cells: bool = False) -> None:
    """RunError where an unknown word is owed to plugins that the run in a folder had.

    `cells`: or the runs in the folders below it, if it is a sweep's.
    """
    if not any(problem.reason.startswith("unknown '") for problem in error.problems):
        return
    runs = [folder, *(sorted(folder.glob("*/")) if cells else ())]
    before = [origin for run in runs for origin in _of_run(run)]
    lost = {_flag(one): None for one in before if not any(_same(one, g) for g in plugins.origins)}
    if lost:
        raise RunError(
            f"{folder} was made with {' '.join(lost)}; pass {'it' if len(lost) == 1 else 'them'} "
            "again"
        ) from None


def changed(folder: Path, plugins: Plugins) -> list[str]:
    """The plugins whose files are not what they were when a run began, in words."""
    return [
        f"the plugin {now.name} has changed since this run began; what is resumed may not be what "
        "an uninterrupted run would have come to"
        for before in _of_run(folder)
        for now in plugins.origins
        if _same(before, now) and before.digest != now.digest
    ]


def _of_run(folder: Path) -> Iterator[Origin]:
    known = {field.name for field in fields(Origin)}
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):  # none, or not ours
        told = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8")).get("plugins", [])
        yield from [Origin(**{name: one[name] for name in known}) for one in told]


def flags_of(folder: Path) -> list[str]:
    """How the plugins of the run in a folder are named again on a command line."""
    return [word for origin in _of_run(folder) for word in _flag(origin).split(" ", 1)]


def _same(one: Origin, other: Origin) -> bool:
    return one.name == other.name or (one.file is not None and one.file == other.file)


def _flag(origin: Origin) -> str:
    """How the user names it again."""
    if not origin.portable:
        return "plugins given from Python"
    if not origin.by_file:
        return f"--plugin {origin.module}"
    file, here = Path(str(origin.file)), Path.cwd()
    return f"--plugin {file.relative_to(here) if file.is_relative_to(here) else file}"
