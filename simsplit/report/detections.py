"""Tables show which clients were malicious and which were caught, in one run or in a sweep.

A sweep's attacked runs stand beside their clean twins, which differ only in having no attacker.
Pictures draw detectors' thresholds, which are computed from the run's saved scenario.
"""

import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from simsplit.errors import format_list
from simsplit.report.grouping import INCIDENTAL, Entry
from simsplit.report.rates import SUCCESS, Count, describe_round, read_quoted, write_success
from simsplit.report.tables import Table
from simsplit.results import Run, load_saved_scenario

if TYPE_CHECKING:
    import pandas as pd

    from simsplit.detectors import DetectorConfig


_OF_DETECTOR = ("window", "threshold")
_BRACKETS = "in brackets 95 % intervals, of clients and rounds as if independent"


def tabulate_detections(run: Run) -> Table:
    """Tabulate a row per detector: the clients it flagged, and its rates; may have no rows."""
    judged = run.detections
    names = list(map(str, judged["detector"].unique())) if len(judged) else []
    rows = [_summarise_detector([run], name) for name in names]
    number = f" by round {int(judged['round'].max())}" if len(judged) else ""
    columns = ("detector", *_OF_DETECTOR, "malicious", "flagged", *_RATES)
    kept = [name for name in columns if name != "false alarms"]
    cells = [(*(row[n] for n in kept), row["false alarms"]) for row in rows]
    title = f"malicious clients, and those flagged{number}; {_BRACKETS}"
    return Table(title, (*kept, "false alarms, all rounds"), cells)


def compare_detections(
    entries: Sequence[Entry], figure: str = "best_on_validation"
) -> Table | None:
    """Tabulate a row per cell and detector, over seeds; return None if there is nothing to show.

    False alarms and the backdoor's success, at the round that `figure` names, stand beside those of
    the clean twin, which differs from the run only in that no client is malicious. The twin's
    success is the share of samples that the model gets wrong in this way without an attack.
    """
    entries = [e for e in entries if len(e.run.detections) or "attack_success" in e.run.rounds]
    if not entries:
        return None
    attacked = [entry for entry in entries if list_malicious(entry.run)]
    clean = {_make_key(e, seed=True): e for e in entries if not list_malicious(e.run)}
    groups: dict[str, list[Entry]] = {}
    for entry in attacked or clean.values():  # without attacks, only false alarms are to be seen
        key = _make_key(entry, seed=False, malicious=bool(attacked))
        groups.setdefault(key, []).append(entry)
    rows = [row for group in groups.values() for row in _make_rows(group, clean, figure)]
    swept = dict.fromkeys(name for row in rows for name in row if name not in _COLUMNS)
    columns = (*swept, *_COLUMNS)
    idle = {name for name in swept if len({row.get(name) for row in rows}) == 1}
    idle |= _find_implied_columns(rows, swept)
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
        quoted = describe_round(figure, (entry.run for entry in entries))
        title += f"; attack success at the round: {quoted}"
    if _TAKEN in kept:
        title += f", and it takes above {TAKES:.0%}"
    return Table(f"{title}; {_BRACKETS}", tuple(kept), cells, align)


def _find_implied_columns(rows: Sequence[dict[str, str]], swept: Collection[str]) -> set[str]:
    """Return the columns that the cells' names determine, if several rows share a name."""
    names = {row.get("cell") for row in rows}
    if None in names or len({tuple(row.get(n) for n in swept) for row in rows}) == len(names):
        return set()
    alike = {n: {(row["cell"], row.get(n)) for row in rows} for n in swept}
    return {n for n, pairs in alike.items() if len(pairs) == len(names)} - {"cell", "method"}


_RATES = ("caught", "caught at 1% FPR", "AUROC", "F1", "false alarms")
_TAKEN, _HONEST, _CLEAN_HONEST = "caught where it takes", "honest flagged", "clean run's flagged"
TAKES = 0.5
"""A backdoor that succeeds less often does not work, so missing its clients means little."""
_CLEAN, _CLEAN_ALARMS = "clean run's success", "clean run's alarms"
_COLUMNS = (
    *("seeds", *SUCCESS.values(), _CLEAN, "detector", *_OF_DETECTOR),
    *("malicious", "flagged", "caught", _TAKEN, *_RATES[1:-1]),
    *(_HONEST, _CLEAN_HONEST, "false alarms", _CLEAN_ALARMS),
)


def list_malicious(run: Run) -> list[int]:
    """Return the numbers of a run's malicious clients, from its `clients` table."""
    table = run.clients
    if "malicious" not in table:
        return []
    return sorted({int(client) for client in table.loc[table["malicious"] == 1, "client"]})


def list_flagged(run: Run, detector: str) -> list[int]:
    """Return the clients that a detector flagged when it last judged them.

    A client that a defence excludes is not judged again, so its last verdict counts.
    """
    verdicts = _read_verdicts(run, detector)
    return [int(client) for client in verdicts.index[verdicts == 1]]


def score_f1(run: Run, detector: str) -> float:
    """Return F1 over all clients, or NaN for a clean run; clients never judged count as missed."""
    bad, flagged = set(list_malicious(run)), set(list_flagged(run, detector))
    return 2 * len(bad & flagged) / (len(bad) + len(flagged)) if bad else math.nan


def _read_verdicts(run: Run, detector: str) -> "pd.Series[Any]":
    """Return by client whether it was flagged when last judged, without clients never judged."""
    known = run.clients.dropna(subset=[f"{detector}_flagged"]).sort_values("round")
    return known.groupby("client")[f"{detector}_flagged"].last()


def write_clients(run: Run, clients: Sequence[int]) -> str:
    """Write a few clients of a run for a cell, by name or number."""
    return format_list(map(run.client_names.get, clients), 6) or "none"


def _write_clients_of(runs: Sequence[Run], choose: Callable[[Run], Sequence[int]]) -> str:
    """Write the chosen clients of each run for a cell, or their number over many runs."""
    chosen = [choose(run) for run in runs]
    if len(runs) <= 3:
        return " | ".join(map(write_clients, runs, chosen))
    return f"{sum(map(len, chosen))} in {len(runs)} runs"


def _make_rows(
    group: Sequence[Entry], clean: dict[str, Entry], figure: str
) -> list[dict[str, str]]:
    """Make the rows of one setting's runs: one per detector, or one row without a detector."""
    first, runs = group[0], [entry.run for entry in group]
    common = {first.titles[n]: v for n, v in first.settings.items() if n != "seed"}
    common |= {"seeds": str(len(runs))}
    common |= {title: write_success(runs, name, figure) for name, title in SUCCESS.items()}
    keys = [_make_key(entry, seed=True) for entry in group]
    twins = [clean[key].run for key in keys if key in clean]
    if list_malicious(first.run):
        common[_CLEAN] = write_success(twins, "attack_success", figure)
    # a backdoor that was not scored counts as working
    succeeded = [read_quoted(run, "attack_success", figure) for run in runs]
    taken = [run for run, s in zip(runs, succeeded, strict=True) if s is None or s > TAKES]
    common["malicious"] = _write_clients_of(runs, list_malicious)
    if not len(first.run.detections):
        return [{**common, "detector": "none"}]
    rows = []
    for name in map(str, first.run.detections["detector"].unique()):
        row = common | _summarise_detector(runs, name)
        row[_HONEST] = _sum_counts(runs, name, _count_flagged_honest).cell
        if list_malicious(first.run):
            row[_CLEAN_ALARMS] = _sum_counts(twins, name, _count_alarms).cell
            row[_CLEAN_HONEST] = _sum_counts(twins, name, _count_flagged_honest).cell
            caught = _sum_counts(taken, name, _count_caught).cell
            row[_TAKEN] = caught if taken else "takes in no seed"
        rows.append(row)
    return rows


def _sum_counts(runs: Sequence[Run], detector: str, count: Callable[[Run, str], Count]) -> Count:
    """Sum the counts of the runs that had a detector."""
    known = (run for run in runs if f"{detector}_flagged" in run.clients)
    return sum((count(run, detector) for run in known), Count())


def _count_caught(run: Run, detector: str) -> Count:
    """Count the malicious clients that are flagged; one that is never judged counts as missed."""
    bad = set(list_malicious(run))
    return Count(len(bad & set(list_flagged(run, detector))), len(bad))


def _count_flagged_honest(run: Run, detector: str) -> Count:
    """Count the honest clients that are flagged, among the honest clients that are judged."""
    verdicts = _read_verdicts(run, detector).drop(list_malicious(run), errors="ignore")
    return Count(int(verdicts.sum()), len(verdicts))


def _summarise_detector(runs: Sequence[Run], name: str) -> dict[str, str]:
    """Return one detector's cells: its rates at the runs' ends, and all rounds' false alarms."""
    known = [run for run in runs if f"{name}_flagged" in run.clients]
    judged = [run.detections[run.detections["detector"] == name] for run in known]
    ends = [table.iloc[-1] for table in judged]
    ranked = Count()
    for end in ends:
        if not math.isnan(end["tpr_at_1pct_fpr"]):
            malicious = int(end["malicious"])
            ranked += Count(round(end["tpr_at_1pct_fpr"] * malicious), malicious)
    row = {"detector": name, **{field: str(ends[0].get(field, "")) for field in _OF_DETECTOR}}
    row["malicious"] = _write_clients_of(known, list_malicious)
    row["flagged"] = _write_clients_of(known, lambda run: list_flagged(run, name))
    row |= {"caught": _sum_counts(known, name, _count_caught).cell, "caught at 1% FPR": ranked.cell}
    row["AUROC"] = _average(end["auroc"] for end in ends)
    row["F1"] = _average(score_f1(run, name) for run in known)
    return row | {"false alarms": _sum_counts(known, name, _count_alarms).cell}


def _count_alarms(run: Run, detector: str) -> Count:
    """Count the verdicts on honest clients that flagged them, over all rounds."""
    table = run.clients
    honest = table[(table["malicious"] == 0) & table[f"{detector}_flagged"].notna()]
    return Count(int(honest[f"{detector}_flagged"].sum()), len(honest))


def _make_key(entry: Entry, *, seed: bool, malicious: bool = False) -> str:
    values = {name: value for name, value in entry.scenario.items() if name not in INCIDENTAL}
    if seed:
        values["seed"] = entry.scenario["seed"]
    if not malicious:
        values["clients"] = {n: v for n, v in values["clients"].items() if n != "malicious"}
    return json.dumps(values, sort_keys=True)


def _average(values: Iterable[float]) -> str:
    known = [float(value) for value in values if not math.isnan(value)]
    return f"{statistics.fmean(known):.2f}" if known else ""


class SignalCut(NamedTuple):
    """A threshold that can be drawn in a signal's picture."""

    value: float
    lines: tuple[float, ...]
    """The values at which a client would be flagged."""
    of_scores: bool
    """Whether it applies to the scores themselves instead of their robust z."""


def list_detectors(run: Run) -> list[str]:
    """Return the names of a run's detectors, in their order."""
    columns = map(str, run.clients.columns)
    return [name.removesuffix("_flagged") for name in columns if name.endswith("_flagged")]


def find_cut(run: Run, detector: str) -> SignalCut | None:
    """Return a detector's threshold at the end of the run, or None if it has no line."""
    config = _read_configs(run.path).get(detector)
    # a plugin's detector, and one that averages over rounds
    if config is None or config.threshold.kind == "sequential":
        return None
    last = run.clients[run.clients["round"] == run.clients["round"].max()]
    judged = int(last[f"{detector}_z"].notna().sum()) - len(config.trusted)
    value = config.threshold.cut(judged, config.side, len(run.rounds))
    ways = {"both": (-value, value), "high": (value,), "low": (-value,)}
    return SignalCut(value, ways[config.side], config.threshold.kind == "fixed")


def rank_suspicion(run: Run, detector: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which clients are malicious, and each one's suspicion, in the last judged round.

    Suspicion ranks clients like the detector; for a plugin's detector it is the distance from the
    others.
    """
    from simsplit.detectors.thresholds import to_suspicion

    config = _read_configs(run.path).get(detector)
    fixed = config is not None and config.threshold.kind == "fixed"
    column = detector if fixed else f"{detector}_z"
    known = run.clients.dropna(subset=[column])
    last = known[known["round"] == known["round"].max()]
    last = last[~last["client"].isin(config.trusted if config else ())]
    side = config.side if config else "both"
    return last["malicious"].to_numpy(), to_suspicion(last[column].to_numpy(float), side)


@cache
def _read_configs(path: Path) -> "Mapping[str, DetectorConfig]":
    """Read by name the detectors of a saved scenario that are part of simsplit."""
    values = load_saved_scenario(path)
    if not values.get("detectors"):
        return {}
    from simsplit.detectors import DETECTORS  # torch with them, which other runs do not need

    configs = {}
    for each in values["detectors"]:
        with suppress(ValidationError):  # another version wrote the scenario
            if each["kind"] in DETECTORS:
                config = DETECTORS[each["kind"]].model_validate(each)
                configs[config.title] = config
    return configs
