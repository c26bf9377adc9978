"""Over which rounds a client is judged: its last one, several, or all; the same for every detector.

A detector that compares means compares the mean over the window; any other one's scores are
averaged over it. Two detectors are comparable at the same window and at the same threshold alone.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from simsplit.packets import ClientId
from simsplit.states import below

_WORDS = {"round": 1, "running": None}


def _counted(value: object) -> object:
    """Earlier scenarios have a word here."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


Rounds = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_counted)]
"""The field `window`: how many rounds; null: all so far."""


class Window:
    """Each client's mean over its latest rounds; `rounds` as the field `window` has it."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = None if rounds is None else max(1, rounds)
        self._held: dict[ClientId, tuple[Tensor, int]] = {}
        """Over all rounds: a client's sum, and of how many it is."""
        self._latest: dict[ClientId, Tensor] = {}
        """Over several rounds: a row for each."""

    def mean(self, values: Mapping[ClientId, Tensor]) -> dict[ClientId, Tensor]:
        """The means to judge this round, of the clients that took part."""
        if self.rounds == 1:
            return dict(values)
        add = self._added if self.rounds is None else self._shifted
        return {client: add(client, value) for client, value in values.items()}

    def _added(self, client: ClientId, value: Tensor) -> Tensor:
        total, count = self._held.get(client, (torch.zeros_like(value), 0))
        self._held[client] = total + value, count + 1
        return self._held[client][0] / (count + 1)

    def _shifted(self, client: ClientId, value: Tensor) -> Tensor:
        row = value[None]
        rows = torch.cat([self._latest[client], row]) if client in self._latest else row
        self._latest[client] = rows[-(self.rounds or 1) :]
        return self._latest[client].mean(0)

    def state(self) -> dict[str, Tensor]:
        """What it remembers between rounds, as tensors for a checkpoint."""
        held = {f"latest.{client}": rows for client, rows in self._latest.items()}
        for client, (total, count) in self._held.items():
            held |= {f"total.{client}": total, f"rounds.{client}": torch.tensor(count)}
        return held

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        totals = below(state, "total.")
        self._held = {int(c): (total, int(state[f"rounds.{c}"])) for c, total in totals.items()}
        self._latest = {int(client): rows for client, rows in below(state, "latest.").items()}


def window_said(rounds: int | None) -> str:
    """A window in a table's cell."""
    if rounds is None:
        return "all rounds"
    return "round" if rounds <= 1 else f"{rounds} rounds"
