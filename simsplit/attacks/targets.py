"""The targets: the samples that a client encodes for attacks to recover."""

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
    """Maximum number of targets: the first samples of the split."""
    per_class: int | None = Field(default=None, ge=1)
    """Number of samples to take from each class, the first ones; null: take the first samples
    whatever their class."""
    order: Literal["data", "mixed"] | None = None
    """data: targets are encoded in the order of the data. mixed: in a random order, so that batches
    mix classes as in training; if the data were sorted by class, values that a method draws once
    per batch would reveal the class. null: mixed with attacks on labels, else data."""
    client: int = Field(default=0, ge=0)
    """Number of the client whose head encodes the targets."""
    batch_size: int | None = Field(default=None, ge=1)
    """Number of samples that are encoded at once and share a gradient; null: the size of training
    batches."""
    statistics: Literal["batch", "running"] = "batch"
    """batch: batch normalisation uses the batch's statistics, as in training. running: it uses
    running statistics."""
    every: int = Field(default=0, ge=0)
    """Attacks are scored every this many rounds and after the last; 0: only after the last."""
    curve: int = Field(default=0, ge=0)
    """Number of points n of a convergence curve (table `convergence`) for each attack that does not
    follow training: the attack is repeated with 1/n, 2/n, ... of its iterations, which takes n/2
    times as long; 0: no curve."""
    tokens: int = Field(default=32, ge=2)
    """Maximum number of tokens that the model writes after each target's prompt, for attacks on
    sessions; they are sampled as `evaluate.sampling` says. The first half of a text without a
    prompt serves as its prompt."""
    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of prompts in the score of both ends (AP) of attacks on sessions; responses have the
    weight 1 - alpha."""
    lpips: Path | None = None
    """File of AlexNet's weights (torchvision's state dict), for LPIPS; null: no LPIPS."""
    bert_score: Path | None = None
    """For sessions: folder of an encoder (transformers), for BERTScore; null: no BERTScore."""
    bleurt: Path | None = None
    """For sessions: folder of a BERT classifier with one output, for BLEURT; null: no BLEURT."""

    def rows(self, labels: np.ndarray) -> np.ndarray:
        """Return the row numbers of the targets in a split with these labels."""
        if self.per_class is None:
            return np.arange(min(self.count, len(labels)))
        first = [np.flatnonzero(labels == label)[: self.per_class] for label in np.unique(labels)]
        return np.concatenate(first)[: self.count]

    def choose(self, data: Prepared) -> tuple[Samples, Tensor]:
        """Return the split's samples, and the row numbers of the targets among them."""
        if self.split == "test":
            samples, rows = data.test, self.rows(data.test.groups)
        else:
            part = data.parts[self.client]
            samples, rows = data.train, part[self.rows(data.train.groups[part])]
        if self.order == "mixed":
            # Seed 0, not the run's, so that repetitions with other seeds attack one order of
            # targets.
            rows = numpy_rng_for(0, "order of targets").permutation(rows)
        return samples, torch.as_tensor(rows)

    def labels(self, data: Prepared) -> Tensor:
        """Return the targets' classes.

        A text's class is the answer that its client learns, not the topic by which texts are
        divided among clients.
        """
        samples, rows = self.choose(data)
        if samples.texts is None:
            return samples.labels[rows]
        choices = None if data.vocabulary is None else data.vocabulary.choices
        if choices is None:  # a classifier: each text has one label
            return samples.labels[rows].amax(1)
        answers = samples.labels[samples.mask_answers(choices.after)][rows]
        return (answers[:, None] == torch.tensor(choices.tokens)).long().argmax(1)

    def choose_batch_size(self, training: int) -> int:
        """Return the size of the targets' batches, given the size of training batches."""
        return self.batch_size or training

    def is_due(self, number: int, rounds: int) -> bool:
        """Return whether attacks are scored after round `number` of `rounds`."""
        return number == rounds or (self.every > 0 and number % self.every == 0)
