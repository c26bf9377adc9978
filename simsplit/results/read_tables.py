"""Tables and scenarios of run directories are read here, within bounds, and their types checked.

A run directory may come from anyone, and be damaged: an error names the file and what is wrong.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from simsplit.errors import RunError, format_list
from simsplit.foreign import (
    MOST_CELLS,
    MOST_YAML,
    parse_yaml,
    read_csv,
    read_text,
    split_rows,
)
from simsplit.results.directory import SCENARIO
from simsplit.results.shapes import ScenarioShape, check_shape
from simsplit.rows import WITHHELD, TableRow

if TYPE_CHECKING:
    import pandas as pd

Kind = TypeVar("Kind", bound=TableRow)

_NEEDED: dict[str, tuple[str, ...]] = {
    "rounds": ("round", "phase", "steps", "samples", "bytes_up", "bytes_down", "bytes_total"),
    "clients": ("round", "client", "steps", "samples"),
    "wire": ("round", "client", "phase", "leg", "packets", "bytes"),
    "timing": ("round", "train_s", "evaluate_s", "elapsed_s"),
    "detections": ("round", "detector"),
    "holdings": ("client", "samples"),
    "leaks": ("round", "kind", "attack", "role", "metric"),
}
"""Columns that have no gaps, by the tables' names."""
_TEXT = frozenset(
    {"phase", "leg", "detector", "window", "threshold", "class", "name"}
    | {"attack", "kind", "role", "view", "metric"}
)
"""Columns of text in these tables; all others hold numbers."""
_WHOLE = frozenset(
    {"round", "client", "steps", "samples", "packets", "bytes"}
    | {"bytes_up", "bytes_down", "bytes_total"}
)
"""Columns of whole numbers, where they have no gaps."""
MOST_ROUNDS = 1_000_000
"""Rows of a table that has one for each round, at most."""
_BY_ROUND = frozenset({"rounds", "timing"})


@contextmanager
def explain_read_errors(file: Path) -> Iterator[None]:
    """Open a context in which whatever is wrong with a file becomes a RunError that names it."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # noqa: BLE001 - readers raise a dozen types for damaged files
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RunError(f"cannot read {file}: {why}") from None


@contextmanager
def explain_misfits(paths: Sequence[Path]) -> Iterator[None]:
    """Open a context in which files that do not fit together become a RunError.

    Their types are checked where they are read; here it is what they say of each other, such as a
    detector that only one of two tables has.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RunError(
            f"{format_list(paths)}: the files do not fit together ({why}); if nobody has changed "
            "them, please report it as a defect of simsplit"
        ) from error


def read_rows(file: Path, kind: type[Kind]) -> list[Kind]:
    """Read the complete lines of a table that may still be growing.

    The list is empty if there is no such table, or if it cannot be read.
    """
    try:
        rows = split_rows(_read_whole_lines(file))
        return [kind.from_table(cells) for cells in rows if None not in cells.values()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def read_table(file: Path) -> "pd.DataFrame":
    """Read a table; raise RunError if it is missing or damaged."""
    import pandas as pd

    with explain_read_errors(file):
        whole = _read_whole_lines(file)
        if not whole:
            raise RunError(f"cannot read {file}: it has no header")
        # pandas 3 reads floats exactly by default, and warns if the option is given
        precision: Literal["round_trip"] | None
        precision = "round_trip" if int(pd.__version__.split(".")[0]) < 3 else None
        table = pd.read_csv(
            io.BytesIO(whole),
            float_precision=precision,
            low_memory=False,
            na_values=[WITHHELD],
        )
        _check_columns(table, file.stem)
    return table


def _read_whole_lines(file: Path) -> bytes:
    """Read a table but for a torn last line, which a run leaves that is killed while writing."""
    content = read_csv(file, most_rows=MOST_ROUNDS if file.stem in _BY_ROUND else MOST_CELLS)
    return content[: content.rfind(b"\n") + 1]


def _check_columns(table: "pd.DataFrame", name: str) -> None:
    """Raise ValueError if a column has gaps, or holds text where numbers belong."""
    from pandas.api.types import is_integer_dtype, is_numeric_dtype

    if (needed := _NEEDED.get(name)) is None or table.empty:
        return
    for column, cells in table.items():
        if column in needed and cells.isna().any():
            raise ValueError(f"column '{column}' has gaps")
        if column not in _TEXT and not is_numeric_dtype(cells):
            raise ValueError(f"column '{column}' must hold numbers")
        if column in needed and column in _WHOLE and not is_integer_dtype(cells):
            raise ValueError(f"column '{column}' must hold whole numbers")


def load_saved_scenario(path: Path) -> dict[str, Any]:
    """Load a run directory's scenario as plain values; raise RunError if it is damaged."""
    file = path / SCENARIO
    return check_shape(file, ScenarioShape, lambda: parse_yaml(read_text(file, MOST_YAML)))
