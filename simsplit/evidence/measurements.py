"""Measurements as rows of CSV: a row for each setting, seed and figure, and what it was made by.

Rows are written by `simsplit reproduce`, never by hand: `results/<paper>/<table>.<tier>.csv`. Rows
that ship lie in the package, or beside it in a checkout; those measured here lie in ./results, and
come before shipped ones.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from simsplit.errors import RunError, RunFailedError
from simsplit.evidence.claims import Axes
from simsplit.evidence.row_code import read_code, write_code
from simsplit.foreign import read_csv, refuse_link, split_rows
from simsplit.results.directory import replace

OWN = Path("results")
"""The folder of rows that were measured here."""
LOCKS = Path("runs") / "reproduce" / "locks"
"""The folder of the locks that a writer of rows holds, by table."""
MOST_BYTES, MOST_ROWS = 2**25, 200_000
"""Bytes and rows of a file of measurements, at most."""
_SEPARATOR = "; "
_ON_GPU = re.compile(r"processors[^,]*, (?!torch)")


@dataclass(frozen=True)
class Measurement:
    """One figure of one run of one setting."""

    setting: str
    """Axes in words, as `write_setting` writes them."""
    seed: int
    figure: str
    """As the claim calls it."""
    value: float
    """In the paper's unit."""
    digest: str
    """Of the cell's scenario and of the figure; see `simsplit.evidence.digests`."""
    code: str
    """The digests of the code and the files that it was measured with, as `write_code` writes them;
    empty: not known."""
    version: str
    commit: str
    """Of the package's checkout; empty: the package was installed."""
    command: str
    machine: str
    """Its system, processors, vector instructions, card, and versions of what computes."""
    threads: int
    minutes: float
    """Of the whole run, training and attacks."""
    date: str

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of a row, which no other row of its table has."""
        return self.setting, self.seed, self.figure

    @property
    def axes(self) -> Axes:
        """The setting's value on each axis."""
        pairs = (pair.partition("=") for pair in self.setting.split(_SEPARATOR) if pair)
        return {name: value for name, _, value in pairs}

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU measured it, which the machine's words have after the processors."""
        return _ON_GPU.search(self.machine) is not None


def write_setting(axes: Axes) -> str:
    """Write axes as one cell of a table: `cut=l2h; method=raw`."""
    return _SEPARATOR.join(f"{name}={value}" for name, value in sorted(axes.items()))


def find_shipped_results() -> Path:
    """Return the folder of shipped rows: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "measured"
    return inside if inside.is_dir() else package.parent / "results"


def read(path: Path) -> list[Measurement]:
    """Read a file of rows, if there is one; raise RunError, by its line, for what is none."""
    try:
        content = read_csv(path, most=MOST_BYTES, most_rows=MOST_ROWS)
        lines = [*split_rows(content)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    names = [field.name for field in fields(Measurement)]
    if content.partition(b"\n")[0].decode() != ",".join(names):
        raise RunError(
            f"{path} is no table of measurements: its columns should be {', '.join(names)}"
        )
    rows = [_row(path, number, line) for number, line in enumerate(lines, 2)]
    seen = set()
    for number, row in enumerate(rows, 2):
        if row.key in seen:
            raise RunError(
                f"{path}, line {number}: {row.figure} of this setting and seed is there twice"
            )
        seen.add(row.key)
    return rows


def _row(path: Path, number: int, line: Mapping[str, str | None]) -> Measurement:
    try:
        texts = {name: _cell(line[name]) for name in line}
        names = [field.name for field in fields(Measurement)]
        cells: dict[str, Any] = {name: _READERS.get(name, str)(texts[name]) for name in names}
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}, line {number}: no measurement ({error})") from None
    row = Measurement(**cells)
    if not math.isfinite(row.value):
        raise RunError(f"{path}, line {number}: {row.figure} is {row.value}")
    return row


def _cell(text: str | None) -> str:
    if text is None:
        raise ValueError("cells are missing")
    return text


_READERS: Mapping[str, Callable[[str], object]] = {
    "seed": int,
    "value": float,
    "code": lambda text: write_code(read_code(text)),
    "threads": int,
    "minutes": float,
}
"""Column -> what reads its cells; the others hold text."""


def add(path: Path, new: Iterable[Measurement]) -> None:
    """Add rows to a file in order of their keys; new ones replace those of their key.

    The file is replaced as a whole, by a writer that holds its lock.
    """
    rows = {row.key: row for row in (*read(path), *new)}
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Measurement)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(rows[key]) for key in sorted(rows))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, out.getvalue().encode())
    except OSError as error:
        raise RunFailedError(
            f"cannot write {path}: {error.strerror or error}. The runs are kept; make room (or fix "
            "the folder) and start again with the same command"
        ) from error


@contextmanager
def hold_alone(tables: Iterable[str]) -> Iterator[None]:
    """Hold tables as their only writer here; raise RunError where another process writes one."""
    with ExitStack() as held:
        for name in sorted(set(tables)):
            file = LOCKS / f"{name.replace('/', '.')}.lock"
            file.parent.mkdir(parents=True, exist_ok=True)
            refuse_link(file)
            try:
                held.enter_context(FileLock(file, timeout=0))
            except Timeout:
                raise RunError(
                    f"another process is measuring {name} here; wait for its end, or choose "
                    "another table"
                ) from None
        yield
