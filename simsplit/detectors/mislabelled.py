"""This module finds samples that look like another class of other clients; it is in no paper.

A backdoor relabels samples. Until the heads have learned the trigger, a relabelled sample looks
like the class that it was taken from, and other clients show what that class looks like: it is a
stray (`strays`). There may be many attackers, as long as they do not have most samples of the
classes that they relabel.

    score   the largest over classes of: a lower bound of the share of strays, minus the usual share

Scores have an absolute meaning: scores of honest clients are about zero or below, also if classes
overlap. A head learns the trigger within a few rounds, which hides the strays. So a client is
judged by the first rounds in which it takes part, and a client that poisons later is missed. Where
clients send labels, `rounds: latest` finds it by the change:

    late    a client's mean share of strays of a class in its latest rounds
    early   its mean share in all rounds before; 0 if there are none
    score   the largest over rounds and classes of: a lower bound of the late share, minus the
            larger of the early share and the usual share

A client that is found stays found, and nobody is compared with its samples any more: what it
relabels would make the centre of its target's class look like another class.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor

from simsplit.detectors.detector import RoundView, Scores
from simsplit.detectors.strays import Compared, StraysConfig, StraysDetector
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold
from simsplit.legs import ClientId, Leg
from simsplit.needs import Needs, need_leg
from simsplit.states import select_below


class MislabelledConfig(StraysConfig):
    """Share of a client's samples of a class that look like another class of other clients."""

    kind: Literal["mislabelled"] = "mislabelled"
    rounds: Literal["first", "latest"] = "first"
    """Rounds by which a client is judged: `first`, its first ones, and whoever poisons later is
    missed; `latest`, its latest ones beside all before, in each round anew, and its largest score
    counts. `latest` needs labels, which clients send under `topology: vanilla`."""
    window: Rounds = 1
    """Number of a client's first rounds over which its score is averaged (null: all rounds), or of
    its latest rounds that are held against the earlier ones."""
    threshold: Threshold = FixedConfig(above=0.1)
    """Threshold that decides which scores flag a client; scores have an absolute meaning."""
    side = "high"

    @model_validator(mode="after")
    def _check_latest(self) -> Self:
        if self.rounds == "latest" and not self.window:
            raise ValueError("window: must be a number of rounds, such as 1, with rounds: latest")
        if self.rounds == "latest" and not isinstance(self.threshold, FixedConfig):
            raise ValueError("threshold: must be fixed with rounds: latest")
        return self

    @property
    def title(self) -> str:
        """The detector's name, or its kind, and `latest` if the latest rounds are judged."""
        return self.name or ("mislabelled_latest" if self.rounds == "latest" else "mislabelled")

    @property
    def needs(self) -> Needs:
        """Also labels for `latest`: inferred classes are numbered anew in each round."""
        labels = (need_leg(Leg.LABELS, "rounds"),) if self.rounds == "latest" else ()
        return (*super().needs, *labels)

    def build(self) -> "ByFirstRounds | ByLatestRounds":
        return ByLatestRounds(self) if self.rounds == "latest" else ByFirstRounds(self)


class ByFirstRounds(StraysDetector):
    """A detector that scores clients by their strays in the first rounds that they take part in."""

    config: MislabelledConfig

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        self._first_rounds: dict[ClientId, tuple[float, int]] = {}
        """The sum of each client's scores in its first rounds, and the number of these rounds."""

    def score(self, view: RoundView) -> Scores:
        """Return the mean scores over their first rounds of the clients that could be compared."""
        # a round costs time: skip it if no client is within its first rounds
        if any(self._is_open(client) for client in view.readings.samples):
            for client, each in self.compare_clients(view).items():
                self._remember(client, each.score(each.strays, torch.zeros_like(each.strays)))
        seen = sorted(view.readings.samples)
        known = {
            client: self._first_rounds[client] for client in seen if client in self._first_rounds
        }
        return {client: total / rounds for client, (total, rounds) in known.items()}

    def pool_scores(self, view: RoundView) -> Scores:
        """Return the scores unchanged: they are averaged over the first rounds already."""
        return self.score(view)

    def _is_open(self, client: ClientId) -> bool:
        window = self.config.window
        rounds = self._first_rounds.get(client, (0.0, 0))[1]
        return window is None or rounds < max(1, window)

    def _remember(self, client: ClientId, score: float) -> None:
        if self._is_open(client):
            total, rounds = self._first_rounds.get(client, (0.0, 0))
            self._first_rounds[client] = total + score, rounds + 1

    def state(self) -> dict[str, Tensor]:
        """Return also the sums of the first rounds' scores."""
        totals = {
            f"found.{client}": torch.tensor([total, rounds], dtype=torch.float64)
            for client, (total, rounds) in self._first_rounds.items()
        }
        return {**super().state(), **totals}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._first_rounds = {
            int(client): (float(pair[0]), int(pair[1]))
            for client, pair in select_below(state, "found.").items()
        }


class ByLatestRounds(StraysDetector):
    """A detector that scores clients by how much their strays increased in their latest rounds."""

    config: MislabelledConfig

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        self._largest: dict[ClientId, float] = {}
        """Each client's largest score of any round."""
        self._pasts: dict[ClientId, _Past] = {}

    def score(self, view: RoundView) -> Scores:
        """Return the largest scores so far of the clients that could be compared."""
        compared: dict[ClientId, Compared] = {}
        left_out: set[ClientId] | None = None
        # whom this round shows is left out, and the others are scored again
        while (found := self._list_found()) != left_out:
            left_out = found
            compared = self.compare_clients(view, left_out)
            for client, each in compared.items():
                past = self._pasts.setdefault(client, _Past.start(len(each.counts)))
                late = past.average_with(each.strays / each.counts)
                score = each.score(late * each.counts, past.early)
                self._largest[client] = max(score, self._largest.get(client, -math.inf))
        for client, each in compared.items():
            past, shares = self._pasts[client], each.strays / each.counts
            self._pasts[client] = past.add(shares, self.config.window or 1)
        seen = sorted(view.readings.samples)
        return {client: self._largest[client] for client in seen if client in self._largest}

    def pool_scores(self, view: RoundView) -> Scores:
        """Return the scores unchanged: they are the largest of all rounds already."""
        return self.score(view)

    def _list_found(self) -> set[ClientId]:
        cut = self.config.threshold.cut(0, self.config.side, 0)
        return {client for client, score in self._largest.items() if score > cut}

    def state(self) -> dict[str, Tensor]:
        """Return also the largest scores, and the shares of strays in former rounds."""
        state = super().state()
        for client, score in self._largest.items():
            state[f"largest.{client}"] = torch.tensor(score, dtype=torch.float64)
        for client, past in self._pasts.items():
            state |= {f"{name}.{client}": value for name, value in past._asdict().items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        largest = select_below(state, "largest.")
        self._largest = {int(client): float(score) for client, score in largest.items()}
        self._pasts = {
            int(client): _Past(*(state[f"{name}.{client}"] for name in _Past._fields))
            for client in select_below(state, "recent.")
        }


class _Past(NamedTuple):
    """One client's shares of strays in former rounds, by class; NaN where it had none to judge."""

    recent: Tensor
    """A row for each of the rounds that are still in the window."""
    totals: Tensor
    """Sums over the rounds before."""
    rounds: Tensor
    """Number of rounds in each sum."""

    @classmethod
    def start(cls, classes: int) -> Self:
        nothing = torch.zeros(classes, dtype=torch.float64)
        return cls(nothing.new_empty(0, classes), nothing, nothing)

    @property
    def early(self) -> Tensor:
        """The mean shares before the window; 0 where there are none."""
        return self.totals / self.rounds.clamp_min(1)

    def average_with(self, shares: Tensor) -> Tensor:
        """Return the mean shares over the window, of which this round's are the last."""
        return torch.cat([self.recent, shares[None]]).nanmean(0)

    def add(self, shares: Tensor, window: int) -> Self:
        """Return the past one round later."""
        rows = torch.cat([self.recent, shares[None]])
        leave = max(0, len(rows) - (window - 1))
        gone = rows[:leave]
        totals = self.totals + gone.nansum(0)
        return type(self)(rows[leave:], totals, self.rounds + gone.isfinite().sum(0))
