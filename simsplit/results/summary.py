"""The summary of a finished run is computed from its tables alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simsplit.metrics import is_lower_better
from simsplit.results.leak_table import keep_kinds
from simsplit.results.mean_leaks import summarise_strongest
from simsplit.results.recovered_kinds import KINDS, find_kinds
from simsplit.results.run import Run
from simsplit.results.worst_views import summarise_worst

if TYPE_CHECKING:
    import pandas as pd

Figures = dict[str, float | int]


def summarise(run: Run, figures: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the last round, the best on validation and the best on test, and more.

    Rounds before the main phase, in which only a method learns, are never the best. The best on
    test is what papers that select on the test set report; it has a name of its own and is never
    taken for the run's result. `figures` are the columns of evaluations; the first one selects.
    """
    rounds = _take_last_phase(run.rounds)
    # Without any figure clients withhold them, or none is a number since training has diverged.
    known = rounds.dropna(subset=list(figures), how="all") if figures else rounds
    evaluated = rounds if known.empty else known
    simulated = {}
    if "simulated_total_s" in run.rounds:
        simulated["simulated_s"] = float(run.rounds["simulated_total_s"].iloc[-1])
    return {
        "rounds_done": int(run.rounds["round"].max()),
        "last": _take_figures(evaluated, -1, figures),
        "best_on_validation": _find_best(evaluated, figures, "validation"),
        "best_on_test": _find_best(evaluated, figures, "test"),
        "bytes": _sum_bytes(run.wire),
        "seconds": float(run.timing["elapsed_s"].iloc[-1]),
        "per_sample": _measure_per_sample(run),
        **simulated,
        **summarise_leaks(run.leaks),
    }


def summarise_leaks(table: "pd.DataFrame") -> dict[str, Any]:
    """Return the entries of `summary.json` on what attacks recovered."""
    made: dict[str, Any] = {}
    for name in find_kinds(table):
        rows, kind = keep_kinds(table, name), KINDS[name]
        made |= kind.summarise(rows) if kind.summarise else {}
        made |= summarise_worst(rows) if kind.worst else {}
        made |= summarise_strongest(rows, name) if kind.defence else {}
    return made


def _take_last_phase(rounds: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rounds of the last phase that the run has reached."""
    of_last: pd.DataFrame = rounds[rounds["phase"] == rounds["phase"].iloc[-1]]
    return of_last


def _measure_per_sample(run: Run) -> Figures:
    """Return the wall-clock seconds and the bytes per sample in the last phase."""
    rounds, wire, timing = run.rounds, run.wire, run.timing
    main = _take_last_phase(rounds)
    if not (samples := int(main["samples"].sum())):
        return {}
    sent = wire[wire["round"].isin(main["round"]) & (wire["phase"] != "evaluate")]
    seconds = timing.loc[timing["round"].isin(main["round"]), "train_s"].sum()
    return {"seconds": float(seconds) / samples, "bytes": float(sent["bytes"].sum()) / samples}


def _take_figures(rounds: "pd.DataFrame", position: int, figures: Sequence[str]) -> Figures:
    row = rounds.iloc[position]
    return {"round": int(row["round"])} | {name: float(row[name]) for name in figures}


def _find_best(rounds: "pd.DataFrame", figures: Sequence[str], split: str) -> Figures | None:
    """Return the figures of the round whose first figure on `split` is best."""
    of_split = [name for name in figures if name.startswith(f"{split}_")]
    if not of_split:
        return None
    known = rounds.dropna(subset=of_split[:1])
    if known.empty:
        return None
    values = known[of_split[0]]
    best = values.argmin() if is_lower_better(of_split[0]) else values.argmax()
    return _take_figures(known, int(best), figures)


def _sum_bytes(wire: "pd.DataFrame") -> dict[str, int]:
    """Return the bytes of training by leg and in total, and the bytes of evaluation."""
    training = wire[wire["phase"] != "evaluate"]
    by_leg = {str(leg): int(total) for leg, total in training.groupby("leg")["bytes"].sum().items()}
    evaluation = int(wire.loc[wire["phase"] == "evaluate", "bytes"].sum())
    return {**by_leg, "total": sum(by_leg.values()), "evaluation": evaluation}
