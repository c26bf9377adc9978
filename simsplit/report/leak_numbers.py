"""Numbers of what attacks recovered, by the names that `compare`, plots, boards and claims use.

A name is composed here and nowhere else: `{attack}_{metric}`, with a view behind it for kinds that
have views (`mc_ap_prompt`), or `_at_half` for half of an attack's iterations. Kinds that are judged
by their worst view have names of their own (`labels_spectral_gradients_leak`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.metrics import find_metric
from simsplit.results import Run
from simsplit.results.leak_table import keep_kinds, list_figures
from simsplit.results.mean_leaks import average_by_attack, average_last, find_highest, get_utility
from simsplit.results.recovered_files import load_curves
from simsplit.results.recovered_kinds import KINDS, find_kinds
from simsplit.results.worst_views import measure_worst

if TYPE_CHECKING:
    import pandas as pd


def measure_leaks(run: Run) -> dict[str, float]:
    """Return all figures of what attacks recovered, as judged last, by their names."""
    values: dict[str, float] = {}
    for kind in find_kinds(run.leaks):
        if KINDS[kind].worst:
            values |= measure_worst(keep_kinds(run.leaks, kind))
        else:
            values |= dict(_name_means(average_last(run.leaks, kind)))
        if defence := KINDS[kind].defence:
            last = average_by_attack(run.leaks, kind)
            short = defence.utility_words[1].lower()
            values[f"{kind}_{KINDS[kind].metrics[0]}"] = find_highest(last, defence)
            values[f"{kind}_{short}"] = get_utility(last, defence)
    return values | dict(_name_halves(run))


def describe_means(run: Run, kind: str) -> dict[str, Any]:
    """Return the means of each attack and guess, as plain values."""
    means = average_last(run.leaks, kind)
    if means.empty:
        return {}
    groups = means.groupby("attack", sort=False)
    return {str(name): dict(_name_means(group, "{figure}")) for name, group in groups}


def score_attack(
    recovers: str, attack: str, values: Mapping[str, Sequence[float]]
) -> tuple[str, float]:
    """Return the figure that says how much an attack reads, and its value, larger for more."""
    own = {name: kind for name, kind in KINDS.items() if kind.recovers == recovers}
    names = [f"{name}_{attack}_leak" for name, kind in own.items() if kind.worst]
    names += [f"{attack}_{m}" for kind in own.values() for m in (*kind.success, *kind.metrics)]
    name = next((name for name in names if values.get(name)), "")
    if not name:
        return "", math.nan
    metric = find_metric(name)
    reads_less = metric is not None and metric.good == "less"
    return name, -values[name][0] if reads_less else values[name][0]


def _name_means(
    means: "pd.DataFrame", form: str = "{attack}_{figure}"
) -> Iterator[tuple[str, float]]:
    for _, row in means.iterrows():
        view = f"_{row['view']}" if row.get("view") else ""
        for figure in list_figures(means):
            if not math.isnan(value := float(row[figure])):
                yield form.format(attack=row["attack"], figure=f"{figure}{view}"), value


def _name_halves(run: Run) -> Iterator[tuple[str, float]]:
    """Yield the figures with half of the iterations, where `targets.curve` has such a point."""
    curves = load_curves(run.path)
    halves = curves[curves["share"] == 0.5] if "share" in curves else curves
    for _, row in halves.iterrows():
        for figure, value in row.drop(["round", "attack", "share"]).astype(float).items():
            if not math.isnan(value):
                yield f"{row['attack']}_{figure}_at_half", value
