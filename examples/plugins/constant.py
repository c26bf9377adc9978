"""A poison: a malicious client calls all that it has the same."""

from typing import Literal

import torch
from pydantic import Field

from simsplit.data import Batch
from simsplit.poisons import Poison, PoisonConfig


class ConstantConfig(PoisonConfig):
    """All of a malicious client's labels become one class; its images stay as they are."""

    kind: Literal["constant"] = "constant"
    label: int = Field(default=0, ge=0)
    """The class."""

    def build(self, scene):
        """Build the poison; `scene` has the data, the seed, and the field that asked for it."""
        return Constant(self.label)


class Constant(Poison):
    """Changes batches alone; `on_packet` could change what is sent."""

    def __init__(self, label):
        self.label = label

    def on_batch(self, batch):
        """Change a batch as the client trains on it."""
        return Batch(batch.inputs, torch.full_like(batch.labels, self.label), batch.indices)


POISONS = {"constant": ConstantConfig}
