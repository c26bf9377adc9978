"""This module compares clients with a consensus: LightSplit's detector, FLTrust's idea, and Krum.

`cosine_mad` (LightSplit, Sections V-A2 and A-E) is the cosine between a client's mean payload, or
the trunk's mean output for it, and the consensus of all clients, as a robust z. The paper leaves
two things open, which are options here: the consensus (mean or median), and the rounds over which
means are taken. `root_cosine` compares with trusted clients instead, such as a client of the server
with a small clean data set; FLTrust (Cao et al., 2021) has such a root data set. `krum` (Blanchard
et al., 2017) compares each client with its nearest others.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from simsplit.detectors.detector import SignalDetector, SignalDetectorConfig, measure_distances
from simsplit.legs import ClientId


class CosineMadConfig(SignalDetectorConfig):
    """Cosine of each client's mean to the consensus of all clients (LightSplit)."""

    kind: Literal["cosine_mad"] = "cosine_mad"
    consensus: Literal["mean", "median", "leave_one_out"] = "mean"
    """The consensus: the `mean` or `median` of all clients' means; `leave_one_out`, for each client
    the mean of the others' means."""

    @property
    def title(self) -> str:
        return self.name or f"cosine_{self.signal}"

    def build(self) -> "CosineMad":
        return CosineMad(self)


class CosineMad(SignalDetector):
    """A detector that scores clients by the cosine of their mean to the consensus."""

    config: CosineMadConfig

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        consensus = means.mean(0)[None]
        if self.config.consensus == "median":
            # torch's median of an even number is the lower of the two in the middle.
            consensus = means.quantile(0.5, dim=0)[None]
        elif self.config.consensus == "leave_one_out":
            consensus = (means.sum(0) - means) / (len(means) - 1)
        return cosine_similarity(means, consensus, dim=1)


class RootCosineConfig(SignalDetectorConfig):
    """Cosine of each client's mean to the mean of trusted clients (FLTrust's idea)."""

    kind: Literal["root_cosine"] = "root_cosine"
    root: tuple[ClientId, ...] = Field(default=(0,), min_length=1)
    """Numbers of the trusted clients; malicious clients are drawn among the others."""
    side = "low"

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        return self.root

    def build(self) -> "RootCosine":
        return RootCosine(self)


class RootCosine(SignalDetector):
    """A detector that scores clients by the cosine of their mean to the trusted clients' mean."""

    config: RootCosineConfig

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        """Return cosines to the trusted clients' mean; 0 for all if no trusted client took part."""
        rows = [index for index, client in enumerate(clients) if client in self.config.root]
        if not rows:
            return torch.zeros(len(means))
        return cosine_similarity(means, means[rows].mean(0)[None], dim=1)


class KrumDetectorConfig(SignalDetectorConfig):
    """Sum of squared distances to the nearest other clients (Krum, Blanchard et al., 2017)."""

    kind: Literal["krum"] = "krum"
    malicious: float = Field(default=0.2, ge=0, lt=0.5)
    """Assumed share of malicious clients among n: distances are summed to the n (1 - share) - 2
    nearest others."""
    side = "high"

    # Each client has a nearest other besides a possibly malicious one.
    least_clients: ClassVar[int] = 3

    def build(self) -> "KrumDetector":
        return KrumDetector(self)


class KrumDetector(SignalDetector):
    """A detector that scores clients by Krum's sum of squared distances."""

    config: KrumDetectorConfig

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        nearest = max(1, len(clients) - round(self.config.malicious * len(clients)) - 2)
        return measure_distances(means).square().sort(1).values[:, 1 : 1 + nearest].sum(1)
