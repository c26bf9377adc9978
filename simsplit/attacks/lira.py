"""The likelihood-ratio attack (Carlini et al., "Membership inference attacks from first
principles", 2022), offline.

The attacker trains shadow models as the run trains, on auxiliary data that hold no candidate. How
sure they are of a candidate's label, as log p / (1 - p), is nearly normal; a member stands out, as
the run's model is surer of it than models are that never saw it. The score is the normal's
distribution function at what the run's model says. With few shadows all candidates share one
variance, as the authors advise.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.member_attack import MemberAttack, MemberAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat

FEW = 32
"""Below this number of shadows, all candidates share one variance."""


class LiraConfig(MemberAttackConfig):
    """How much surer the trained model is of a candidate than shadow models are."""

    kind: Literal["lira"] = "lira"
    threat: ClassVar[Threat] = Threat((Sees.TRAINED,), (Knows.CANDIDATES, Knows.PUBLIC))
    shadows: Path | None = None
    """Folder of a sweep over seeds of this scenario with `data.shadow: SEED`, the run's seed: each
    of its finished cells is a shadow run. null: there are none, and a candidate's sureness is its
    score."""

    @property
    def shadow_folder(self) -> Path | None:
        return self.shadows

    def build(self, known: Knowledge) -> "Lira":
        return Lira(self, known)


class Lira(MemberAttack):
    """An attack that compares the trained model with shadow models."""

    config: LiraConfig

    def score_all(self) -> Iterator[tuple[str, Tensor]]:
        shadows = [each.sureness for each in self.reading.shadows]
        for view, losses in self.list_losses():
            yield view, compare(losses.sureness, shadows) if shadows else losses.sureness

    @property
    def note(self) -> str:
        if self.config.shadows is not None:
            return ""
        return "it had no shadow runs (shadows), so that it is a threshold of sureness alone"


def compare(sure_N: Tensor, shadows: list[Tensor]) -> Tensor:
    """Return how far above the shadows' mean each candidate lies, in standard deviations.

    It orders candidates as the normal's distribution function does, which is 1 for many in fp32.
    """
    others_SN = torch.stack(shadows)
    spread_N = others_SN.var(0, correction=min(1, len(shadows) - 1))
    if len(shadows) < FEW:
        spread_N = spread_N.mean().expand_as(spread_N)
    return (sure_N - others_SN.mean(0)) / spread_N.sqrt().clamp_min(1e-6)
