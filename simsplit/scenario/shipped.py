"""Scenarios that ship with the package: commands accept their names in place of a file's path."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from simsplit.errors import SimsplitError, suggest
from simsplit.results.directory import replace

SUFFIX = ".yaml"
CLAIMS = "claims.yaml"
"""The file beside a paper's scenarios that says what its tables claim."""
BOARDS = "boards"
"""The folder of the board's tracks, beside the scenarios; see `simsplit.boards.track`."""
_TAKES = re.compile(r"(?:^|\. )Takes (.*?)\.?$")


class Shipped(NamedTuple):
    """A shipped scenario, described by the comment at the head of its file."""

    name: str
    """The name that commands accept, such as `papers/mixguard/table6`."""
    shows: str
    """The first sentence of the comment."""
    takes: str
    """How long it takes; empty if the comment does not give it."""


@cache
def find_folder() -> Path:
    """Return the folder of shipped scenarios: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent / "scenarios"


def list_names() -> list[str]:
    """Return the names of all shipped scenarios, papers' last."""
    every = (file.relative_to(find_folder()) for file in find_folder().rglob(f"*{SUFFIX}"))
    files = [file for file in every if file.name != CLAIMS and file.parts[0] != BOARDS]
    shown = sorted(files, key=lambda file: (len(file.parts) > 1, str(file)))
    return [file.with_suffix("").as_posix() for file in shown]


def locate(path: Path) -> Path:
    """Return the path of a shipped scenario, unless there is a file at the path or no such name."""
    if path.exists() or path.is_absolute():
        return path
    name = path.as_posix().removeprefix("scenarios/")
    shipped = find_folder() / (name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
    return shipped if shipped.is_file() and shipped.is_relative_to(find_folder()) else path


def describe_all() -> Iterator[Shipped]:
    """Yield the descriptions of all shipped scenarios."""
    for name in list_names():
        yield describe(name, (find_folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8"))


def describe(name: str, text: str) -> Shipped:
    """Return a scenario's description, read from the comment at the head of its file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#"))
    takes = [match[1] for line in lines if (match := _TAKES.search(line.strip()))]
    prose = " ".join(line.strip() for line in lines if not line.startswith("   "))
    first = re.split(r"(?<=[.?!])\s+(?=[A-Z])", prose, maxsplit=1)[0]
    return Shipped(name, first, takes[0] if takes else "")


def start_plugin(name: str, into: Path) -> Path:
    """Copy an example of a plugin; raise SimsplitError if there is none, or a file of its name."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "examples"
    folder = inside if inside.is_dir() else package.parent / "examples" / "plugins"
    examples = {file.stem: file for file in sorted(folder.glob("*.py"))}
    if (example := examples.get(name.removesuffix(".py"))) is None:
        known = f"{suggest(name, examples) or ','} allowed: {', '.join(examples)}"
        raise SimsplitError(f"new: unknown example of a plugin '{name}'{known}")
    file = into / example.name
    if file.exists():
        raise SimsplitError(f"new: {file} exists already; rename it first")
    replace(file, example.read_bytes())
    return file
