"""What a malicious client does differently: to its batches, and to the packets that it sends.

A poison touches a client's data on their way out of its feed, or its packets on their way to the
wire, and nothing else: the client itself trains as an honest one does. Which samples it touches is
drawn once per client from the run's seed, so that the same ones are poisoned in every epoch.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.needs import Given, Need, Needs
from simsplit.packets import ClientId, Packet
from simsplit.seeds import rng_for

Rows = Tensor
"""Numbers of samples."""


@dataclass(frozen=True)
class Scene:
    """All that a poison may know: the samples, how they are scaled, and the run's seed."""

    samples: Samples
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    where: str
    """The field of the scenario that asked for it."""

    def scaled(self, value: float, like: Tensor) -> Tensor:
        """A pixel value between 0 and 1 as it is in a batch, by channel."""
        mean, std = (like.new_tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (value - mean) / std

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Black and white as they are in a batch, by channel."""
        return self.scaled(0.0, like), self.scaled(1.0, like)


class PoisonConfig(Config, ABC):
    """What a scenario says of one poison."""

    aims: ClassVar[bool] = False
    """Whether it wants held-out samples to be taken for something."""

    @property
    def needs(self) -> Needs:
        """What it cannot do without."""
        return ()

    @abstractmethod
    def build(self, scene: Scene) -> "Poison":
        """The poison, for these data."""


class BatchPoisonConfig(PoisonConfig):
    """A poison of part of a client's samples."""

    aims: ClassVar[bool] = True
    rate: float = Field(default=0.3, gt=0, le=1)
    """Share of a malicious client's samples that it poisons, of those that may be."""
    source: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Classes whose samples may be poisoned; null: all."""

    @property
    def needs(self) -> Needs:
        """Images, and their classes."""
        return (Need(Given.IMAGES),)


class Poison:
    """Does nothing; kinds override what matters to them."""

    def client(self, number: ClientId, part: Rows) -> Self:
        """The poison as one malicious client has it, who holds these samples."""
        del number, part
        return self

    def on_batch(self, batch: Batch) -> Batch:
        """A training batch as the client trains on it."""
        return batch

    def on_packet(self, packet: Packet) -> Packet:
        """A packet as the client sends it."""
        return packet

    def on_receive(self, packet: Packet) -> None:
        """Look at what is handed to the client."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers of a client's steps."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""

    def aim(self, samples: Samples) -> "Aim | None":
        """What the attacker wants of held-out samples; None where it wants nothing in particular.

        `samples` are those of a split.
        """
        del samples
        return None


def poisoned(poisons: Sequence[Poison], batch: Batch) -> Batch:
    """A training batch after all of a client's poisons."""
    for poison in poisons:
        batch = poison.on_batch(batch)
    return batch


@dataclass(frozen=True)
class Aim:
    """Held-out samples by which an attack is judged, and what they shall be taken for."""

    rows: Rows
    wanted: Tensor
    """The class that the attacker wants each of them to be given."""
    poison: "BatchPoison"

    def trigger(self, batch: Batch) -> Batch:
        """The samples as the attacker shows them."""
        return Batch(self.poison.shown(batch.inputs), batch.labels, batch.indices)


class BatchPoison(Poison, ABC):
    """Poisons the same share of a client's samples in every epoch."""

    def __init__(self, config: BatchPoisonConfig, scene: Scene) -> None:
        self.config, self.scene = config, scene
        self._chosen: Tensor | None = None
        for label in config.source or ():
            self.refuse_unknown("source", label)

    def client(self, number: ClientId, part: Rows) -> Self:
        """Choose this client's poisoned samples."""
        mine = copy.copy(self)
        mine._chosen = self._choose(number, part)
        return mine

    def on_batch(self, batch: Batch) -> Batch:
        """Change what was chosen, and nothing else."""
        assert self._chosen is not None, "asked of a client's own"
        if self._chosen.device != batch.labels.device:
            self._chosen = self._chosen.to(batch.labels.device)
        hit = self._chosen[batch.indices.to(batch.labels.device)]
        if not hit.any():
            return batch
        inputs, labels = batch.inputs.clone(), batch.labels.clone()
        inputs[hit] = self.changed(batch.inputs[hit], batch.indices[hit.to(batch.indices.device)])
        labels[hit] = self.relabelled(batch.labels[hit])
        return Batch(inputs, labels, batch.indices)

    def aim(self, samples: Samples) -> Aim | None:
        """All samples that may be poisoned and are not what they shall be taken for anyway."""
        wanted = self.relabelled(samples.labels)
        rows = (self.judged(samples) & (samples.labels != wanted)).nonzero().flatten()
        return Aim(rows, wanted[rows], self)

    @property
    def chosen(self) -> Rows:
        """The samples that this client poisons."""
        assert self._chosen is not None, "asked of a client's own"
        return self._chosen.nonzero().flatten()

    def candidates(self, samples: Samples) -> Tensor:
        """Which samples may be poisoned, as a mask."""
        return self._of_source(samples.labels)

    def judged(self, samples: Samples) -> Tensor:
        """Which held-out samples the attack is judged by, as a mask."""
        return self.candidates(samples)

    @abstractmethod
    def relabelled(self, labels: Tensor) -> Tensor:
        """The labels that samples of these labels are given."""

    def changed(self, inputs: Tensor, rows: Rows) -> Tensor:
        """The inputs that are trained on."""
        del rows
        return self.shown(inputs)

    def shown(self, inputs: Tensor) -> Tensor:
        """The inputs with the trigger, if there is one."""
        return inputs

    @cached_property
    def _may_be(self) -> Tensor:
        return self.candidates(self.scene.samples)

    def _choose(self, number: ClientId, part: Rows) -> Tensor:
        mine = part[self._may_be[part]]
        order = torch.randperm(len(mine), generator=rng_for(self.scene.seed, "poison", number))
        taken = mine[order[: round(self.config.rate * len(mine))]]
        chosen = torch.zeros(len(self.scene.samples), dtype=torch.bool)
        chosen[taken] = True
        return chosen

    def refuse_unknown(self, field: str, label: int) -> None:
        """ScenarioError for a class that does not exist."""
        last = self.scene.num_classes - 1
        if not 0 <= label <= last:
            raise ScenarioError(
                f"{self.scene.where}.{field}", f"must be a class between 0 and {last}, got {label}"
            )

    def _of_source(self, labels: Tensor) -> Tensor:
        if self.config.source is None:
            return torch.ones_like(labels, dtype=torch.bool)
        return torch.isin(labels, torch.tensor(self.config.source))
