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

from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from simsplit.detectors.detector import RoundView, Scores
from simsplit.detectors.strays import Compared, StraysConfig, StraysDetector
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold
from simsplit.legs import ClientId, Leg
from simsplit.needs import Needs, need_leg


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
    averages = False  # scores are averaged over the first rounds already

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        # The sum of each client's scores in its first rounds, and the number of these rounds.
        self._found = self.remember("found")

    def score(self, view: RoundView) -> Scores:
        """Return the mean scores over their first rounds of the clients that could be compared."""
        seen = sorted(view.readings.samples)
        # a round costs time: skip it if no client is within its first rounds
        if any(map(self._is_open, seen)):
            for client, each in self.compare_clients(view).items():
                if self._is_open(client):
                    score = each.score(each.strays, torch.zeros_like(each.strays))
                    added = torch.tensor([score, 1], dtype=torch.float64)
                    self._found[client] = self._found.get(client, 0) + added
        known = {client: self._found[client] for client in seen if client in self._found}
        return {client: float(total / rounds) for client, (total, rounds) in known.items()}

    def _is_open(self, client: ClientId) -> bool:
        window, found = self.config.window, self._found.get(client)
        return window is None or found is None or bool(found[1] < max(1, window))


class ByLatestRounds(StraysDetector):
    """A detector that scores clients by how much their strays increased in their latest rounds."""

    config: MislabelledConfig
    averages = False  # scores are the largest of all rounds already

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        # Each client's largest score of any round.
        self._largest = self.remember("largest")
        # By class, NaN where there was none to judge: a row of shares of strays for each round that
        # is still in the window; the sums over the rounds before, and how many are in each.
        self._recent = self.remember("recent")
        self._before = self.remember("totals")
        self._summed = self.remember("rounds")

    def score(self, view: RoundView) -> Scores:
        """Return the largest scores so far of the clients that could be compared."""
        compared: dict[ClientId, Compared] = {}
        left_out: set[ClientId] | None = None
        cut = self.config.threshold.cut(0, self.config.side, 0)
        # whom this round shows is left out, and the others are scored again
        while (found := {c for c, score in self._largest.items() if score > cut}) != left_out:
            left_out = found
            compared = self.compare_clients(view, left_out)
            for client, each in compared.items():
                late = self._list_shares(client, each).nanmean(0)
                early = torch.zeros_like(late)
                if client in self._before:
                    early = self._before[client] / self._summed[client].clamp_min(1)
                score = torch.tensor(each.score(late * each.counts, early), dtype=torch.float64)
                self._largest[client] = max(score, self._largest.get(client, score))
        for client, each in compared.items():
            shares = self._list_shares(client, each)
            leave = max(0, len(shares) - (self.config.window or 1) + 1)
            gone, self._recent[client] = shares[:leave], shares[leave:]
            self._before[client] = self._before.get(client, 0) + gone.nansum(0)
            self._summed[client] = self._summed.get(client, 0) + gone.isfinite().sum(0).double()
        seen = sorted(view.readings.samples)
        return {client: float(self._largest[client]) for client in seen if client in self._largest}

    def _list_shares(self, client: ClientId, compared: Compared) -> Tensor:
        """Return a client's shares of strays over the window; this round's are the last row."""
        shares = compared.strays / compared.counts
        recent = self._recent.get(client, shares.new_empty(0, len(shares)))
        return torch.cat([recent, shares[None]])
