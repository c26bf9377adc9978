"""Within-class compaction (LightSplit, Eq. 9-11): pull what is sent towards its class's mean.

The sum over the batch's classes of the mean squared distance to the class mean, as printed: no
division by k or by the number of classes, so its scale moves with both; `normalise` divides by
them. The term is the client's alone: its gradient joins the server's on the way back through the
head and never crosses the wire. Listed after another method it compacts what that method sends;
before, the activation itself.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from simsplit.methods.base import Method, MethodConfig, Site, Step, Trait


class WccConfig(MethodConfig):
    """Within-class compaction: a loss term on the within-class scatter of smashed data."""

    kind: Literal["wcc"] = "wcc"
    weight: float = Field(default=0.01, ge=0)
    """The paper's lambda, which worked well from 0.01 to 0.1; 0 switches the term off."""
    normalise: bool = False
    """Whether to divide by values per sample and classes in the batch, for a stable scale."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})

    def build(self, site: Site) -> Method:
        """The loss term on the client; nothing on the server."""
        return Wcc(self)


class Wcc(Method):
    """Keeps the smashed data of a step for the loss."""

    def __init__(self, config: WccConfig) -> None:
        self.weight = config.weight
        self.normalise = config.normalise

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged; keep it for the loss."""
        if step.training and self.weight > 0:
            step.memo[self] = z
        return z

    def loss(self, step: Step) -> Tensor | None:
        """The within-class scatter (Eq. 10), times its weight."""
        if self not in step.memo or step.labels is None:
            return None
        return self.weight * within_class_scatter(step.memo.pop(self), step.labels, self.normalise)


def within_class_scatter(z: Tensor, labels: Tensor, normalise: bool = False) -> Tensor:
    """Eq. 10 without a loop over classes: a B x B same-class matrix averages within each."""
    z_BD = z.flatten(1)
    share_BB = (labels[:, None] == labels[None, :]).to(z.dtype)
    share_BB = share_BB / share_BB.sum(1, keepdim=True)
    scatter_B = (z_BD - share_BB @ z_BD).square().sum(1)
    inverse_size_B = share_BB.diagonal()
    total = scatter_B @ inverse_size_B
    # the inverse class sizes add up to the number of classes present
    return total / (z_BD.shape[1] * inverse_size_B.sum()) if normalise else total
