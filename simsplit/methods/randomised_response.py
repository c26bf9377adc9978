"""This module implements randomised response on labels (Warner, 1965), the simplest label privacy.

With K classes, a label is kept with probability e^eps / (e^eps + K - 1), and otherwise replaced by
one of the others, all equally likely. Each label is drawn once, before anything is computed from
it, so everything that a client sends depends on the drawn label only: this is eps-label-DP, for any
number of rounds. Losses and accuracies in training refer to the drawn labels; evaluation uses the
true labels.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes, replace_classes
from simsplit.methods.clipping import Release, Response
from simsplit.methods.method import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.needs import Given, Need
from simsplit.seeds import rng_for

BLOCK = 1024
"""The number of rows that are drawn at once."""


class RandomisedResponseConfig(LabelDefenceConfig):
    """Random replacement of labels, once per sample."""

    kind: Literal["randomised_response"] = "randomised_response"
    epsilon: float = Field(default=1.0, ge=0)
    """Privacy parameter of a label: a drawn label is at most e^epsilon times as likely for one true
    label as for another. 0: labels are random."""
    accounted = True
    required_traits = frozenset({Trait.SAMPLES})
    columns = ("labels_changed",)
    changed_share_column = "labels_changed"
    requires = (Need(Given.SCORING), Need(Given.CLASSIFIES))

    @property
    def release(self) -> Release | Response | str | None:
        """Randomised response, which does not depend on how often labels are used."""
        return Response(self.epsilon)

    def build(self, site: Site) -> Method:
        return RandomisedResponse(self, site) if site.side == "client" else Method()


class RandomisedResponse(Method):
    """Replacement of a batch's labels; `labels_changed` is a round's share of changed labels."""

    def __init__(self, config: RandomisedResponseConfig, site: Site) -> None:
        self.epsilon, self.classes = config.epsilon, site.labels.classes
        self.draws = SampleDraws("randomised_response", 2)

    def transform(self, batch: Batch, step: Step) -> Batch:
        if not step.training:
            return batch
        draws = self.draws.get(batch.indices, step)
        true = get_classes(batch.labels)
        drawn = randomise(true, draws, self.epsilon, self.classes)
        step.figures["labels_changed"] = (drawn != true).double().mean()
        return replace(batch, labels=replace_classes(batch.labels, drawn))


def randomise(true_N: Tensor, draws_N2: Tensor, epsilon: float, classes: int) -> Tensor:
    """Apply K-ary randomised response to classes; negative ones (no class) stay unchanged."""
    whether, which = draws_N2.to(true_N.device).unbind(1)
    offset = 1 + (which * (classes - 1)).long()
    keep = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    changed = (whether >= keep) & (true_N >= 0) & (classes > 1)
    return torch.where(changed, (true_N + offset) % max(classes, 1), true_N)


class SampleDraws:
    """`count` uniform numbers in [0, 1) for each sample of each client.

    A label that is replaced anew in every epoch would be revealed by the mean of its replacements.
    So a sample's draws depend only on the seed, the client and the sample's row; they are the same
    on every host and after a resume. They are drawn in blocks and cached, and a checkpoint need not
    hold them.
    """

    def __init__(self, purpose: str, count: int) -> None:
        self.purpose, self.count = purpose, count
        self._blocks: dict[tuple[int, int, int], Tensor] = {}

    def get(self, rows: Tensor, step: Step) -> Tensor:
        """Return the draws of a batch's rows (N x count), on the CPU in double precision."""
        rows = rows.cpu()
        numbers = rows.div(BLOCK, rounding_mode="floor")
        draws = torch.empty(len(rows), self.count, dtype=torch.float64)
        for number in numbers.unique().tolist():
            key = (step.seed, step.client, number)
            if key not in self._blocks:
                rng = rng_for(step.seed, self.purpose, step.client, number)
                drawn = torch.rand(BLOCK, self.count, generator=rng, dtype=torch.float64)
                self._blocks[key] = drawn
            here = numbers == number
            draws[here] = self._blocks[key][rows[here] - number * BLOCK]
        return draws
