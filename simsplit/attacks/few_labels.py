"""Attacks on labels that know a few of them: direction scoring, and model completion.

Direction scoring (Li et al. 2022, for gradients of two classes; DirectionbasedScoring in VFLAIR):
gradients of samples of one class point the same way, and those of other classes elsewhere. So each
target gets the class whose known samples it resembles most, by the mean cosine. Rows are centred
first, so that features, which all have much in common, can be compared too.

Model completion (Fu et al. 2022; PassiveModelCompletion in VFLAIR): the server completes its half
of the model with a tail of its own, which it trains on the few labelled samples, and then on its
sure predictions of the others. Published tails are small networks trained by MixMatch; this one is
a logistic regression, with self-training until nothing more is sure. Few labels allow little more,
and the tails of clients over an API are as small.

Both are judged on the targets whose labels they do not know, and do not count in the worst leak of
attacks that know none.
"""

import warnings
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat

ITERATIONS = 300
"""Largest number of iterations of a logistic regression."""


class FewLabelsConfig(LabelAttackConfig):
    """Base class of the fields of attacks that know a few labels."""

    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CLASSES, Knows.LABELS))
    known: float = Field(default=0.05, gt=0, lt=1)
    """Share of each class's targets whose labels it knows; at least one of each class."""

    @property
    def known_share(self) -> float:
        return self.known


class Naming(LabelAttack):
    """Base class of attacks that learn from a few labels, and name the classes of the others."""

    def read(self, view: SeenView) -> list[Clue]:
        """Name the targets whose labels are unknown, if labels of two classes are known."""
        given = self.known_labels
        if len(given.labels.unique()) < 2:
            return []
        left = torch.ones(len(view.rows), dtype=torch.bool)
        left[given.rows] = False
        rows, named = left.nonzero()[:, 0], self.name(view.rows)
        return [Clue(view.name, view.adapter, "accuracy", named[rows], rows, named=True)]

    @abstractmethod
    def name(self, rows: Tensor) -> Tensor:
        """Return a class for each row of a view, learned from those with known labels."""


class DirectionScoringConfig(FewLabelsConfig):
    """The class of the known samples that point most nearly the same way as a target."""

    kind: Literal["direction_scoring"] = "direction_scoring"

    def build(self, known: Knowledge) -> "DirectionScoring":
        return DirectionScoring(self, known)


class DirectionScoring(Naming):
    """An attack that compares directions of rows with those of known samples."""

    def name(self, rows: Tensor) -> Tensor:
        given, unit = self.known_labels, normalize(rows.float() - rows.float().mean(0))
        means = torch.stack(
            [unit[given.rows[given.labels == label]].mean(0) for label in given.labels.unique()]
        )
        nearest: Tensor = given.labels.unique()[(unit @ means.T).argmax(1)]
        return nearest


class ModelCompletionConfig(FewLabelsConfig):
    """A tail of the server's own, trained on a few labelled targets and its own sure predictions.

    The paper's is a network of several layers.
    """

    kind: Literal["model_completion"] = "model_completion"
    sure: float = Field(default=0.9, gt=0.5, lt=1)
    """The probability from which on it learns from its own predictions."""

    def build(self, known: Knowledge) -> "ModelCompletion":
        return ModelCompletion(self, known)


class ModelCompletion(Naming):
    """An attack that trains a tail on rows of a view."""

    config: ModelCompletionConfig

    def name(self, rows: Tensor) -> Tensor:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.semi_supervised import SelfTrainingClassifier

        given, rows = self.known_labels, rows.double()
        # By one factor for all values, since few labels cannot tell which small values matter.
        rows = (rows - rows.mean(0)) / rows.std(0).mean().clamp_min(1e-12)
        labels = torch.full((len(rows),), -1)  # scikit-learn's mark of an unknown label
        labels[given.rows] = given.labels
        tail = SelfTrainingClassifier(
            LogisticRegression(max_iter=ITERATIONS), threshold=self.config.sure, max_iter=None
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            tail.fit(rows.numpy(), labels.numpy())
        return torch.from_numpy(tail.predict(rows.numpy())).long()
