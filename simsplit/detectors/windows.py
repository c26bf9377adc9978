"""This module averages over the rounds by which a client is judged: the last, several, or all.

A detector that compares means compares means over the window; the scores of other detectors are
averaged over it. Detectors can be compared only at equal windows and thresholds.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from simsplit.packets import ClientId
from simsplit.states import select_below

_WORDS = {"round": 1, "running": None}
"""Values that earlier versions had instead of a number."""


def _replace_word(value: object) -> object:
    """Replace a word of earlier scenarios by its number of rounds."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


Rounds = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_replace_word)]
"""The field `window`: a number of rounds; null: all rounds so far."""


class Window:
    """Each client's mean over its latest rounds; `rounds` is the field `window`."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = None if rounds is None else max(1, rounds)
        self._totals: dict[ClientId, tuple[Tensor, int]] = {}
        """The sum and number of a client's rounds, for a window of all rounds."""
        self._latest: dict[ClientId, Tensor] = {}
        """A row for each of a client's latest rounds, for a window of several rounds."""

    def mean(self, values: Mapping[ClientId, Tensor]) -> dict[ClientId, Tensor]:
        """Add this round's values, and return the means of the clients that took part."""
        if self.rounds == 1:
            return dict(values)
        add = self._add_to_total if self.rounds is None else self._add_to_latest
        return {client: add(client, value) for client, value in values.items()}

    def _add_to_total(self, client: ClientId, value: Tensor) -> Tensor:
        total, count = self._totals.get(client, (torch.zeros_like(value), 0))
        self._totals[client] = total + value, count + 1
        return self._totals[client][0] / (count + 1)

    def _add_to_latest(self, client: ClientId, value: Tensor) -> Tensor:
        row = value[None]
        rows = torch.cat([self._latest[client], row]) if client in self._latest else row
        self._latest[client] = rows[-(self.rounds or 1) :]
        return self._latest[client].mean(0)

    def state(self) -> dict[str, Tensor]:
        """Return what the window remembers between rounds, as tensors for a checkpoint."""
        state = {f"latest.{client}": rows for client, rows in self._latest.items()}
        for client, (total, count) in self._totals.items():
            state |= {f"total.{client}": total, f"rounds.{client}": torch.tensor(count)}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        totals = select_below(state, "total.")
        self._totals = {int(c): (total, int(state[f"rounds.{c}"])) for c, total in totals.items()}
        self._latest = {
            int(client): rows for client, rows in select_below(state, "latest.").items()
        }


def format_window(rounds: int | None) -> str:
    """Format a window for a table's cell."""
    if rounds is None:
        return "all rounds"
    return "round" if rounds <= 1 else f"{rounds} rounds"
