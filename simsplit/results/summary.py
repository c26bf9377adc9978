"""What a finished run came to, computed from its tables alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simsplit.metrics import falls
from simsplit.results.directory import Run

if TYPE_CHECKING:
    import pandas as pd

Figures = dict[str, float | int]


def summarise(run: Run, figures: Sequence[str]) -> dict[str, Any]:
    """The figures of the last round, the best on validation and the best on test; bytes by leg.

    The best on test is what papers that select on the test set report; it is labelled as such and
    never called the run's result. `figures` are the evaluation columns, the one to select by first.
    """
    evaluated = run.rounds.dropna(subset=list(figures), how="all")
    return {
        "rounds_done": int(run.rounds["round"].max()),
        "last": _figures(evaluated, -1, figures),
        "best_on_validation": _best(evaluated, figures, "validation"),
        "best_on_test": _best(evaluated, figures, "test"),
        "bytes": _bytes(run.wire),
        "seconds": float(run.timing["elapsed_s"].iloc[-1]),
        **_simulated(run.rounds),
    }


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
