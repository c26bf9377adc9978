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


class TargetsConfig(Config):
    """The images that attacks try to recover, and when they are asked to."""

    split: Literal["train", "test"] = "train"
    """A client's own training images, or test images that it encodes as it would in use."""
    count: int = Field(default=64, ge=1)
    """At most so many, the first."""
    per_class: int | None = Field(default=None, ge=1)
    """Take the first so many of each class, rather than the first of all."""
    client: int = Field(default=0, ge=0)
    """Whose head encodes them."""
    batch_size: int | None = Field(default=None, ge=1)
    """How many it encodes at once, and has one gradient of; null: as many as in training."""
    statistics: Literal["batch", "running"] = "batch"
    """Whether batch normalisation goes by the batch, as in training, or as in use."""
    every: int = Field(default=0, ge=0)
    """Rounds between two judgements; 0: only after the last."""
    lpips: Path | None = None
    """File of AlexNet's weights (torchvision's state dict), for LPIPS; null: leave that out."""

    def rows(self, labels: np.ndarray) -> np.ndarray:
        """Which of a split's rows."""
        if self.per_class is None:
            return np.arange(min(self.count, len(labels)))
        first = [np.flatnonzero(labels == label)[: self.per_class] for label in np.unique(labels)]
        return np.concatenate(first)[: self.count]

    def chosen(self, data: Prepared) -> tuple[Samples, Tensor]:
        """The split, and which of its rows."""
        if self.split == "test":
            return data.test, torch.as_tensor(self.rows(data.test.groups))
        part = data.parts[self.client]
        return data.train, torch.as_tensor(part[self.rows(data.train.groups[part])])

    def at_once(self, training: int) -> int:
        """How many make a batch."""
        return self.batch_size or training

    def due(self, number: int, rounds: int) -> bool:
        """Whether attacks are judged after this round."""
        return number == rounds or (self.every > 0 and number % self.every == 0)
