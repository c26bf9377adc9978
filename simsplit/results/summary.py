"""What a finished run came to, computed from its tables alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simsplit.metrics import falls
from simsplit.results.recovers import RECOVERS
from simsplit.results.run import Run

if TYPE_CHECKING:
    import pandas as pd

Figures = dict[str, float | int]


def summarise(run: Run, figures: Sequence[str]) -> dict[str, Any]:
    """The figures of the last round, the best on validation and the best on test; bytes by leg.

    Rounds before training proper, in which a method learns alone, are never the best.
    The best on test is what papers that select on the test set report; it is labelled as such and
    never called the run's result. `figures` are the evaluation columns, the one to select by first.
    """
    recovered = [each.summarise(run.read_recovered(kind)) for kind, each in RECOVERS.items()]
    evaluated = _of_training(run.rounds).dropna(subset=list(figures), how="all")
    return {
        "rounds_done": int(run.rounds["round"].max()),
        "last": _figures(evaluated, -1, figures),
        "best_on_validation": _best(evaluated, figures, "validation"),
        "best_on_test": _best(evaluated, figures, "test"),
        "bytes": _bytes(run.wire),
        "seconds": float(run.timing["elapsed_s"].iloc[-1]),
        "per_sample": _per_sample(run),
        **_simulated(run.rounds),
        **{name: entry for entries in recovered for name, entry in entries.items()},
    }


def _of_training(rounds: "pd.DataFrame") -> "pd.DataFrame":
    """The rounds of the last phase that the run came to."""
    of_last: pd.DataFrame = rounds[rounds["phase"] == rounds["phase"].iloc[-1]]
    return of_last


def _per_sample(run: Run) -> Figures:
    """What a sample took in training proper: wall-clock seconds, and bytes with steps aside."""
    rounds, wire, timing = run.rounds, run.wire, run.timing
    main = _of_training(rounds)
    if not (samples := int(main["samples"].sum())):
        return {}
    sent = wire[wire["round"].isin(main["round"]) & (wire["phase"] != "evaluate")]
    seconds = timing.loc[timing["round"].isin(main["round"]), "train_s"].sum()
    return {"seconds": float(seconds) / samples, "bytes": float(sent["bytes"].sum()) / samples}


def _simulated(rounds: "pd.DataFrame") -> dict[str, float]:
    if "simulated_total_s" not in rounds:
        return {}
    return {"simulated_s": float(rounds["simulated_total_s"].iloc[-1])}


def _figures(rounds: "pd.DataFrame", position: int, figures: Sequence[str]) -> Figures:
    row = rounds.iloc[position]
    return {"round": int(row["round"])} | {name: float(row[name]) for name in figures}


def _best(rounds: "pd.DataFrame", figures: Sequence[str], split: str) -> Figures | None:
    """The figures at the round whose first figure on `split` is best."""
    of_split = [name for name in figures if name.startswith(f"{split}_")]
    if not of_split:
        return None
    known = rounds.dropna(subset=of_split[:1])
    values = known[of_split[0]]
    best = values.argmin() if falls(of_split[0]) else values.argmax()
    return _figures(known, int(best), figures)


def _bytes(wire: "pd.DataFrame") -> dict[str, int]:
    """Bytes by leg, training only; an evaluation's are beside them."""
    training = wire[wire["phase"] != "evaluate"]
    by_leg = {str(leg): int(total) for leg, total in training.groupby("leg")["bytes"].sum().items()}
    evaluation = int(wire.loc[wire["phase"] == "evaluate", "bytes"].sum())
    return {**by_leg, "total": sum(by_leg.values()), "evaluation": evaluation}
