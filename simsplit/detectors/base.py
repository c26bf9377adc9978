"""A detector: scores clients by what the server saw of them in a round.

It is given readings and nothing else. A score says how far a client is from the others; from which
distance on it is flagged is the threshold's to say, and what then happens the response's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from simsplit.config import Config
from simsplit.detectors.readings import LEGS, Readings, Signal
from simsplit.detectors.thresholds import (
    FixedConfig,
    SequentialConfig,
    Side,
    ThreeSigmaConfig,
    Threshold,
    mad_z,
    suspicion,
)
from simsplit.detectors.windows import Rounds, Window
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg
from simsplit.states import below

Response = Literal["none", "skip", "downweight", "rollback"]
Scores = dict[ClientId, float]


@dataclass(frozen=True)
class View:
    """What a detector is given for a round: only what the server saw."""

    round: int
    readings: Readings
    num_classes: int
    turns: Sequence["Turn"] = ()
    """Each client's last turn, oldest first, if a turn is a client's whole round."""


@dataclass(frozen=True)
class Turn:
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
    """Base of a detector's fields in a scenario."""

    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """Name of its columns in tables; null: its kind, and its signal if it has one."""
    window: Rounds = 1
    """How many of the latest rounds are judged by their mean; 0 or 1: the round alone; null: all
    rounds so far."""
    threshold: Threshold = ThreeSigmaConfig()
    """Which scores flag a client."""
    response: Response = "none"
    """What happens to flagged clients. skip: they are left out of further rounds. downweight: their
    updates count a tenth. rollback: the round is undone, and they are left out."""
    side: ClassVar[Side] = "both"
    by_turns: ClassVar[bool] = False

    @field_validator("threshold", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    """Whether it judges the trunk after each client's turn."""

    @property
    def title(self) -> str:
        """The prefix of its columns."""
        return self.name or "_".join((self.word, *self.signals[:1]))

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals whose sums it uses."""
        return ()

    @property
    def sketched(self) -> tuple[Signal, ...]:
        """The signals of which it uses single samples."""
        return ()

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        """Clients that it takes for honest."""
        return ()

    @property
    def least_clients(self) -> int:
        """How many clients a round must have for scores to mean something: the robust z of two
        clients is always the same.
        """
        return len(self.trusted) + (2 if isinstance(self.threshold, FixedConfig) else 3)

    @property
    def needs(self) -> Needs:
        """What it needs from the rest of the scenario; override it and add to `super().needs`."""
        return (*reading(self.signals, "signal"), Need(Given.ASKED, least=self.least_clients))

    @abstractmethod
    def build(self) -> "Detector":
        """The detector, before it has seen anything."""


def reading(signals: Iterable[Signal], field: str) -> Needs:
    """What a detector needs to read signals; `field` is the one that names them."""
    legs: list[Leg] = [LEGS[signal] for signal in signals]
    readable = (Need(Given.READABLE, field, leg) for leg in legs)
    return (*(needs_leg(leg, field) for leg in legs), *readable)


class SignalDetectorConfig(DetectorConfig, ABC):
    """A detector that compares clients by the mean of one signal."""

    signal: Signal = "payload"
    """payload: smashed data as sent; features: the trunk's outputs for them; features_grad: the
    gradients that the client returns; smashed_grad: the gradients that it is sent."""

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signal that the scenario names."""
        return (self.signal,)


def distances(rows: Tensor) -> Tensor:
    """Euclidean distances between all pairs of rows, exact rather than by a matrix product."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(rows.double(), rows.double(), compute_mode=exact)


class Detector(ABC):
    """Base class of detectors; a subclass gives `scores`, and state if it has any."""

    def __init__(self, config: DetectorConfig) -> None:
        self.config = config
        self.window = Window(config.window)
        self._looks = 0
        self._sums: dict[ClientId, float] = {}
        self._flagged: set[ClientId] = set()
        self.floor = 0.0
        """The least standard deviation of honest clients' scores."""

    @abstractmethod
    def scores(self, view: View) -> Scores:
        """A score for each client that it can judge this round."""

    def pooled(self, view: View) -> Scores:
        """Scores over the window: the mean of its rounds' scores."""
        values = {c: torch.tensor(v, dtype=torch.float64) for c, v in self.scores(view).items()}
        return {client: float(mean) for client, mean in self.window.mean(values).items()}

    def judge(self, view: View) -> dict[ClientId, Verdict]:
        """Score all clients, and flag those beyond the threshold."""
        scores = dict(sorted(self.pooled(view).items()))
        if not scores:
            return {}
        clients, values = list(scores), np.array(list(scores.values()))
        judged = [index for index, c in enumerate(clients) if c not in self.config.trusted]
        z = np.zeros_like(values)
        z[judged] = mad_z(values[judged], self.floor)
        if isinstance(self.config.threshold, FixedConfig):
            suspicious = suspicion(values, self.config.side)
        else:
            suspicious = suspicion(self._over_looks(clients, z), self.config.side)
        cut = self.config.threshold.cut(len(judged), self.config.side, self._looks)
        flags = suspicious > cut
        if isinstance(self.config.threshold, SequentialConfig):
            self._flagged |= {client for client, flag in zip(clients, flags, strict=True) if flag}
            flags = np.array([client in self._flagged for client in clients])
        rows = zip(clients, values, z, suspicious, flags, strict=True)
        return {c: Verdict(float(v), float(d), float(s), bool(f)) for c, v, d, s, f in rows}

    def _over_looks(self, clients: Sequence[ClientId], z: np.ndarray) -> np.ndarray:
        """This round's z, or over all rounds where the threshold looks at all of them."""
        self._looks += 1
        if not isinstance(self.config.threshold, SequentialConfig):
            return z
        for client, value in zip(clients, z, strict=True):
            self._sums[client] = self._sums.get(client, 0.0) + float(value)
        return mad_z(np.array([self._sums[client] for client in clients]), self.floor)

    def state(self) -> dict[str, Tensor]:
        """What it remembers between rounds, as tensors for a checkpoint."""
        held = {
            "looks": torch.tensor(self._looks),
            "flagged": torch.tensor(sorted(self._flagged), dtype=torch.int64),
        }
        if self._sums:
            held["sums.clients"] = torch.tensor(list(self._sums))
            held["sums.values"] = torch.tensor(list(self._sums.values()), dtype=torch.float64)
        return held | {f"window.{name}": tensor for name, tensor in self.window.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._looks = int(state["looks"])
        self._flagged = set(state["flagged"].tolist())
        self._sums = {}
        if "sums.clients" in state:
            pairs = zip(state["sums.clients"].tolist(), state["sums.values"].tolist(), strict=True)
            self._sums = dict(pairs)
        self.window.load(below(state, "window."))


class SignalDetector(Detector, ABC):
    """A detector that compares clients by the mean of one signal, over the window."""

    def __init__(self, config: SignalDetectorConfig) -> None:
        super().__init__(config)
        self.signal = config.signal

    def scores(self, view: View) -> Scores:
        """Scores of the clients' means; none with fewer than two clients."""
        means = self.window.mean(view.readings.means(self.signal))
        if len(means) < 2:
            return {}
        values = self.compare(list(means), torch.stack(list(means.values())).double())
        return dict(zip(means, values.tolist(), strict=True))

    def pooled(self, view: View) -> Scores:
        """The scores as they are: it is the signal that is averaged."""
        return self.scores(view)

    @abstractmethod
    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        """A score for each row of means."""
