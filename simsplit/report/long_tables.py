"""`compare --format csv` writes raw numbers, one table at a time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simsplit.errors import RunError, suggest
from simsplit.report.grouping import Baseline, Entry
from simsplit.report.numbers import label_settings, make_frame
from simsplit.report.presentations import PRESENTATIONS
from simsplit.results import Run
from simsplit.results.recovers import RECOVERS

if TYPE_CHECKING:
    import pandas as pd

SETTINGS, DETECTIONS = "settings", "detections"


class _Long(NamedTuple):
    """A table with a row per setting and attack or detector."""

    keys: Sequence[str]
    """The columns that distinguish a setting's rows."""
    frame: "Callable[[Run], pd.DataFrame]"


def list_tables() -> tuple[str, ...]:
    """Return the names that `--table` takes."""
    return (SETTINGS, *_collect_long_tables(), *list_shown_tables())


def list_shown_tables() -> tuple[str, ...]:
    """Return the names of tables whose cells are words; their CSV has the same cells."""
    asked = [name for each in PRESENTATIONS.values() for name in each.compare_on_request]
    return ("overview", *asked)


def _collect_long_tables() -> dict[str, _Long]:
    kinds = ((RECOVERS[kind].table, each) for kind, each in PRESENTATIONS.items())
    tables = {name: _Long(each.keys, each.frame) for name, each in kinds}
    detections = _Long(("detector", "window", "threshold"), lambda run: run.detections)
    return {**tables, DETECTIONS: detections}


def write_csv(entries: Sequence[Entry], figure: str, name: str, baseline: Baseline = None) -> str:
    """Write one of the tables as comma-separated values, without a line end after the last."""
    made = make_frame(entries, figure, baseline) if name == SETTINGS else _make_long(entries, name)
    return made.to_csv(index=False, lineterminator="\n").rstrip("\n")


def refuse_table(name: str) -> None:
    """Raise RunError if there is no such table."""
    known = list_tables()
    if name not in known:
        raise RunError(
            f"--table: unknown '{name}'{suggest(name, known) or ','} allowed: {', '.join(known)}"
        )


def _make_long(entries: Sequence[Entry], what: str) -> "pd.DataFrame":
    """Make a row per setting and attack or detector, as judged last, over seeds."""
    import pandas as pd

    keys, frame_of = _collect_long_tables()[what]
    parts = []
    for label, row in label_settings(entries):
        tables = [table for entry in row.entries if not (table := frame_of(entry.run)).empty]
        if not tables:
            continue
        lasts = [table[table["round"] == table["round"].max()] for table in tables]
        together = pd.concat(lasts).drop(columns="round")
        groups = together.groupby([key for key in keys if key in together], sort=False)
        spread = groups.agg(["mean", "std"])
        spread.columns = pd.Index([f"{name}_{end}" for name, end in spread.columns])
        spread.insert(0, "seeds", groups.size())
        made = spread.reset_index()
        for place, (name, value) in enumerate(label.items()):
            made.insert(place, name, value)
        parts.append(made)
    if not parts:
        raise RunError(f"--table {what}: none of these runs has such figures")
    whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return whole
