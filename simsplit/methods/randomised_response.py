"""This module implements randomised response on labels (Warner, 1965), the simplest label privacy.

With K classes, a label is kept with probability e^eps / (e^eps + K - 1), and otherwise replaced by
one of the others, all equally likely. Each label is drawn once, before anything is computed from
it, so everything that a client sends depends on the drawn label only: this is eps-label-DP, for any
number of rounds. Losses and accuracies in training refer to the drawn labels; evaluation uses the
true labels.
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes, replace_classes
from simsplit.methods.clipping import Release, Response
from simsplit.methods.draws import SampleDraws
from simsplit.methods.method import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.needs import Given, Need, Needs


class RandomisedResponseConfig(LabelDefenceConfig):
    """Random replacement of labels, once per sample."""

    kind: Literal["randomised_response"] = "randomised_response"
    epsilon: float = Field(default=1.0, ge=0)
    """Privacy parameter of a label: a drawn label is at most e^epsilon times as likely for one true
    label as for another. 0: labels are random."""
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    columns: ClassVar[tuple[str, ...]] = ("labels_changed",)
    changed_share_column: ClassVar[str | None] = "labels_changed"
    requires: ClassVar[Needs] = (Need(Given.SCORING), Need(Given.CLASSIFIES))

    @property
    def release(self) -> Release | Response | str | None:
        """Randomised response, which does not depend on how often labels are used."""
        return Response(self.epsilon)

    def build(self, site: Site) -> Method:
        if site.side == "server":
            return Method()
        return RandomisedResponse(self.epsilon, site.labels.classes)


class RandomisedResponse(Method):
    """Replacement of a batch's labels; `labels_changed` is a round's share of changed labels."""

    def __init__(self, epsilon: float, classes: int) -> None:
        self.epsilon, self.classes = epsilon, classes
        self.draws = SampleDraws("randomised_response", 2)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch with the labels that were drawn for its samples."""
        if not step.training:
            return batch
        draws = self.draws.get(batch.indices, step)
        true = get_classes(batch.labels)
        drawn = randomise(true, draws, self.epsilon, self.classes)
        step.figures["labels_changed"] = (drawn != true).double().mean()
        return replace(batch, labels=replace_classes(batch.labels, drawn))


def compute_keep_probability(epsilon: float, classes: int) -> float:
    """Return the probability that a label is kept."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def randomise(true_N: Tensor, draws_N2: Tensor, epsilon: float, classes: int) -> Tensor:
    """Apply K-ary randomised response to classes; negative ones (no class) stay unchanged."""
    whether, which = draws_N2.to(true_N.device).unbind(1)
    offset = 1 + (which * (classes - 1)).long()
    keep = compute_keep_probability(epsilon, classes)
    changed = (whether >= keep) & (true_N >= 0) & (classes > 1)
    return torch.where(changed, (true_N + offset) % max(classes, 1), true_N)
