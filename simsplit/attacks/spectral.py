"""The spectral attack (Sun et al. 2022, as in P3EFT), and the norm attack (Li et al. 2022).

Two classes pull rows apart, so the first right singular vector of the centred rows points from one
class to the other. The norm attack uses that rows of one class are longer than rows of the other.
As published, both work for two classes only; with more they have no row in the table.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat


class SpectralConfig(LabelAttackConfig):
    """A score of each target: its first principal component in a view; for two classes only."""

    kind: Literal["spectral"] = "spectral"
    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CLASSES,), limits="two classes")
    components: int = Field(default=1, ge=1)
    """Number of first components, each a score of its own; the best one counts, against the best of
    as many at chance. Published: 1. A defence can leave labels plain in a later component."""
    two_classes: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "Spectral":
        return Spectral(self, known)


class Spectral(LabelAttack):
    """An attack that projects rows on their first right singular vector, or on several."""

    config: SpectralConfig

    def read(self, view: SeenView) -> list[Clue]:
        if self.known_labels.classes != 2:
            return []
        scores = principal_components(view.rows, self.config.components)
        if self.config.components == 1:
            return [Clue(view.name, view.adapter, "auc", scores[:, 0])]
        return [Clue(view.name, view.adapter, "best_auc", scores)]


def principal_components(rows_ND: Tensor, count: int) -> Tensor:
    """Compute the first principal components of rows, N x count; missing ones are zeros."""
    centred = rows_ND.float() - rows_ND.float().mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    components = centred @ directions[:count].T
    return torch.nn.functional.pad(components, (0, count - components.shape[1]))


class NormConfig(LabelAttackConfig):
    """A score of each target: the norm of its row in a view; for two classes only."""

    kind: Literal["norm"] = "norm"
    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CLASSES,), limits="two classes")
    two_classes: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "NormAttack":
        return NormAttack(self, known)


class NormAttack(LabelAttack):
    """An attack that scores each sample by the norm of its row."""

    def read(self, view: SeenView) -> list[Clue]:
        if self.known_labels.classes != 2 or view.name == "direction":  # its rows have length 1
            return []
        return [Clue(view.name, view.adapter, "auc", view.rows.norm(dim=1))]
