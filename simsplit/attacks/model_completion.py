"""Model completion with training, as in the library of PIDI's authors (VFLAIR-LLM).

The server completes its own trunk to a whole model: copies of the pretrained head and tail learn
the next tokens of public texts through the trunk as the clients have tuned it. The copy of the tail
then reads sessions as `mc` does. Where a defence leads clients' ends away from the pretrained ones,
the copies follow as far as the trunk shows the way.

Published: Adam on all weights of both copies; neither rate nor epochs are given. Training there
stops once the loss of an epoch has risen twice; here it takes all its epochs. Texts go through the
copies without the scenario's methods, whose learned parts the server does not have.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simsplit.attacks.attack import Done, descend
from simsplit.attacks.first_readings import Reading
from simsplit.attacks.knowledge import Knowledge, inference
from simsplit.attacks.openings import Opening, SessionAttackConfig, choose_public_texts
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.data.batches import Batch
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig


class McTrainedConfig(SessionAttackConfig):
    """Copies of head and tail, trained on public texts through the tuned trunk; the tail reads."""

    kind: Literal["mc_trained"] = "mc_trained"
    threat: ClassVar[Threat] = Threat(
        (Sees.RETURNED,), (Knows.HEAD, Knows.TAIL, Knows.PUBLIC), when=When.WRITING
    )
    samples: int = Field(default=50, ge=1)
    """Number of public texts from which the copies learn, the first ones."""
    epochs: int = Field(default=5, ge=1)
    """Passes over the public texts."""
    batch_size: int | None = Field(default=6, ge=1)
    """Number of public texts per training step; null: the size of a client's batch."""
    lr: float = Field(default=1e-4, gt=0)
    """Adam's learning rate for both copies."""
    effort: ClassVar[tuple[str, ...]] = ("epochs",)

    def build(self, known: Knowledge) -> Reading:
        return Reading(self, known, TrainedEnds(self, known))


class TrainedEnds(Opening):
    """The copies of head and tail; the tail's predictions are the first reading."""

    tail: nn.Module

    def __init__(self, config: McTrainedConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.head, self.tail = self._copy("head"), self._copy("tail")
        ends = {"head": self.head, "tail": self.tail}
        self.learners["ends"] = Learner(ends, AdamConfig(lr=config.lr))
        self.feed = choose_public_texts(known, config.samples, config.batch_size)
        self.steps = config.epochs * self.feed.steps_per_epoch
        self._done = 0

    @property
    def iteration(self) -> int:
        return self._done

    def learn(self, done: int) -> Iterator[Done]:
        for number in range(done, self.steps):
            with torch.enable_grad():
                loss = self.compute_loss(self.feed.batch(number))
            descend(self.learners["ends"], loss)
            self._done = number + 1
            yield self._done, self.steps

    def compute_loss(self, batch: Batch) -> Tensor:
        """Compute the cross entropy of a batch's next tokens, through the server's trunk."""
        vocabulary = self.known.vocabulary
        assert vocabulary is not None, "refused without texts when the scenario is read"
        with inference(self.known.trunk):
            sent = self.head(batch.inputs, *batch.context)
            features = self.known.trunk(sent, *batch.context)
        scores_BLV = self.tail(features, *batch.context)
        next_BL = batch.inputs[:, 1:]
        real = next_BL != vocabulary.pad
        return cross_entropy(scores_BLV[:, :-1][real].float(), next_BL[real])

    def _copy(self, owner: Literal["head", "tail"]) -> nn.Module:
        """Copy a pretrained segment, all of whose weights learn; dropout stays off."""
        copy = self.known.pretrained.own(owner)
        for weight in copy.parameters():
            weight.requires_grad_(weight.is_floating_point())
        return copy
