"""A party completes its trained head to a classifier, and so infers labels that it was never given.

Passive (Fu et al., USENIX Security 2022, section 4.2): training has made the head useful, so a few
labels are enough to complete it (see `semi_supervised`). The published figure is the best of 25
epochs, chosen with the true labels; here it is the last one's.

Active (section 4.3): in training the party's own optimizer takes longer steps where its gradient
goes on in one direction, so that the trunk leans on this head, which then tells more. Each value of
the step v is scaled by 1 + scale * v / v', between 1 and 5, with v' the step before. In the
published code, run by the torch of its time, `zero_grad` empties the momentum too, so that v is 1.8
times the gradient; here momentum is kept, as the paper has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.attacks.attack import Done
from simsplit.attacks.few_labels import Naming
from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.attacks.semi_supervised import Completion, MixMatch
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.methods.method import NUMBERS, Modality
from simsplit.packets import Packet
from simsplit.parties.optimizers import OptimizerConfig, ScaledSgdConfig, SgdConfig
from simsplit.states import select_below

SHOWN = 64
"""Steps between two reports of progress."""


class PassiveCompletionConfig(LabelAttackConfig):
    """A party's own head, completed with a few labels: MixMatch on its own columns."""

    kind: Literal["passive_completion"] = "passive_completion"
    by: str = Field(default="party 0", pattern=r"^party \S.*$")
    """The party that is curious: its number or name."""
    threat: ClassVar[Threat] = Threat((Sees.OWN,), (Knows.CLASSES, Knows.LABELS))
    modalities: ClassVar[frozenset[Modality]] = NUMBERS
    effort: ClassVar[tuple[str, ...]] = ("steps",)
    views: tuple[ViewName, ...] = ("features",)
    """What its figures are filed under: it has its own features alone."""
    known: int = Field(default=4, ge=1)
    """Number of targets of each class whose labels it knows. The others are what it learns from
    without labels, and what it is judged on: raise targets.count."""
    steps: int = Field(default=25_600, ge=1)
    """Number of steps: 25 epochs of 1,024, as published."""
    batch_size: int = Field(default=16, ge=2)
    """Samples with labels in a step, and as many without."""
    lr: float = Field(default=2e-3, gt=0)
    """Adam's learning rate."""

    @property
    def known_of_each(self) -> int:
        return self.known

    def build(self, known: Knowledge) -> "HeadCompletion":
        return HeadCompletion(self, known)


class ActiveCompletionConfig(PassiveCompletionConfig):
    """The same, of a party whose optimizer makes the trunk lean on its head."""

    kind: Literal["active_completion"] = "active_completion"  # type: ignore[assignment]
    threat: ClassVar[Threat] = Threat(
        (Sees.OWN,),
        (Knows.CLASSES, Knows.LABELS),
        acts="scales the steps of its own head",
    )
    scale: float = Field(default=1.0, gt=0)
    """Weight of the ratio of two steps in the factor on the later one."""

    def change_optimizer(self, optimizer: OptimizerConfig) -> OptimizerConfig:
        if not isinstance(optimizer, SgdConfig):
            return optimizer
        return ScaledSgdConfig(**optimizer.model_dump(exclude={"kind"}), scale=self.scale)


class HeadCompletion(Naming):
    """An attack that trains a classifier behind a party's own head."""

    config: PassiveCompletionConfig

    def __init__(self, config: PassiveCompletionConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self._head: nn.Module | None = None
        self._inputs = torch.empty(0)

    def receive_head(self, weights: Mapping[str, Tensor]) -> None:
        known = self.known
        self._head = known.model.segment("head", known.image, known.classes, known.seed)
        self._head.to(known.device).load_state_dict(select_below(weights, "head/"))

    def receive_inputs(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets
        given, options = self.known_labels, self.config
        self.clues = []
        if len(given.labels.unique()) < 2:
            return
        assert self._head is not None, "its own head comes before any work"
        recipe = MixMatch(steps=options.steps, batch_size=options.batch_size, lr=options.lr)
        made = Completion(self._head, self._inputs, given.classes, recipe, self.known.seed)
        for done in made.learn(given.rows, given.labels):
            if done % SHOWN == 0:
                yield done, options.steps
        view = SeenView("features", 0, self._inputs.flatten(1))
        self._named = made.predict()
        self.clues = self.read(view)
        yield options.steps, options.steps

    def name(self, rows: Tensor) -> Tensor:
        del rows  # of its own columns, which the completed head reads
        return self._named
