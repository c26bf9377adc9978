"""What a finished run came to, computed from its tables alone."""

from typing import Any

import pandas as pd

from simsplit.results import Run
from simsplit.scenario import Scenario


def summarise(run: Run, scenario: Scenario, planned: int) -> dict[str, Any]:
    """The figures of the last round, the best on validation and the best on test; bytes by leg.

    The best on test is what papers that select on the test set report; it is labelled as such and
    never called the run's result.
    """
    rounds = run.rounds
    done = int(rounds["round"].max())
    last = rounds.iloc[-1]
    return {
        "name": scenario.name,
        "status": "finished",
        "rounds_done": done,
        "rounds": planned,
        "seed": scenario.seed,
        "last": _figures(last, scenario),
        "best_on_validation": _best(rounds, scenario, "validation"),
        "best_on_test": _best(rounds, scenario, "test"),
        "bytes": _bytes(run.wire),
        "seconds": float(run.timing["elapsed_s"].iloc[-1]),
    }


def _figures(row: "pd.Series[Any]", scenario: Scenario) -> dict[str, float | int]:
    return {"round": int(row["round"])} | {name: float(row[name]) for name in scenario.figures}


def _best(rounds: pd.DataFrame, scenario: Scenario, split: str) -> dict[str, float | int] | None:
    """The figures at the round whose first metric on `split` is best."""
    if split not in scenario.splits:
        return None
    metric = scenario.evaluate.metrics[0]
    values = rounds[f"{split}_{metric}"].dropna()
    best = values.argmin() if metric == "loss" else values.argmax()
    return _figures(rounds.loc[values.index].iloc[int(best)], scenario)


def _bytes(wire: pd.DataFrame) -> dict[str, int]:
    """Bytes by leg, training only; an evaluation's are beside them."""
    training = wire[wire["phase"] != "evaluate"]
    by_leg = {str(leg): int(total) for leg, total in training.groupby("leg")["bytes"].sum().items()}
    evaluation = int(wire.loc[wire["phase"] == "evaluate", "bytes"].sum())
    return {**by_leg, "total": sum(by_leg.values()), "evaluation": evaluation}
