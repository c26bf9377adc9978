"""Who was malicious and who was caught: of one run, and of a sweep beside its clean runs."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.report.comparison import Entry
from simsplit.report.tables import Table
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd

_INCIDENTAL = ("name", "output", "threads", "device", "checkpoint", "engine", "observers")
_TITLES = {"auroc": "AUROC", "tpr_at_1pct_fpr": "TPR 1%", "f1": "F1"}


def detected(run: Run) -> Table:
    """A row per detector: whom it flagged at the end, and how good that was; may have no rows."""
    found = run.detections
    rows = []
    if len(found):
        last = found[found["round"] == found["round"].max()]
        for _, row in last.iterrows():
            name = str(row["detector"])
            rows.append(
                (
                    name,
                    listed(malicious_of(run)),
                    listed(flagged_of(run, name)),
                    *(_figure(row[figure]) for figure in _TITLES),
                    _share(_false_alarms(run, name)),
                )
            )
    number = f" at round {int(found['round'].max())}" if len(found) else ""
    columns = ("detector", "malicious", "flagged", *_TITLES.values(), "false alarms, all rounds")
    return Table(f"malicious clients, and those flagged{number}", columns, rows)


def detections_of(entries: Sequence[Entry]) -> Table | None:
    """A row per cell and detector, over seeds; false alarms beside those of the clean twin.

    None where no detector looked. A run's clean twin differs from it in nothing but that nobody is
    malicious.
    """
    entries = [entry for entry in entries if len(entry.run.detections)]
    clean = {_key(entry, seed=True): entry for entry in entries if not malicious_of(entry.run)}
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if malicious_of(entry.run):
            groups.setdefault(_key(entry, seed=False, malicious=True), []).append(entry)
    if not entries:
        return None
    if not groups:
        groups = {"": list(clean.values())}
    rows = [row for group in groups.values() for row in _rows(group, clean)]
    swept = dict.fromkeys(name for row in rows for name in row if name not in _COLUMNS)
    columns = (*swept, *_COLUMNS)
    idle = {name for name in swept if len({row.get(name) for row in rows}) == 1}
    kept = [name for name in columns if any(row.get(name) for row in rows) and name not in idle]
    cells = [tuple(row.get(name, "") for name in kept) for row in rows]
    align = "".join("l" if name in swept or name == "detector" else "r" for name in kept)
    title = "malicious clients, and those flagged at the end (false alarms: in all rounds)"
    return Table(title, tuple(kept), cells, align)


_COLUMNS = (
    "attack",
    "detector",
    "malicious",
    "flagged",
    *_TITLES.values(),
    "false alarms",
    "clean run's",
)


def malicious_of(run: Run) -> list[int]:
    """Numbers of the malicious clients of a run, from its `clients` table."""
    table = run.clients
    if "malicious" not in table:
        return []
    return sorted({int(client) for client in table.loc[table["malicious"] == 1, "client"]})


def flagged_of(run: Run, detector: str, number: int | None = None) -> list[int]:
    """Whom a detector flagged in a round; by default the last."""
    table = run.clients
    at = table["round"] == (table["round"].max() if number is None else number)
    return [int(c) for c in table.loc[at & (table[f"{detector}_flagged"] == 1), "client"]]


def listed(clients: Sequence[int]) -> str:
    """Some clients in a cell."""
    few = ", ".join(map(str, clients[:6]))
    return f"{few}, ... ({len(clients)})" if len(clients) > 6 else few or "none"


def _rows(group: Sequence[Entry], clean: dict[str, Entry]) -> list[dict[str, str]]:
    """One setting's runs, a row per detector."""
    first = group[0]
    settings = {first.titles[n]: v for n, v in first.settings.items() if n != "seed"}
    success = [
        run.rounds["attack_success"].dropna().iloc[-1]
        for run in (entry.run for entry in group)
        if "attack_success" in run.rounds
    ]
    twins = [twin for entry in group if (twin := clean.get(_key(entry, seed=True))) is not None]
    rows = []
    for name in map(str, first.run.detections["detector"].unique()):
        ends = [_last(entry.run, name) for entry in group if _knows(entry.run, name)]
        row = {**settings, "detector": name}
        row["attack"] = _percent(success)
        row["malicious"] = " | ".join(listed(malicious_of(entry.run)) for entry in group)
        row["flagged"] = " | ".join(listed(flagged_of(entry.run, name)) for entry in group)
        for figure, title in _TITLES.items():
            row[title] = _mean(end[figure] for end in ends)
        row["false alarms"] = _percent([_false_alarms(entry.run, name) for entry in group])
        alarms = [_false_alarms(twin.run, name) for twin in twins if _knows(twin.run, name)]
        row["clean run's"] = _percent(alarms)
        rows.append(row)
    return rows


def _knows(run: Run, detector: str) -> bool:
    return f"{detector}_flagged" in run.clients


def _last(run: Run, detector: str) -> "pd.Series[Any]":
    found = run.detections
    return found[found["detector"] == detector].iloc[-1]


def _false_alarms(run: Run, detector: str) -> float:
    """The share of honest clients' rounds in which they were flagged."""
    table = run.clients
    honest = table[(table["malicious"] == 0) & table[f"{detector}_flagged"].notna()]
    return float(honest[f"{detector}_flagged"].mean()) if len(honest) else float("nan")


def _key(entry: Entry, *, seed: bool, malicious: bool = False) -> str:
    values = {name: value for name, value in entry.scenario.items() if name not in _INCIDENTAL}
    if not seed:
        del values["seed"]
    if not malicious:
        values["clients"] = {n: v for n, v in values["clients"].items() if n != "malicious"}
    return json.dumps(values, sort_keys=True)


def _known(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if not math.isnan(value)]


def _mean(values: Iterable[float]) -> str:
    known = _known(values)
    return f"{statistics.fmean(known):.2f}" if known else ""


def _percent(values: Sequence[float]) -> str:
    known = _known(values)
    return f"{100 * statistics.fmean(known):.1f}%" if known else ""


def _figure(value: float) -> str:
    return _mean([value])


def _share(value: float) -> str:
    return _percent([value])
