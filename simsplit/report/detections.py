"""Who was malicious and who was caught: of one run, and of a sweep beside its clean runs."""

import json
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.errors import listed
from simsplit.report.grouping import Entry
from simsplit.report.rates import SUCCESS, Count, quoted_at, round_said, success_of
from simsplit.report.tables import Better, Table, best
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd

_INCIDENTAL = ("name", "output", "threads", "device", "checkpoint", "engine", "observers")
_OF_DETECTOR = ("window", "threshold")
_FIGURES = ("AUROC", "F1")
_BRACKETS = "in brackets 95 % intervals, of clients and rounds as if independent"


def detected(run: Run) -> Table:
    """A row per detector: whom it flagged, and how good that was; may have no rows."""
    found = run.detections
    names = list(map(str, found["detector"].unique())) if len(found) else []
    rows = [_judged([run], name) for name in names]
    number = f" by round {int(found['round'].max())}" if len(found) else ""
    columns = ("detector", *_OF_DETECTOR, "malicious", "flagged", *_RATES)
    kept = [name for name in columns if name != "false alarms"]
    cells = [(*(row[n] for n in kept), row["false alarms"]) for row in rows]
    title = f"malicious clients, and those flagged{number}; {_BRACKETS}"
    return Table(title, (*kept, "false alarms, all rounds"), cells)


def detections_of(entries: Sequence[Entry], figure: str = "best_on_validation") -> Table | None:
    """A row per cell and detector, over seeds; false alarms beside those of the clean twin.

    The backdoor's success stands beside that in the clean twin, which is the share that the model
    gets wrong in just this way by itself; both at the round that `figure` names.

    None where nobody looked and no attack was scored. A run's clean twin differs from it in nothing
    but that nobody is malicious.
    """
    entries = [e for e in entries if len(e.run.detections) or "attack_success" in e.run.rounds]
    clean = {_key(entry, seed=True): entry for entry in entries if not malicious_of(entry.run)}
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if malicious_of(entry.run):
            groups.setdefault(_key(entry, seed=False, malicious=True), []).append(entry)
    if not entries:
        return None
    if not groups:
        groups = {"": list(clean.values())}
    rows = [row for group in groups.values() for row in _rows(group, clean, figure)]
    swept = dict.fromkeys(name for row in rows for name in row if name not in _COLUMNS)
    columns = (*swept, *_COLUMNS)
    idle = {name for name in swept if len({row.get(name) for row in rows}) == 1}
    idle |= _said_by_names(rows, swept)
    if all(row.get(_TAKEN) in (None, row.get("caught")) for row in rows):
        idle.add(_TAKEN)
    kept = [name for name in columns if any(row.get(name) for row in rows) and name not in idle]
    cells = [tuple(row.get(name, "") for name in kept) for row in rows]
    text = {*swept, "detector", *_OF_DETECTOR}
    align = "".join("l" if name in text else "r" for name in kept)
    title = (
        "malicious clients, and those flagged when they were last judged (false alarms: in all "
        "rounds); who is never judged is missed, and AUROC is of those judged in the last round"
    )
    if SUCCESS["attack_success"] in kept:
        said = round_said(figure, (entry.run for entry in entries))
        title += f"; attack success at the round: {said}"
    if _TAKEN in kept:
        title += f", and it takes above {TAKES:.0%}"
    values = [{n: float(row[n]) for n in _WAYS if row.get(n)} for row in rows]
    return Table(f"{title}; {_BRACKETS}", tuple(kept), cells, align, best(kept, values, _WAYS))


def _said_by_names(rows: Sequence[dict[str, str]], swept: Collection[str]) -> set[str]:
    """What is the same wherever a cell's name is, if names have several rows."""
    names = {row.get("cell") for row in rows}
    if None in names or len({tuple(row.get(n) for n in swept) for row in rows}) == len(names):
        return set()
    alike = {n: {(row["cell"], row.get(n)) for row in rows} for n in swept}
    return {n for n, pairs in alike.items() if len(pairs) == len(names)} - {"cell", "method"}


_RATES = ("caught", "caught at 1% FPR", *_FIGURES, "false alarms")
_TAKEN, _HONEST, _CLEAN_HONEST = "caught where it takes", "honest flagged", "clean run's flagged"
TAKES = 0.5
"""A backdoor that succeeds less often has not taken, and missing it means little."""
_WAYS: dict[str, Better] = dict.fromkeys(_FIGURES, "more")
_CLEAN, _CLEAN_ALARMS = "clean run's success", "clean run's alarms"
_COLUMNS = (
    *("seeds", *SUCCESS.values(), _CLEAN, "detector", *_OF_DETECTOR),
    *("malicious", "flagged", "caught", _TAKEN, *_RATES[1:-1]),
    *(_HONEST, _CLEAN_HONEST, "false alarms", _CLEAN_ALARMS),
)


def malicious_of(run: Run) -> list[int]:
    """Numbers of the malicious clients of a run, from its `clients` table."""
    table = run.clients
    if "malicious" not in table:
        return []
    return sorted({int(client) for client in table.loc[table["malicious"] == 1, "client"]})


def flagged_of(run: Run, detector: str) -> list[int]:
    """Whom a detector flagged when it last judged them: who is left out is judged no more."""
    verdicts = _verdicts(run, detector)
    return [int(client) for client in verdicts.index[verdicts == 1]]


def f1_of(run: Run, detector: str) -> float:
    """F1 over all clients, where a malicious one that is never judged is missed; NaN of a clean
    run.
    """
    bad, flagged = set(malicious_of(run)), set(flagged_of(run, detector))
    return 2 * len(bad & flagged) / (len(bad) + len(flagged)) if bad else math.nan


def _verdicts(run: Run, detector: str) -> "pd.Series[Any]":
    """By client, whether it was flagged when it was last judged; without those who never were."""
    known = run.clients.dropna(subset=[f"{detector}_flagged"]).sort_values("round")
    return known.groupby("client")[f"{detector}_flagged"].last()


def some(clients: Sequence[int]) -> str:
    """Some clients in a cell."""
    return listed(clients, 6) or "none"


_NAMED = 3
"""Runs whose clients a cell names; of more it says how many they are."""


def _who(runs: Sequence[Sequence[int]]) -> str:
    """Clients of each run in a cell, or how many of all runs."""
    if len(runs) <= _NAMED:
        return " | ".join(some(clients) for clients in runs)
    return f"{sum(map(len, runs))} in {len(runs)} runs"


def _rows(group: Sequence[Entry], clean: dict[str, Entry], figure: str) -> list[dict[str, str]]:
    """One setting's runs, a row per detector; one row where there is none."""
    first, runs = group[0], [entry.run for entry in group]
    common = {first.titles[n]: v for n, v in first.settings.items() if n != "seed"}
    common |= {"seeds": str(len(runs))}
    common |= {title: success_of(runs, name, figure) for name, title in SUCCESS.items()}
    twins = [twin for entry in group if (twin := clean.get(_key(entry, seed=True))) is not None]
    if malicious_of(first.run):
        common[_CLEAN] = success_of([twin.run for twin in twins], "attack_success", figure)
    taken = [run for run in runs if _takes(run, figure)]
    common["malicious"] = _who([malicious_of(run) for run in runs])
    if not len(first.run.detections):
        return [{**common, "detector": "none"}]
    rows = []
    for name in map(str, first.run.detections["detector"].unique()):
        row = common | _judged(runs, name) | {_HONEST: _honest(runs, name).said}
        if malicious_of(first.run):
            clean_runs = [twin.run for twin in twins]
            row[_CLEAN_ALARMS] = _alarms(clean_runs, name).said
            row[_CLEAN_HONEST] = _honest(clean_runs, name).said
            row[_TAKEN] = _caught(taken, name).said if taken else "takes in no seed"
        rows.append(row)
    return rows


def _takes(run: Run, figure: str) -> bool:
    """Whether its backdoor does, or nobody scored it."""
    success = quoted_at(run, "attack_success", figure)
    return success is None or success > TAKES


def _caught(runs: Sequence[Run], detector: str) -> Count:
    """The malicious clients that are flagged; one that is never judged is missed."""
    found = Count()
    for run in runs:
        if _knows(run, detector):
            bad = set(malicious_of(run))
            found += Count(len(bad & set(flagged_of(run, detector))), len(bad))
    return found


def _honest(runs: Sequence[Run], detector: str) -> Count:
    """The honest clients that are flagged, of those that are ever judged."""
    found = Count()
    for run in runs:
        if _knows(run, detector):
            verdicts = _verdicts(run, detector).drop(malicious_of(run), errors="ignore")
            found += Count(int(verdicts.sum()), len(verdicts))
    return found


def _judged(runs: Sequence[Run], name: str) -> dict[str, str]:
    """What one detector came to in some runs at their ends, and in false alarms all along."""
    known = [run for run in runs if _knows(run, name)]
    ends = [_last(run, name) for run in known]
    ranked = Count()
    for end in ends:
        if not math.isnan(end["tpr_at_1pct_fpr"]):
            malicious = int(end["malicious"])
            ranked += Count(round(end["tpr_at_1pct_fpr"] * malicious), malicious)
    row = {"detector": name, **{field: str(ends[0].get(field, "")) for field in _OF_DETECTOR}}
    row["malicious"] = _who([malicious_of(run) for run in known])
    row["flagged"] = _who([flagged_of(run, name) for run in known])
    row |= {"caught": _caught(known, name).said, "caught at 1% FPR": ranked.said}
    row["AUROC"] = _mean(end["auroc"] for end in ends)
    row["F1"] = _mean(f1_of(run, name) for run in known)
    return row | {"false alarms": _alarms(known, name).said}


def _knows(run: Run, detector: str) -> bool:
    return f"{detector}_flagged" in run.clients


def _last(run: Run, detector: str) -> "pd.Series[Any]":
    found = run.detections
    return found[found["detector"] == detector].iloc[-1]


def _alarms(runs: Sequence[Run], detector: str) -> Count:
    """The honest clients' rounds in which they were flagged."""
    found = Count()
    for run in runs:
        if _knows(run, detector):
            table = run.clients
            honest = table[(table["malicious"] == 0) & table[f"{detector}_flagged"].notna()]
            found += Count(int(honest[f"{detector}_flagged"].sum()), len(honest))
    return found


def _key(entry: Entry, *, seed: bool, malicious: bool = False) -> str:
    values = {name: value for name, value in entry.scenario.items() if name not in _INCIDENTAL}
    if not seed:
        del values["seed"]
    if not malicious:
        values["clients"] = {n: v for n, v in values["clients"].items() if n != "malicious"}
    return json.dumps(values, sort_keys=True)


def _mean(values: Iterable[float]) -> str:
    known = [float(value) for value in values if not math.isnan(value)]
    return f"{statistics.fmean(known):.2f}" if known else ""
