"""This module implements within-class compaction (LightSplit, Eq. 9-11).

A loss term pulls smashed data towards its class's mean. It is the sum over the batch's classes of
the mean squared distance to the class mean. As printed, it is not divided by k or by the number of
classes, so its scale depends on both; `normalise` divides by them. The term stays at the client:
its gradient is added to the server's on the way back through the head, and never crosses the wire.
Listed after another method, it compacts that method's output; listed first, the activation.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from simsplit.methods.method import Method, MethodConfig, Site, Step, Trait


class WccConfig(MethodConfig):
    """Within-class compaction: a loss term on the within-class scatter of smashed data."""

    reads_labels_at_head = True
    kind: Literal["wcc"] = "wcc"
    weight: float = Field(default=0.01, ge=0)
    """Weight of the term, the paper's lambda. The paper found 0.01 to 0.1 to work well; 0: no term.
    """
    normalise: bool = False
    """Whether the term is divided by the number of values per sample and the number of classes in
    the batch, for a stable scale."""
    required_traits = frozenset({Trait.SAMPLES})

    def build(self, site: Site) -> Method:
        return Wcc(self)


class Wcc(Method):
    """The client's loss term; a step's memo holds its smashed data."""

    def __init__(self, config: WccConfig) -> None:
        self.weight, self.normalise = config.weight, config.normalise

    def encode(self, z: Tensor, step: Step) -> Tensor:
        if step.training and self.weight > 0:
            step.memo[self] = z
        return z

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the within-class scatter (Eq. 10) times its weight."""
        if self not in step.memo or step.labels is None:
            return None
        scatter = compute_within_class_scatter(step.memo.pop(self), step.labels, self.normalise)
        return self.weight * scatter


def compute_within_class_scatter(z: Tensor, labels: Tensor, normalise: bool = False) -> Tensor:
    """Return the within-class scatter (Eq. 10)."""
    z_BD = z.flatten(1)
    # A B x B matrix of equal classes averages within each class, without a loop over classes.
    share_BB = (labels[:, None] == labels[None, :]).to(z.dtype)
    share_BB = share_BB / share_BB.sum(1, keepdim=True)
    scatter_B = (z_BD - share_BB @ z_BD).square().sum(1)
    inverse_size_B = share_BB.diagonal()
    total = scatter_B @ inverse_size_B
    # The inverse class sizes add up to the number of classes present.
    return total / (z_BD.shape[1] * inverse_size_B.sum()) if normalise else total
