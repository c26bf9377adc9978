"""Files and texts that others wrote are read within bounds here, and made harmless for a terminal.

A run directory, a scenario or a client's message may come from anyone. Whoever reads one states how
large it may be; nothing is read from devices and pipes, which have no end.
"""

import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError

if TYPE_CHECKING:
    import yaml

MOST_FACTS = 64 * 2**20
"""Bytes of a file of facts (JSON), at most."""
MOST_TABLE = 2**30
"""Bytes of a table, at most."""
MOST_CELLS = 50_000_000
"""Cells of a table, at most: a frame of them takes eight bytes each, and more for texts."""
MOST_COLUMNS = 4096
"""Columns of a table, at most: a frame takes much more for a column than for a cell."""
MOST_YAML = 2**20
"""Bytes of a YAML file, at most."""
MOST_NODES, DEEPEST = 50_000, 64
"""Values of a YAML text and their levels, at most; an alias counts as what it stands for."""
_CONTROLS = re.compile(
    # Escape sequences begin with one of the first two ranges; the others turn the direction of a
    # line, or are halves of a pair that no encoding has.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def strip_controls(text: str) -> str:
    """Return a text with a question mark for each control character but tabs and line ends.

    So text of others cannot move the cursor, change colours or hide parts of a line.
    """
    return _CONTROLS.sub("?", text)


def read_bytes(file: Path, most: int) -> bytes:
    """Read a regular file; raise OSError, or ValueError for other files and for larger ones."""
    # To open a pipe would otherwise wait for its writer.
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as opened:
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > most:
            raise ValueError(f"it has {about.st_size:,} bytes, more than {most:,}")
        # A file may have grown since; what is beyond its size now is read the next time.
        return opened.read(about.st_size)


def read_text(file: Path, most: int) -> str:
    """Read a regular file as UTF-8; raise OSError or ValueError as `read_bytes` does."""
    return read_bytes(file, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_csv(file: Path, *, most: int = MOST_TABLE, most_rows: int = MOST_CELLS) -> bytes:
    """Read a table's text; raise OSError or ValueError for what is no file, or too large a one."""
    content = read_bytes(file, most)
    if b"\r" in content:  # which ends a row too, with and without the other
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = content.count(b"\n")
    if lines > most_rows + 1:
        raise ValueError(f"it has {lines - 1:,} rows, more than {most_rows:,}")
    if (cells := content.count(b",") + lines) > MOST_CELLS:
        raise ValueError(f"it has about {cells:,} cells, more than {MOST_CELLS:,}")
    # The header and the first row; pandas refuses any other row that is wider than these.
    second = content.find(b"\n", content.find(b"\n") + 1)
    if content.count(b",", 0, second) > 2 * MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS:,} columns")
    return content


def split_rows(content: bytes) -> Iterator[Mapping[str, str | None]]:
    """Yield a table's rows by column; raise ValueError for what is no CSV, by its line."""
    lines = csv.DictReader(io.TextIOWrapper(io.BytesIO(content), "utf-8", newline=""))
    try:
        yield from lines
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num + 1}: {error}") from None


def read_facts(file: Path, most: int = MOST_FACTS) -> dict[str, Any]:
    """Read a JSON file that holds a mapping; raise OSError or ValueError."""
    try:
        values = json.loads(read_text(file, most))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"it must hold a mapping, got {type(values).__name__}")  # noqa: TRY004
    return values


def find_yaml_loader() -> type["yaml.SafeLoader"]:
    """Return the loader of plain YAML values: libyaml's, ten times faster, where it is there."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def refuse_link(path: Path) -> None:
    """Raise RunError if the path is a link: its target may be anything else of the user's."""
    if path.is_symlink():
        raise RunError(f"{path} is a link, and nothing is written through links; remove it")


def refuse_huge_yaml(text: str) -> None:
    """Raise ValueError if a YAML text has too many values or levels, aliases included.

    Whoever composes values from such a text would run out of time, memory or stack. A text that is
    not valid YAML passes.
    """
    import yaml

    with suppress(yaml.YAMLError):
        _Measure().measure(text)


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - plain values of any form
    """Return the values of a foreign YAML text; raise ValueError if it is huge or not valid."""
    import yaml

    refuse_huge_yaml(text)
    try:
        return yaml.load(text, Loader=find_yaml_loader())
    except (yaml.YAMLError, RecursionError) as error:
        # Only the place: the text itself may be none that is to be shown.
        mark = getattr(error, "problem_mark", None)
        where = f", in line {mark.line + 1}" if mark else ""
        raise ValueError(f"it is not valid YAML{where}") from None


class _Measure:
    """The number of values of a YAML text and their levels, as its parser tells of them."""

    def __init__(self) -> None:
        self.anchored: dict[str, tuple[int, int]] = {}
        """Values and levels of what has a name, for its aliases."""
        self.open: list[tuple[str | None, int, int]] = [(None, 0, 0)]
        """The names, values and levels of the collections that are not complete yet."""

    def measure(self, text: str) -> None:
        """Raise ValueError at the first value that is one too many, or lies too deep."""
        import yaml

        for event in yaml.parse(text, Loader=find_yaml_loader()):
            if isinstance(event, yaml.CollectionStartEvent):
                self.open.append((event.anchor, 1, 0))
                self._add(0, 0)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, size, height = self.open.pop()
                if anchor:
                    self.anchored[anchor] = size, height
                self._add(size, height)
            elif isinstance(event, yaml.AliasEvent):
                self._add(*self.anchored.get(event.anchor or "", (1, 0)))
            elif isinstance(event, yaml.ScalarEvent):
                self._add(1, 0)

    def _add(self, size: int, height: int) -> None:
        """Add something of this size and height to the innermost collection."""
        anchor, before, deepest = self.open[-1]
        self.open[-1] = anchor, before + size, max(deepest, height + 1)
        if before + size > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES:,} values")
        if max(len(self.open), height) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
