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

from simsplit.attacks.attack import Attack, AttackConfig, Done
from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.attacks.views import VIEWS, views_of
from simsplit.methods.method import ANYTHING, Modality
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import Leg, Packet

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

    views: tuple[ViewName, ...] = Field(default=VIEWS, min_length=1)
    """The views that it uses: features, their shift by adapters, differences of two adapter sets'
    features and sums with searched weights (of a server that has several sets), gradients of
    features, these at unit length (direction), gradients recovered from several messages, gradients
    of adapters. Views that a topology does not have are left out."""
    recovers: ClassVar[str] = "labels"
    reads_smashed: ClassVar[bool] = False
    mixes_targets: ClassVar[bool] = True
    public: ClassVar[bool] = False
    gradients: ClassVar[bool] = True
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()
    two_classes: ClassVar[bool] = False
    """Whether it separates two classes only, and gives no result for more."""

    @property
    def needs(self) -> Needs:
        """Features and gradients of single samples, which have classes, beside the base's needs."""
        of_samples = [
            need
            for leg in (Leg.FEATURES, Leg.FEATURES_GRAD)
            for need in (
                need_leg(leg),
                Need(Given.SAMPLES, leg=leg),
                Need(Given.READABLE, leg=leg),
            )
        ]
        return (*super().needs, *of_samples, Need(Given.LABELLED))

    @property
    def known_share(self) -> float:
        """Share of the targets whose labels the attack knows."""
        return 0.0

    @abstractmethod
    def build(self, known: Knowledge) -> "LabelAttack":
        """Build the attack from what the server knows."""


class LabelAttack(Attack):
    """An attack on labels, which evaluates one view after another."""

    def __init__(self, config: LabelAttackConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.options = config
        self.known_labels = KnownLabels(0, torch.empty(0, dtype=torch.int64), torch.empty(0))
        self.views: list[SeenView] = []
        self.clues: list[Clue] = []

    def tell(self, labels: KnownLabels) -> None:
        """Receive the facts about the targets' labels that it may know."""
        self.known_labels = labels

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Read one view after another."""
        self.views = views_of(self.known, targets, self.options.views)
        self.clues = []
        for number, view in enumerate(self.views, 1):
            clue = self.read(view)
            self.clues += [] if clue is None else [clue]
            yield number, len(self.views)

    @abstractmethod
    def read(self, view: SeenView) -> Clue | None:
        """Infer labels from a view; return None if the view does not allow it."""

    @property
    def recovered(self) -> Tensor:
        """An empty tensor: the results are `clues`, and no inputs are recovered."""
        return torch.empty(0)
