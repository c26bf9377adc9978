"""The code of the package as it stands here, and as it stood at a commit.

Parsing it takes a second, so what was read of a file is kept in the user's cache by the file's size
and time. A commit's code is read from git, where the package lies in a checkout.
"""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from simsplit.caching import get_cache_folder
from simsplit.errors import RunError
from simsplit.evidence.code_definitions import PACKAGE, ModuleCode, digest_texts, read_module
from simsplit.evidence.code_graph import AREAS, READING, CodeGraph
from simsplit.foreign import MOST_FACTS, read_bytes

FOLDER = Path(__file__).resolve().parents[1]
"""The folder of the package."""
_MOVES = (PACKAGE, "scenarios")
"""Folders of a checkout whose files can move a figure."""
_PATIENCE_S = 60
DIRTY = "-dirty"
"""What the commit of a row ends with that was measured with changes that no commit has."""
Fact = TypeVar("Fact")


def find_checkout() -> Path | None:
    """Return the checkout that the package lies in; None where it was installed."""
    return FOLDER.parent if (FOLDER.parent / ".git").exists() else None


def find_commit() -> str:
    """Return the checkout's commit, or nothing without one; refuse changes that move a figure."""
    if find_checkout() is None:
        return ""
    changed = _ask_git("status", "--porcelain", "--", *_MOVES).decode().splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise RunError(
            f"rows name the commit that they were measured at, and {changed[0][3:]}{more} differs "
            "from it: commit the change, then measure"
        )
    return _ask_git("rev-parse", "HEAD").decode().strip()


def refuse_moved_code(commit: str) -> None:
    """Raise RunError where the checkout is no more at the commit at which measuring began."""
    if (here := find_commit()) != commit:
        raise RunError(f"the code moved from commit {commit} to {here} while this was measured")


@cache
def read_package() -> CodeGraph:
    """Return the code of the package as it stands here."""
    paths = sorted(FOLDER.rglob("*.py"))
    files = {_name_module(path.relative_to(FOLDER.parent)): path for path in paths}
    parser = Path(__file__).with_name("code_definitions.py").stat().st_mtime_ns
    cached = get_cache_folder() / "code" / digest_texts([str(FOLDER), str(parser)])
    kept = KeptFiles(cached, ModuleCode, lambda path: read_module(path.read_bytes()))
    graph = CodeGraph(frozenset(files), cache(lambda name: kept.read(files[name])))
    _ = graph.parts  # reads all files of parts
    for name in (*AREAS.values(), READING):
        graph.reach(name)
    kept.write()
    return graph


@cache
def read_commit(commit: str) -> CodeGraph | None:
    """Return the code of the package at a commit; None where no commit is known by this name."""
    if find_checkout() is None or not commit:
        return None
    try:
        archive = _ask_git("archive", "--format=tar", commit, "--", PACKAGE)
    except RunError:
        return None
    sources: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.name.endswith(".py") and (file := files.extractfile(member)) is not None:
                sources[_name_module(PurePosixPath(member.name))] = file.read()
    return CodeGraph(frozenset(sources), lambda name: _read_source(sources[name]))


_read_source = cache(read_module)  # most files are the same at many commits


def _name_module(path: PurePath) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _ask_git(*words: str) -> bytes:
    folder = str(find_checkout())
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"git {words[0]} in {folder} failed: {error}") from None
    return done.stdout


class KeptFiles(Generic[Fact]):
    """What was read of files before, by file, with the size and time that the file had."""

    def __init__(self, cache: Path, kind: type[Fact], make: Callable[[Path], Fact]) -> None:
        self.cache, self.make, self.fresh = cache, make, False
        self.adapter = TypeAdapter(dict[str, tuple[int, int, kind]])  # type: ignore[valid-type]
        self.known: dict[str, tuple[int, int, Fact]] = {}
        # a cache that cannot be read is made anew
        with suppress(OSError, ValueError):
            self.known = self.adapter.validate_json(read_bytes(cache, most=MOST_FACTS))

    def read(self, path: Path) -> Fact:
        status, name = path.stat(), str(path)
        stamp = status.st_size, status.st_mtime_ns
        if name not in self.known or self.known[name][:2] != stamp:
            self.known[name], self.fresh = (*stamp, self.make(path)), True
        return self.known[name][2]

    def write(self) -> None:
        """Keep what was read; where the cache cannot be written, it is read again next time."""
        if not self.fresh:
            return
        with suppress(OSError):
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            partial = self.cache.with_suffix(f".{os.getpid()}")
            partial.write_bytes(self.adapter.dump_json(self.known))
            partial.replace(self.cache)
            self.fresh = False
