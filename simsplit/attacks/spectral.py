"""The spectral attack (Sun et al. 2022, as P3EFT measures it): two classes pull rows apart, so that
the first right singular vector of the centred rows points from one class to the other.

For two classes alone, as published: of more it says nothing, and has no row in the table.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class SpectralConfig(LabelAttackConfig):
    """Scores targets by their first principal component; two classes alone."""

    kind: Literal["spectral"] = "spectral"
    two_classes: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "Spectral":
        return Spectral(self, known)


class Spectral(LabelAttack):
    """Projects on the first right singular vector."""

    def read(self, view: SeenView) -> Clue | None:
        if self.known_labels.classes != 2:
            return None
        return Clue(view.name, view.adapter, "auc", components(view.rows, 1)[:, 0])


def components(rows_ND: Tensor, count: int) -> Tensor:
    """The first principal components of rows, N x count; none that rows have not are zeros."""
    centred = rows_ND.float() - rows_ND.float().mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    found = centred @ directions[:count].T
    return torch.nn.functional.pad(found, (0, count - found.shape[1]))
