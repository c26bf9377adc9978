"""This registry describes how a run directory stores each kind of things that attacks recover.

A kind has a name (`AttackConfig.recovers`) in three registries: this one for how it is stored,
`attacking.judges` for how it is scored, and `report.presentations` for how it is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simsplit.results import input_results, label_results, session_results

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recovered:
    """The way in which one kind of recovered things is stored."""

    table: str
    """The name of its table."""
    place: tuple[str, ...]
    """The columns that identify a row; `attack` and `round` are among them."""
    floors: tuple[str, ...] = ()
    """Values of its column `attack` that stand for guesses which need no attack."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of columns that pandas would not guess."""
    summarise: "Callable[[pd.DataFrame], dict[str, Any]]" = lambda table: {}
    """A function that makes entries of `summary.json` from the kind's table, which may be empty."""


RECOVERS: dict[str, Recovered] = {
    "inputs": Recovered(
        table="recovered",
        place=("round", "attack", *input_results.TARGETS),
        floors=(*input_results.FLOORS, input_results.ORIGINALS),
    ),
    "labels": Recovered(
        table="labels",
        place=("round", "attack", "view", "adapter", "figure", "samples", "known"),
        floors=label_results.FLOORS,
        types={"adapter": "Int64"},  # whole, and none of floors
        summarise=label_results.summarise_labels,
    ),
    "sessions": Recovered(
        table="sessions",
        place=("round", "attack", "session", "side"),
        floors=(*session_results.FLOORS, session_results.WRITTEN),
        summarise=session_results.summarise_sessions,
    ),
}
