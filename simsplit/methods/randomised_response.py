"""Randomised response (Warner, 1965) on labels: the plainest label differential privacy.

With K classes a label is kept with probability e^eps / (e^eps + K - 1), and else becomes one of the
others, each as likely. Drawn once per sample, before anything is computed of the label, so all that
a client ever sends is made of the drawn label: eps-label-DP, whatever the rounds. Losses and
accuracies of training are of the drawn labels; evaluation has the true ones.
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.methods.base import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.methods.classes import classes_of, replace_classes
from simsplit.methods.clipping import Release, Response
from simsplit.methods.draws import SampleDraws
from simsplit.needs import Given, Need, Needs


class RandomisedResponseConfig(LabelDefenceConfig):
    """Replaces labels at random, once per sample."""

    kind: Literal["randomised_response"] = "randomised_response"
    epsilon: float = Field(default=1.0, ge=0)
    """Privacy of a label: whatever is drawn is at most e^epsilon times as likely under one label as
    under another. 0: labels are random."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    reported: ClassVar[tuple[str, ...]] = ("labels_changed",)
    changes: ClassVar[str | None] = "labels_changed"
    requires: ClassVar[Needs] = (Need(Given.SCORING), Need(Given.CLASSIFIES))

    @property
    def release(self) -> Release | Response | str | None:
        """Of labels, as often as they are used."""
        return Response(self.epsilon)

    def build(self, site: Site) -> Method:
        """The draws on the client; nothing on the server."""
        if site.side == "server":
            return Method()
        return RandomisedResponse(self.epsilon, site.labels.classes)


class RandomisedResponse(Method):
    """Changes the labels of a batch; `labels_changed` is the share of them in a round."""

    def __init__(self, epsilon: float, classes: int) -> None:
        self.epsilon, self.classes = epsilon, classes
        self.draws = SampleDraws("randomised_response", 2)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """The batch with the labels that were drawn for its samples."""
        if not step.training:
            return batch
        drawn = self.draws.of(batch.indices, step)
        true = classes_of(batch.labels)
        said = responded(true, drawn, self.epsilon, self.classes)
        step.told["labels_changed"] = (said != true).double().mean()
        return replace(batch, labels=replace_classes(batch.labels, said))


def keeping(epsilon: float, classes: int) -> float:
    """The probability that a label is kept."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def responded(true_N: Tensor, drawn_N2: Tensor, epsilon: float, classes: int) -> Tensor:
    """Classes after K-ary randomised response; whoever has none (a negative one) stays so."""
    chance, which = drawn_N2.to(true_N.device).unbind(1)
    offset = 1 + (which * (classes - 1)).long()
    changed = (chance >= keeping(epsilon, classes)) & (true_N >= 0) & (classes > 1)
    return torch.where(changed, (true_N + offset) % max(classes, 1), true_N)
