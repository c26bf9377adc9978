"""The base class of attacks on labels, which score or cluster the targets by each view of them.

These attacks have no training data. They know how many classes the targets have and, if
`known_share` is above 0, the labels of a part of the targets. They cannot know which class a score
or a cluster stands for; the judge assigns classes in the way that is best for the attack.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import AttackConfig, Done, KeepingAttack
from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.attacks.views import VIEWS, views_of
from simsplit.methods.method import ANYTHING, Modality
from simsplit.packets import Packet
from simsplit.results.recovered_kinds import VIEW_GROUPS

Figure = Literal["auc", "best_auc", "accuracy"]


@dataclass(frozen=True)
class KnownLabels:
    """The facts about the targets' labels that an attack may know."""

    classes: int
    """Number of classes among the targets."""
    rows: Tensor
    """Row numbers of the targets whose labels are known."""
    labels: Tensor
    """The labels of these rows."""


@dataclass(frozen=True)
class Clue:
    """A result about the targets' labels, computed from one view."""

    view: ViewName
    adapter: int
    figure: Figure
    """The figure by which it is judged. auc: `values` are scores. best_auc: they are several scores
    in columns, the best of which counts. accuracy: they are clusters or classes."""
    values: Tensor
    rows: Tensor | None = None
    """Row numbers of the targets that `values` describe; None: all."""
    named: bool = False
    """Whether `values` are class numbers rather than clusters."""
    steps: tuple[int, ...] = ()
    """The client's training steps whose samples `values` describe, in order; (): the targets."""


class LabelAttackConfig(AttackConfig):
    """Base class of the fields of attacks on labels."""

    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CLASSES,))
    views: tuple[ViewName, ...] = Field(default=VIEWS, min_length=1)
    """The views that it uses: features, their shift by adapters, differences of two adapter sets'
    features and sums with searched weights (of a server that has several sets), gradients of
    features, these at unit length (direction), gradients recovered from several messages, gradients
    of adapters. Views that a topology does not have are left out."""
    recovers: ClassVar[str] = "labels"
    mixes_targets: ClassVar[bool] = True
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()
    two_classes: ClassVar[bool] = False
    """Whether it separates two classes only, and gives no result for more."""

    @property
    def view_groups(self) -> tuple[str, ...]:
        """Features and gradients, as its views are of either."""
        either = ("features", "gradients")
        return tuple(group for group in either if {*VIEW_GROUPS[group]} & {*self.views})

    @property
    def known_share(self) -> float:
        """Share of the targets whose labels the attack knows."""
        return 0.0

    @property
    def known_of_each(self) -> int:
        """Number of targets of each class whose labels it knows, instead of a share; 0: a share."""
        return 0


class LabelAttack(KeepingAttack):
    """An attack on labels, which evaluates one view after another."""

    config: LabelAttackConfig
    reads_first: ClassVar[bool] = False
    """Whether it reads the first of its views that the server has alone, of each adapter."""

    def __init__(self, config: LabelAttackConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.known_labels = KnownLabels(0, torch.empty(0, dtype=torch.int64), torch.empty(0))
        """The facts about the targets' labels that it may know; the judge tells them."""
        self.views: list[SeenView] = []
        self.clues: list[Clue] = []

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        self.views = views_of(self.known, targets, self.config.views)
        if self.reads_first:
            names = [view.name for view in self.views]
            first = next((name for name in self.config.views if name in names), None)
            self.views = [view for view in self.views if view.name == first]
        self.clues = []
        for number, view in enumerate(self.views, 1):
            self.clues += self.read(view)
            yield number, len(self.views)

    @abstractmethod
    def read(self, view: SeenView) -> Sequence[Clue]:
        """Infer labels from a view: a clue for each figure, or none if the view allows none."""
