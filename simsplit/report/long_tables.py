"""`compare --format csv`: raw numbers, one table at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.errors import RunError, near
from simsplit.report.grouping import Entry
from simsplit.report.numbers import frame, settings
from simsplit.results.labels import worst_by_attack
from simsplit.results.sessions import means_of

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = "settings"
_KEYS = {
    "recovered": ("attack",),
    "labels": ("attack", "figure"),
    "sessions": ("attack", "side"),
    "detections": ("detector", "window", "threshold"),
}
_TABLES: Mapping[str, Callable[[Entry], "pd.DataFrame"]] = {
    "recovered": lambda entry: entry.run.attacks,
    "labels": lambda entry: worst_by_attack(entry.run.labels).assign(round=0),
    "sessions": lambda entry: means_of(entry.run.sessions),
    "detections": lambda entry: entry.run.detections,
}
AS_SHOWN = ("overview", "dcs")
"""Tables whose cells are words: as CSV they are what is shown."""
TABLES = (SETTINGS, *_TABLES, *AS_SHOWN)
_ASIDE = ("round", "image", "text", "row", "label", "view", "adapter", "known")


def csv_of(
    entries: Sequence[Entry], figure: str, name: str, baseline: Mapping[str, str] | None = None
) -> str:
    """One of the tables as comma-separated values, without the line end behind the last."""
    made = frame(entries, figure, baseline) if name == SETTINGS else _long(entries, name)
    return made.to_csv(index=False, lineterminator="\n").rstrip("\n")


def refuse_table(name: str) -> None:
    """RunError where there is no such table."""
    if name not in TABLES:
        raise RunError(
            f"--table: unknown '{name}'{near(name, TABLES) or ','} allowed: {', '.join(TABLES)}"
        )


def _long(entries: Sequence[Entry], what: str) -> "pd.DataFrame":
    """A row per setting and attack or detector: as it was last judged, over seeds."""
    import pandas as pd

    keys, of = _KEYS[what], _TABLES[what]
    parts = []
    for label, row in settings(entries):
        tables = [table for entry in row.entries if not (table := of(entry)).empty]
        if not tables:
            continue
        lasts = [table[table["round"] == table["round"].max()] for table in tables]
        together = pd.concat(lasts).drop(columns=list(_ASIDE), errors="ignore")
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
