"""What attacks are judged on: whose images cross the wire for them to recover."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from simsplit.config import Config
from simsplit.data import Prepared
from simsplit.data.samples import Samples
from simsplit.seeds import numpy_rng_for


class TargetsConfig(Config):
    """The samples that attacks try to recover, and when attacks are scored."""

    split: Literal["train", "test"] = "train"
    """train: the client's own training samples. test: held-out samples, encoded as in inference."""
    count: int = Field(default=64, ge=1)
    """How many samples at most, the first ones."""
    per_class: int | None = Field(default=None, ge=1)
    """Take the first samples of each class, this many, rather than the first of all."""
    order: Literal["data", "mixed"] | None = None
    """data: targets are encoded in the order of the data. mixed: in a drawn order, so that batches
    mix classes as in training; of data sorted by class, what a method draws once per batch would
    tell the class. null: mixed with attacks on labels, else data."""
    client: int = Field(default=0, ge=0)
    """The client whose head encodes them."""
    batch_size: int | None = Field(default=None, ge=1)
    """Samples that are encoded at once, and share a gradient; null: as many as in training."""
    statistics: Literal["batch", "running"] = "batch"
    """Whether batch normalisation uses the batch's statistics, as in training, or running ones."""
    every: int = Field(default=0, ge=0)
    """Rounds between two scorings of attacks; 0: only after the last round."""
    curve: int = Field(default=0, ge=0)
    """Points of a curve for each attack that does not follow training: it is made again with 1/n,
    2/n, ... of its iterations (table `convergence`); 0: none. n points take n/2 times as long."""
    tokens: int = Field(default=32, ge=2)
    """Tokens that are written after each target's prompt, at most, for attacks on sessions; drawn
    as `evaluate.sampling` says. A text without a prompt is cut in two: its first half is one."""
    alpha: float = Field(default=0.5, ge=0, le=1)
    """What prompts weigh in the figure of both ends (AP) of attacks on sessions; responses weigh
    the rest."""
    lpips: Path | None = None
    """File of AlexNet's weights (torchvision's state dict), for LPIPS; null: no LPIPS."""
    bert_score: Path | None = None
    """Of sessions: folder of an encoder (transformers), for BERTScore; null: no BERTScore."""
    bleurt: Path | None = None
    """Of sessions: folder of a BERT classifier of one output, for BLEURT; null: no BLEURT."""

    def rows(self, labels: np.ndarray) -> np.ndarray:
        """The rows of a split that are targets."""
        if self.per_class is None:
            return np.arange(min(self.count, len(labels)))
        first = [np.flatnonzero(labels == label)[: self.per_class] for label in np.unique(labels)]
        return np.concatenate(first)[: self.count]

    def chosen(self, data: Prepared) -> tuple[Samples, Tensor]:
        """The split's samples, and the rows of it that are targets."""
        if self.split == "test":
            samples, rows = data.test, self.rows(data.test.groups)
        else:
            part = data.parts[self.client]
            samples, rows = data.train, part[self.rows(data.train.groups[part])]
        if self.order == "mixed":
            rows = numpy_rng_for(0, "order of targets").permutation(rows)
        return samples, torch.as_tensor(rows)

    def labels(self, data: Prepared) -> Tensor:
        """The targets' classes; of texts what their clients learn, not the topic that they are
        dealt by.
        """
        samples, rows = self.chosen(data)
        if samples.texts is None:
            return samples.labels[rows]
        choices = None if data.vocabulary is None else data.vocabulary.choices
        if choices is None:  # a classifier's labels, of which a text has but one
            return samples.labels[rows].amax(1)
        told = samples.labels[samples.answering(choices.after)][rows]
        return (told[:, None] == torch.tensor(choices.tokens)).long().argmax(1)

    def at_once(self, training: int) -> int:
        """How many targets make a batch."""
        return self.batch_size or training

    def due(self, number: int, rounds: int) -> bool:
        """Whether attacks are scored after this round."""
        return number == rounds or (self.every > 0 and number % self.every == 0)
