"""This module implements PSLF (Wan et al., CIKM 2023): training on sub-classes of flipped labels.

Each sample's label is flipped once by randomised response (with probability 1 / (e^eps + 1)). Then
one of the K pseudo-classes that belong to the flipped label is drawn: k_pos = round(K times the
share of positives) of them belong to positives, the others to negatives. A pseudo-classifier at the
client learns the pseudo-classes, and only its gradient goes to the server and the head; the tail
learns the true labels from detached features. So everything that is sent is eps-label-DP, except a
shared tail, since it has learned from true labels.

This follows the baseline in P3EFT's code, in which both losses are summed. There, a copy of the
model's pooler precedes the linear pseudo-classifier; here, its inputs are averaged over positions
or adapter sets, if features have such an axis. Our additions: k_pos is between 1 and K - 1, and the
share of positives is that of all clients, so all clients have the same pseudo-classes.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes
from simsplit.methods.clipping import Release, Response
from simsplit.methods.distance_correlation import get_real_mask
from simsplit.methods.method import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.methods.randomised_response import SampleDraws, randomise
from simsplit.needs import Given, Need
from simsplit.seeds import isolate


class PslfConfig(LabelDefenceConfig):
    """Random sub-classes of flipped labels, which train all but the tail; for two classes."""

    kind: Literal["pslf"] = "pslf"
    epsilon: float = Field(default=1.0, ge=0)
    """Privacy parameter of a label; smaller values hide more. 0: labels are flipped with
    probability one half. P3EFT's runs use 0 to 0.9."""
    pseudo_classes: int = Field(default=9, ge=2)
    """The number K of pseudo-classes of both classes together. P3EFT's runs use 2 to 18."""
    accounted = True
    required_traits = frozenset({Trait.SAMPLES})
    keeps_task = True
    columns = ("labels_flipped", "pseudo_accuracy")
    changed_share_column = "labels_flipped"
    requires = (*LabelDefenceConfig.by_labels, Need(Given.TWO_CLASSES))

    @property
    def release(self) -> Release | Response | str | None:
        """Randomised response, provided that the tail stays at the client."""
        return Response(self.epsilon, keeps_tail=True)

    def build(self, site: Site) -> Method:
        return Pslf(self, site) if site.side == "client" else Method()


class Pslf(Method):
    """The client's half, which detaches the tail's input and learns pseudo-labels instead.

    In the table of clients, `labels_flipped` is a round's share of flipped labels, and
    `pseudo_accuracy` the pseudo-classifier's accuracy on pseudo-labels.
    """

    def __init__(self, config: PslfConfig, site: Site) -> None:
        self.epsilon, self.num_pseudo = config.epsilon, config.pseudo_classes
        shares = site.labels.shares
        share = shares[1] if len(shares) > 1 else 0.5
        self.num_positive = count_positive(self.num_pseudo, share)
        self.draws = SampleDraws("pslf", 3)
        # The first of two axes is averaged over.
        self.flat = len(site.features) != 2
        width = int(torch.Size(site.features).numel()) if self.flat else site.features[-1]
        with isolate(site.seed, "pslf"):
            self.module = self.classifier = nn.Linear(width, self.num_pseudo)

    def transform(self, batch: Batch, step: Step) -> Batch:
        if step.training:
            true = get_classes(batch.labels)
            draws_N3 = self.draws.get(batch.indices, step)
            flipped = randomise(true, draws_N3[:, :2], self.epsilon, 2)
            step.figures["labels_flipped"] = (flipped != true).double().mean()
            # Negatives have the first pseudo-classes.
            positive, num_negative = flipped == 1, self.num_pseudo - self.num_positive
            of_label = torch.where(positive, self.num_positive, num_negative)
            within = (draws_N3[:, 2].to(of_label.device) * of_label).long()
            step.memo[self] = [within + positive * num_negative, get_real_mask(batch)]
        return batch

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Store u for the pseudo-classifier; return it detached for the tail."""
        if self not in step.memo:
            return u
        step.memo[self].append(u)
        return u.detach()

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the pseudo-classifier's cross entropy, which alone trains trunk and head."""
        if self not in step.memo:
            return None
        pseudo, real, features = step.memo.pop(self)
        flat = features.flatten(1) if self.flat else _pool(features, real)
        outputs: Tensor = self.classifier(flat.to(self.classifier.weight.dtype))
        step.figures["pseudo_accuracy"] = (outputs.argmax(1) == pseudo).double().mean()
        return nn.functional.cross_entropy(outputs, pseudo)


def count_positive(num_pseudo: int, share: float) -> int:
    """Return the number of pseudo-classes that belong to positives."""
    return min(max(round(share * num_pseudo), 1), num_pseudo - 1)


def _pool(features: Tensor, real: Tensor | None) -> Tensor:
    """Return the mean over real positions or adapter sets; return single vectors unchanged."""
    if features.dim() == 2:
        return features
    if real is None or real.shape != features.shape[:2]:
        return features.mean(1)
    weights = real.to(features)
    averaged: Tensor = (features * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    return averaged
