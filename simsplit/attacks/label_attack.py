"""What attacks on labels share: they look at each view of the targets, and score or cluster them.

They learn from nothing, and know of the labels only how many classes the targets have (and, where
they say so, the labels of a part of the targets). What a score or a cluster stands for they cannot
know either; the judge gives them the best of all ways to name them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.base import Attack, AttackConfig, Done
from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.attacks.views import VIEWS, views_of
from simsplit.methods.base import ANYTHING, Modality
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg, Packet

Figure = Literal["auc", "accuracy"]


@dataclass(frozen=True)
class KnownLabels:
    """What an attack on labels is told of them."""

    classes: int
    """How many classes the targets have."""
    rows: Tensor
    """The targets whose labels it is told."""
    labels: Tensor


@dataclass(frozen=True)
class Clue:
    """What one view tells of the targets' labels."""

    view: ViewName
    adapter: int
    figure: Figure
    """What it is scored by. auc: `values` are scores; accuracy: clusters, or classes."""
    values: Tensor
    rows: Tensor | None = None
    """The targets that it is about; None: all."""
    named: bool = False
    """Whether `values` are classes by their numbers."""
    steps: tuple[int, ...] = ()
    """The client's steps of training whose samples, in order, it is about in place of targets."""


class LabelAttackConfig(AttackConfig):
    """Base of the attacks on labels."""

    views: tuple[ViewName, ...] = Field(default=VIEWS, min_length=1)
    """What it looks at: features, their shift by adapters, gradients of features, these at unit
    length (direction), gradients of adapters. What a topology has not is left out."""
    recovers: ClassVar[str] = "labels"
    reads_smashed: ClassVar[bool] = False
    mixes_targets: ClassVar[bool] = True
    public: ClassVar[bool] = False
    gradients: ClassVar[bool] = True
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()
    two_classes: ClassVar[bool] = False
    """Whether it tells two classes apart, and says nothing of more."""

    @property
    def needs(self) -> Needs:
        """Features and gradients of single samples, which have classes."""
        of_samples = [
            need
            for leg in (Leg.FEATURES, Leg.FEATURES_GRAD)
            for need in (
                needs_leg(leg),
                Need(Given.SAMPLES, leg=leg),
                Need(Given.READABLE, leg=leg),
            )
        ]
        return (*super().needs, *of_samples, Need(Given.LABELLED))

    @property
    def told(self) -> float:
        """The share of the targets whose labels it is told."""
        return 0.0

    @abstractmethod
    def build(self, known: Knowledge) -> "LabelAttack":
        """The attack, told what the server knows."""


class LabelAttack(Attack):
    """Reads each view in turn."""

    def __init__(self, config: LabelAttackConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.options = config
        self.told = KnownLabels(0, torch.empty(0, dtype=torch.int64), torch.empty(0))
        self.views: list[SeenView] = []
        self.clues: list[Clue] = []

    def tell(self, told: KnownLabels) -> None:
        """Be told of the targets' labels what it may know."""
        self.told = told

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Read view after view."""
        self.views = views_of(self.known, targets, self.options.views)
        self.clues = []
        for number, view in enumerate(self.views, 1):
            clue = self.read(view)
            self.clues += [] if clue is None else [clue]
            yield number, len(self.views)

    @abstractmethod
    def read(self, view: SeenView) -> Clue | None:
        """What a view tells; None where it can tell nothing."""

    @property
    def recovered(self) -> Tensor:
        """Nothing: what it tells of labels are its clues, not inputs."""
        return torch.empty(0)
