"""Kinds of things that attacks recover, as run directories have them.

A kind is known by its name (`AttackConfig.recovers`) in three registries: here by what is written
down of it, in `attacking.judges` by what scores it, in `report.presentations` by how it is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simsplit.results import input_results, label_results, session_results

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recovered:
    """What is written down of one kind."""

    table: str
    """The name of its table."""
    place: tuple[str, ...]
    """The columns that tell its rows apart; `attack` and `round` are among them."""
    floors: tuple[str, ...] = ()
    """What stands in its column `attack` and takes no attack."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of columns that pandas would not guess."""
    summarise: "Callable[[pd.DataFrame], dict[str, Any]]" = lambda table: {}
    """Make entries of `summary.json` from its table, which may be empty."""


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
