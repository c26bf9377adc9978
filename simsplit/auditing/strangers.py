"""Parts of a network that an auditor does not have are stood in for by their shapes alone.

No attack that needs such a part is tried, so nothing is computed with one but shapes.
"""

import torch
from torch import Tensor, nn

from simsplit.models.split_model import GivenModel, SplitModel, hold_model


class Stranger(nn.Module):
    """A part whose layers and weights are not known: outputs are zeros of the recorded shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros, one row for each sample."""
        return torch.zeros(len(x), *self.shape, device=x.device)

    def extra_repr(self) -> str:
        return str(self.shape)


def build_strange_model(
    cut: tuple[int, ...],
    features: tuple[int, ...] | None,
    classes: int,
    head: nn.Module | None = None,
) -> GivenModel:
    """Build a model of which the shapes that cross are known, and perhaps the head's layers."""
    rest = Stranger(features or cut), Stranger((max(2, classes),))
    # Fresh: an attacker that knows layers alone must not start from the client's weights.
    return hold_model(SplitModel(Stranger(cut) if head is None else head, *rest, fresh=True))
