"""This module defines detectors, which score clients by what the server saw of them in a round.

A detector gets readings and nothing else. A score says how far a client is from the others; the
threshold decides which scores flag a client, and the response decides what then happens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from simsplit.config import Config, expand_kind
from simsplit.detectors.readings import LEGS, Readings, Signal
from simsplit.detectors.thresholds import (
    FixedConfig,
    Rounds,
    SequentialConfig,
    Side,
    ThreeSigmaConfig,
    Threshold,
    compute_mad_z,
    to_suspicion,
)
from simsplit.legs import ClientId, Leg
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.states import select_below

Response = Literal["none", "skip", "downweight", "rollback"]
Scores = dict[ClientId, float]


@dataclass(frozen=True)
class RoundView:
    """What a detector gets for a round: only what the server saw."""

    round: int
    readings: Readings
    num_classes: int
    turns: Sequence["TrunkTurn"] = ()
    """Each client's last turn, oldest first, if a turn is a client's whole round."""


@dataclass(frozen=True)
class TrunkTurn:
    """The trunk's weights before and after a client's whole round."""

    client: ClientId
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


@dataclass(frozen=True)
class Verdict:
    """A detector's result for one client in one round."""

    score: float
    z: float
    suspicion: float
    flagged: bool


class DetectorConfig(Config, ABC):
    """The base of the fields of detectors in a scenario."""

    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the detector's columns in tables; null: its kind, with its signal if it has one."""
    window: Rounds = 1
    """Number of latest rounds over which a client is averaged; 0 or 1: only the current round;
    null: all rounds so far."""
    threshold: Threshold = ThreeSigmaConfig()
    """Threshold that decides which scores flag a client."""
    response: Response = "none"
    """What happens to flagged clients: `none`; `skip`, they are left out of later rounds;
    `downweight`, their updates are weighted by a tenth; `rollback`, the round is undone and they
    are left out of later rounds."""
    side: ClassVar[Side] = "both"
    by_turns: ClassVar[bool] = False
    """Whether it judges the trunk after each client's turn."""

    _expand_kind = field_validator("threshold", mode="before")(expand_kind)

    @property
    def title(self) -> str:
        """Prefix of the detector's columns."""
        return self.name or "_".join((self.kind_name, *self.signals[:1]))

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals whose sums the detector uses."""
        return ()

    @property
    def sketched_signals(self) -> tuple[Signal, ...]:
        """The signals of which the detector uses single samples."""
        return ()

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        """Clients that the detector trusts to be honest."""
        return ()

    @property
    def least_clients(self) -> int:
        """Smallest number of clients of a round that can be judged.

        A threshold on the robust z needs three: the z of two clients is always the same.
        """
        return len(self.trusted) + (2 if isinstance(self.threshold, FixedConfig) else 3)

    @property
    def needs(self) -> Needs:
        """The scenario's parts that the detector needs; overrides add to `super().needs`."""
        return (*need_signals(self.signals, "signal"), Need(Given.ASKED, least=self.least_clients))

    @abstractmethod
    def build(self) -> "Detector":
        """Build the detector, which has seen no round yet."""


def need_signals(signals: Iterable[Signal], field: str) -> Needs:
    """Return what a detector needs to read signals, which its field `field` names."""
    legs: list[Leg] = [LEGS[signal] for signal in signals]
    readable = (Need(Given.READABLE, field, leg) for leg in legs)
    return (*(need_leg(leg, field) for leg in legs), *readable)


class SignalDetectorConfig(DetectorConfig, ABC):
    """A detector that compares clients by the mean of one signal."""

    signal: Signal = "payload"
    """Signal by which clients are compared: `payload`, smashed data as sent; `features`, the
    trunk's outputs for them; `features_grad`, the gradients that the client returns;
    `smashed_grad`, the gradients that the server returns."""

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signal that the scenario names."""
        return (self.signal,)


def measure_distances(rows: Tensor) -> Tensor:
    """Return the Euclidean distances of all pairs of rows."""
    # a matrix product would be faster, but loses small distances between large vectors
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(rows.double(), rows.double(), compute_mode=exact)


class Detector(ABC):
    """Base class of detectors; a subclass defines `score`, and has by `remember` what lasts."""

    averages: ClassVar[bool] = True
    """Whether scores are averaged over the window; if not, they are of several rounds already."""

    def __init__(self, config: DetectorConfig) -> None:
        self.config = config
        self._rounds = 0
        self._sums: dict[ClientId, float] = {}
        self._flagged: set[ClientId] = set()
        self._remembered: dict[str, dict[ClientId, Tensor]] = {}
        # For a window of all rounds: each client's sum of values, and the number of its rounds.
        self._window_totals = self.remember("window.total")
        self._window_counts = self.remember("window.rounds")
        # For a window of several rounds: a row for each of a client's latest ones.
        self._window_rows = self.remember("window.latest")
        self.floor = 0.0
        """Smallest standard deviation of honest clients' scores that is assumed."""

    def remember(self, name: str) -> dict[ClientId, Tensor]:
        """Return a dict of tensors by client; a checkpoint has them as `name.CLIENT`.

        Call this in `__init__`, since `load` restores only what has a name by then. No name may be
        the beginning of another one up to a dot.
        """
        return self._remembered.setdefault(name, {})

    def average(self, values: Mapping[ClientId, Tensor]) -> dict[ClientId, Tensor]:
        """Add a round's values; return the means over the window of the clients that took part.

        Call this once a round.
        """
        window, means = self.config.window, dict(values)
        for client, value in values.items():
            if window is None:
                total = self._window_totals.get(client, torch.zeros_like(value)) + value
                count = int(self._window_counts.get(client, 0)) + 1
                self._window_totals[client] = total
                self._window_counts[client] = torch.tensor(count)
                means[client] = total / count
            elif window > 1:
                known = self._window_rows.get(client, value[None][:0])
                self._window_rows[client] = torch.cat([known, value[None]])[-window:]
                means[client] = self._window_rows[client].mean(0)
        return means

    @abstractmethod
    def score(self, view: RoundView) -> Scores:
        """Return a score for each client that can be judged this round."""

    def pool_scores(self, view: RoundView) -> Scores:
        """Return scores over the window: each client's mean score over its rounds."""
        scores = self.score(view)
        if not self.averages:
            return scores
        values = {c: torch.tensor(v, dtype=torch.float64) for c, v in scores.items()}
        return {client: float(mean) for client, mean in self.average(values).items()}

    def judge(self, view: RoundView) -> dict[ClientId, Verdict]:
        """Score all clients, and flag the clients beyond the threshold."""
        scores = dict(sorted(self.pool_scores(view).items()))
        if not scores:
            return {}
        clients, values = list(scores), np.array(list(scores.values()))
        # trusted clients stay out of median and MAD, and of the number that sets the cut
        judged = [index for index, c in enumerate(clients) if c not in self.config.trusted]
        z = np.zeros_like(values)
        z[judged] = compute_mad_z(values[judged], self.floor)
        if isinstance(self.config.threshold, FixedConfig):
            suspicious = to_suspicion(values, self.config.side)
        else:
            suspicious = to_suspicion(self._combine_rounds(clients, z, judged), self.config.side)
        cut = self.config.threshold.cut(len(judged), self.config.side, self._rounds)
        flags = suspicious > cut
        if isinstance(self.config.threshold, SequentialConfig):
            self._flagged |= {client for client, flag in zip(clients, flags, strict=True) if flag}
            flags = np.array([client in self._flagged for client in clients])
        rows = zip(clients, values, z, suspicious, flags, strict=True)
        return {c: Verdict(float(v), float(d), float(s), bool(f)) for c, v, d, s, f in rows}

    def _combine_rounds(
        self, clients: Sequence[ClientId], z: np.ndarray, judged: Sequence[int]
    ) -> np.ndarray:
        """Return this round's z; under a sequential threshold, the z of sums over all rounds."""
        self._rounds += 1
        if not isinstance(self.config.threshold, SequentialConfig):
            return z
        for client, value in zip(clients, z, strict=True):
            self._sums[client] = self._sums.get(client, 0.0) + float(value)
        combined, sums = np.zeros_like(z), np.array([self._sums[client] for client in clients])
        combined[judged] = compute_mad_z(sums[judged], self.floor)
        return combined

    def state(self) -> dict[str, Tensor]:
        """Return what the detector remembers between rounds, as tensors for a checkpoint."""
        state = {
            "looks": torch.tensor(self._rounds),
            "flagged": torch.tensor(sorted(self._flagged), dtype=torch.int64),
        }
        if self._sums:
            state["sums.clients"] = torch.tensor(list(self._sums))
            state["sums.values"] = torch.tensor(list(self._sums.values()), dtype=torch.float64)
        for name, kept in self._remembered.items():
            state |= {f"{name}.{client}": tensor for client, tensor in kept.items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        self._rounds = int(state["looks"])
        self._flagged = set(state["flagged"].tolist())
        self._sums = {}
        if "sums.clients" in state:
            pairs = zip(state["sums.clients"].tolist(), state["sums.values"].tolist(), strict=True)
            self._sums = dict(pairs)
        for name, kept in self._remembered.items():
            kept.clear()
            kept |= {int(c): tensor for c, tensor in select_below(state, f"{name}.").items()}


class SignalDetector(Detector, ABC):
    """Base class of detectors that compare clients by the mean of one signal, over the window."""

    config: SignalDetectorConfig
    averages = False  # the signal is averaged over the window already

    def score(self, view: RoundView) -> Scores:
        """Score the clients' means; return no scores for fewer than two clients."""
        means = self.average(view.readings.compute_means(self.config.signal))
        if len(means) < 2:
            return {}
        values = self.compare(list(means), torch.stack(list(means.values())).double())
        return dict(zip(means, values.tolist(), strict=True))

    @abstractmethod
    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        """Return a score for each row of means."""
