"""PSLF (Wan et al., CIKM 2023): the server helps to learn random sub-classes of flipped labels.

Once per sample, a label is flipped by randomised response (with probability 1 / (e^eps + 1)), and
one of the K pseudo-classes that belong to the flipped label is drawn: k_pos = round(K times the
share of positives) of them are the positives', the others the negatives'. A pseudo-classifier at
the client learns these, and its gradient alone goes back to the server and to the head; the tail
learns the true labels from detached features. So all that is sent is eps-label-DP, unless the tail
is shared, which has learned from true labels.

As P3EFT's code has its baseline, and from there: both losses are summed; a linear pseudo-classifier
(there a copy of the model's pooler comes before it), here on the mean over positions or adapter
sets where features have some. Beyond that code k_pos is at least 1 and at most K - 1, and the share
of positives is that of all clients, who all have the same pseudo-classes.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.methods.base import LabelDefenceConfig, Method, Shape, Site, Step, Trait
from simsplit.methods.classes import classes_of
from simsplit.methods.clipping import Release, Response
from simsplit.methods.distance_correlation import real_positions
from simsplit.methods.draws import SampleDraws
from simsplit.methods.randomised_response import responded
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.seeds import isolated


class PslfConfig(LabelDefenceConfig):
    """Trains all but the tail on random sub-classes of flipped labels; for two classes."""

    kind: Literal["pslf"] = "pslf"
    epsilon: float = Field(default=1.0, ge=0)
    """Privacy of a label; 0: the server helps to learn random labels. P3EFT's runs use 0 to 0.9."""
    pseudo_classes: int = Field(default=9, ge=2)
    """K, of both classes together; P3EFT's runs use 2 to 18."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    reported: ClassVar[tuple[str, ...]] = ("labels_flipped", "pseudo_accuracy")
    requires: ClassVar[Needs] = (
        needs_leg(Leg.FEATURES_GRAD),
        Need(Given.SCORING),
        Need(Given.CLASSIFIES),
        Need(Given.TWO_CLASSES),
    )

    @property
    def release(self) -> Release | Response | str | None:
        """Of labels, as long as the tail stays at home."""
        return Response(self.epsilon, keeps_tail=True)

    def build(self, site: Site) -> Method:
        """The pseudo-classifier on the client; nothing on the server."""
        return Pslf(self, site) if site.side == "client" else Method()


class Pslf(Method):
    """Detaches the tail's input, and learns pseudo-labels in its place.

    Of a round, `labels_flipped` is the share of flipped labels, `pseudo_accuracy` the
    pseudo-classifier's on pseudo-labels.
    """

    def __init__(self, config: PslfConfig, site: Site) -> None:
        self.epsilon, self.num_pseudo = config.epsilon, config.pseudo_classes
        shares = site.labels.shares
        self.num_positive = positives_of(self.num_pseudo, shares[1] if len(shares) > 1 else 0.5)
        self.draws = SampleDraws("pslf", 3)
        with isolated(site.seed, "pslf"):
            self.classifier = nn.Linear(_width(site.features), self.num_pseudo)
        self.module = self.classifier
        self.flat = len(site.features) != 2

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Keep the samples' pseudo-labels; the batch stays as it is."""
        if step.training:
            true = classes_of(batch.labels)
            flipped, pseudo = self._drawn(true, self.draws.of(batch.indices, step))
            step.told["labels_flipped"] = (flipped != true).double().mean()
            step.memo[self] = [pseudo, real_positions(batch)]
        return batch

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Keep u for the pseudo-classifier; what the tail gets of it sends no gradient back."""
        if self not in step.memo:
            return u
        step.memo[self].append(u)
        return u.detach()

    def tail_loss(self, step: Step) -> Tensor | None:
        """Cross-entropy of the pseudo-classifier, which alone trains what lies before the cut."""
        if self not in step.memo:
            return None
        pseudo, real, features = step.memo.pop(self)
        flat = features.flatten(1) if self.flat else _pooled(features, real)
        outputs: Tensor = self.classifier(flat.to(self.classifier.weight.dtype))
        step.told["pseudo_accuracy"] = (outputs.argmax(1) == pseudo).double().mean()
        return nn.functional.cross_entropy(outputs, pseudo)

    def _drawn(self, true_N: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Flipped labels and pseudo-labels."""
        flipped = responded(true_N, drawn[:, :2], self.epsilon, 2)
        positive = flipped == 1
        num_negative = self.num_pseudo - self.num_positive
        of_label = torch.where(positive, self.num_positive, num_negative)
        within = (drawn[:, 2].to(of_label.device) * of_label).long()
        return flipped, within + positive * num_negative


def positives_of(num_pseudo: int, share: float) -> int:
    """How many pseudo-classes are the positives'."""
    return min(max(round(share * num_pseudo), 1), num_pseudo - 1)


def _width(features: Shape) -> int:
    """Inputs of the pseudo-classifier: features of two axes are averaged over the first."""
    return features[-1] if len(features) == 2 else int(torch.Size(features).numel())


def _pooled(features: Tensor, real: Tensor | None) -> Tensor:
    """The mean over positions that are no padding, or over adapter sets; one vector as it is."""
    if features.dim() == 2:
        return features
    if real is None or real.shape != features.shape[:2]:
        return features.mean(1)
    weights = real.to(features)
    averaged: Tensor = (features * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    return averaged
