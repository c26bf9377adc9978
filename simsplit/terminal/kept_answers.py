"""Commands that only print give the same answer until a file changes, so their answer is kept.

`list`, `schema`, `cite`, `papers` and `board --show` import every part, and `papers` checks 1,800
scenarios: seconds of work, to print what they printed before. The answer is kept in the user's
cache, under the digest of all that it was made from: the command's words, the package's files, the
rows of measurements, the files that the words name, the data and models by whose content rows are
stale, the installed packages and the terminal.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from simsplit.caching import get_cache_folder
from simsplit.foreign import MOST_TABLE, read_bytes

PRINTING = ("list", "schema", "cite", "papers", "board")
"""The commands whose answers are kept."""
_JUDGING = ("papers", "board")
"""Those that judge rows, which are stale where the data or the model that they had have changed."""
_FOLDER = re.compile(rb"\b(?:data|models)/[\w/-]+")
"""A folder of data, or of a model, in a scenario."""
_OPTIONS = frozenset(
    {"--format", "--json", "--missing", "--only", "--paper", "--seeds", "--set", "--show"}
    | {"--open", "--stale", "--tier"}
)
"""Options with which such a command still only prints; plugins and pictures are not among them."""
_TERMINAL = ("COLORTERM", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
MOST_ANSWERS = 64
"""Answers that are kept, the newest ones."""

_Written = list[tuple[int, str]]
"""What was written: 0 for stdout or 1 for stderr, and the text."""


def answer_once(words: Sequence[str], answer: Callable[[], object]) -> None:
    """Print the kept answer to a command's words; without one, call `answer` and keep its prints.

    An answer is kept if it ends in SystemExit without an error, as every command does.
    """
    file = _find_place(words)
    if file is None:
        answer()
        return
    if (kept := _read(file)) is not None:
        _print(kept)
        return
    with _copy_streams() as written:
        try:
            answer()
        except SystemExit as end:
            if not end.code:
                _keep(file, written)
            raise


def _find_place(words: Sequence[str]) -> Path | None:
    """Return where the answer to a command's words is kept; None for an answer that is not."""
    if not words or words[0] not in PRINTING:
        return None
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    measures = words[0] == "board" and len(words) > 1 and "--show" not in options
    if measures or not options <= _OPTIONS:
        return None
    try:
        digest = _digest_sources(words)
    except (OSError, ValueError):  # a file cannot be read, so the command may say why
        return None
    return get_cache_folder() / "answers" / f"{digest}.json"


def _digest_sources(words: Sequence[str]) -> str:
    """Return the digest of all that an answer is made from; raise ValueError if that is unknown."""
    digest = hashlib.blake2b(digest_size=16)
    installed = sorted(
        name for name in os.listdir(sysconfig.get_path("purelib")) if name.endswith(".dist-info")
    )
    streams = [(each.isatty(), each.encoding) for each in (sys.stdout, sys.stderr)]
    terminal = (streams, shutil.get_terminal_size(), [os.environ.get(name) for name in _TERMINAL])
    digest.update(repr((words, sys.version, installed, terminal)).encode())
    named: set[bytes] = set()
    for file in _list_sources(words):
        content = read_bytes(file, MOST_TABLE)
        digest.update(f"\0{file}\0{len(content)}\0".encode())
        digest.update(content)
        if file.suffix == ".yaml":
            named.update(_FOLDER.findall(content))
    for file in _list_measured(named) if words[0] in _JUDGING else ():
        about = file.stat()
        digest.update(f"\0{file.absolute()}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _list_measured(named: Iterable[bytes]) -> Iterator[Path]:
    """Yield the files of the data and models that scenarios name, as far as they are here."""
    for name in sorted(named):
        yield from sorted(file for file in Path(name.decode()).rglob("*") if file.is_file())


def _list_sources(words: Sequence[str]) -> Iterator[Path]:
    """Yield the files that an answer is made from: those that ship, rows, and those named."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    for folder in (package, checkout / "scenarios", checkout / "results", Path("results")):
        # A folder called results may hold anything; rows of measurements have two dots.
        patterns = ("*/*.*.csv", "equal.csv") if folder.name == "results" else ("**/*.*",)
        for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
            if file.suffix != ".pyc" and file.is_file():
                yield file
    for word in words[1:]:
        yield from _list_named(word, (package / "shipped", checkout / "scenarios"))


def _list_named(word: str, shipped: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that a word names; raise ValueError if other texts count too.

    A file may extend others, and what comes through a pipe is not known before it is read.
    """
    if not os.path.exists(word):
        return
    files = [Path(word)]
    if os.path.isdir(word):
        from simsplit.results.directory import SCENARIO

        files = [*Path(word).glob(SCENARIO), *sorted(Path(word).glob(f"*/{SCENARIO}"))]
    for file in files:
        path = Path(os.path.realpath(file))
        if any(path.is_relative_to(folder) for folder in shipped):
            continue
        if b"extends" in read_bytes(path, MOST_TABLE):
            raise ValueError(f"{file} may extend files that are not named")
        yield path


def _read(file: Path) -> _Written | None:
    """Read a kept answer; None where there is none, or another user may have written it."""
    with suppress(OSError, ValueError):
        if file.is_symlink() or file.stat().st_uid != os.getuid():
            return None
        kept = json.loads(read_bytes(file, MOST_TABLE))
        if isinstance(kept, list) and all(map(_is_written, kept)):
            return kept
    return None


def _is_written(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and value[0] in (0, 1)
        and isinstance(value[1], str)
    )


def _print(kept: _Written) -> None:
    try:
        for stream, text in kept:
            (sys.stdout, sys.stderr)[stream].write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _keep(file: Path, written: _Written) -> None:
    """Keep an answer, and remove the oldest ones; a cache that cannot be written stays as it is."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("x", encoding="utf-8") as opened:
            json.dump(written, opened)
        partial.replace(file)
        newest_first = sorted(
            file.parent.iterdir(), key=lambda each: each.lstat().st_mtime, reverse=True
        )
        for old in newest_first[MOST_ANSWERS:]:
            old.unlink()


@contextmanager
def _copy_streams() -> Iterator[_Written]:
    """Collect what is written to stdout and stderr, which is printed all the same."""
    written: _Written = []
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        _Copied(stream, number, written) for number, stream in enumerate(before)
    )
    try:
        yield written
    finally:
        sys.stdout, sys.stderr = before


class _Copied:
    """A stream whose texts are collected too; all else is the stream's."""

    def __init__(self, stream: TextIO, number: int, written: _Written) -> None:
        self._stream, self._number, self._written = stream, number, written

    def write(self, text: str) -> int:
        """Write a text to the stream, and collect it."""
        count = self._stream.write(text)
        self._written.append((self._number, text))
        return count

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self._stream, name)
