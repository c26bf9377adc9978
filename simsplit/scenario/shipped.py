"""Scenarios that travel with the package, found by name where no file of that name lies nearby."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".yaml"
_TAKES = re.compile(r"(?:^|\. )Takes (.*?)\.?$")


class Shipped(NamedTuple):
    """One scenario that ships."""

    name: str
    """As commands take it, such as `papers/mixguard/table6`."""
    shows: str
    """What its comment says first."""
    takes: str
    """How long it takes; empty where that is not known."""


@cache
def folder() -> Path:
    """Where they lie: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent / "scenarios"


def names() -> list[str]:
    """All of them; those of papers last."""
    files = [file.relative_to(folder()) for file in folder().rglob(f"*{SUFFIX}")]
    shown = sorted(files, key=lambda file: (len(file.parts) > 1, str(file)))
    return [file.with_suffix("").as_posix() for file in shown]


def located(path: Path) -> Path:
    """The file itself where there is one, else the shipped scenario of that name, else the path."""
    if path.exists() or path.is_absolute():
        return path
    name = path.as_posix().removeprefix("scenarios/")
    shipped = folder() / (name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
    return shipped if shipped.is_file() and shipped.is_relative_to(folder()) else path


def told() -> Iterator[Shipped]:
    """Each with what its comment says of it."""
    for name in names():
        yield told_of(name, (folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8"))


def told_of(name: str, text: str) -> Shipped:
    """What the comment at the head of a file says: a sentence, and how long it takes."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#"))
    takes = [found[1] for line in lines if (found := _TAKES.search(line.strip()))]
    prose = " ".join(line.strip() for line in lines if not line.startswith("   "))
    first = re.split(r"(?<=[.?!])\s+(?=[A-Z])", prose, maxsplit=1)[0]
    return Shipped(name, first, takes[0] if takes else "")
