"""Kinds of things that attacks recover, as run directories have them.

A kind is known by its name (`AttackConfig.recovers`) in three registries: here by what is written
down of it, in `attacking.judges` by what scores it, in `report.presentations` by how it is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simsplit.results.inputs import TARGETS
from simsplit.results.labels import summarise_labels
from simsplit.results.sessions import summarise_sessions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recovered:
    """What is written down of one kind."""

    table: str
    """The name of its table."""
    place: tuple[str, ...]
    """The columns that tell its rows apart; `attack` and `round` are among them."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of columns that pandas would not guess."""
    summarise: "Callable[[pd.DataFrame], dict[str, Any]]" = lambda table: {}
    """Make entries of `summary.json` from its table, which may be empty."""


RECOVERS: dict[str, Recovered] = {
    "inputs": Recovered("recovered", ("round", "attack", *TARGETS)),
    "labels": Recovered(
        "labels",
        ("round", "attack", "view", "adapter", "figure", "samples", "known"),
        {"adapter": "Int64"},  # whole, and none of floors
        summarise_labels,
    ),
    "sessions": Recovered(
        "sessions", ("round", "attack", "session", "side"), summarise=summarise_sessions
    ),
}
