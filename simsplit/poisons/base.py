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
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.needs import Given, Need, Needs
from simsplit.packets import ClientId, Packet
from simsplit.seeds import rng_for
from simsplit.states import below

Rows = Tensor
"""Indices of samples."""


@dataclass(frozen=True)
class Scene:
    """What a poison knows: the samples, their normalisation, and the run's seed."""

    samples: Samples
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    where: str
    """The poison's field in the scenario, for messages."""
    colluders: tuple[ClientId, ...] = ()
    """All malicious clients, in ascending order."""

    def scaled(self, value: float, like: Tensor) -> Tensor:
        """A pixel value between 0 and 1, normalised as batches are, by channel."""
        mean, std = (like.new_tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (value - mean) / std

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Black and white, normalised as batches are, by channel."""
        return self.scaled(0.0, like), self.scaled(1.0, like)


class PoisonConfig(Config, ABC):
    """Base of a poison's fields in a scenario."""

    aims: ClassVar[bool] = False
    """Whether it has an aim on held-out samples, so that attack success is measured."""
    from_round: int = Field(default=1, ge=1)
    """The first round in which it acts. Before it the client does as an honest one, but tables
    count it as malicious."""
    until_round: int | None = Field(default=None, ge=1)
    """The last round in which it acts; null: it never ends."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.until_round is not None and self.until_round < self.from_round:
            raise ValueError(
                f"until_round: must not come before from_round ({self.from_round}), "
                f"got {self.until_round}"
            )
        return self

    @property
    def needs(self) -> Needs:
        """What it needs from the rest of the scenario."""
        return ()

    def during(self, poison: "Poison") -> "Poison":
        """A client's own poison, which now acts in these rounds alone."""
        always = self.from_round == 1 and self.until_round is None
        return poison if always else Timed(poison, self.from_round, self.until_round)

    @abstractmethod
    def build(self, scene: Scene) -> "Poison":
        """The poison for a run's data."""


class BatchPoisonConfig(PoisonConfig):
    """A poison of a share of a client's samples."""

    aims: ClassVar[bool] = True
    rate: float = Field(default=0.3, gt=0, le=1)
    """Share of the eligible samples of a malicious client that it poisons."""
    source: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Classes whose samples may be poisoned; null: all."""

    pixels: ClassVar[bool] = True
    """Whether it changes pixels, and so needs images."""

    @property
    def needs(self) -> Needs:
        """Images; where it changes labels alone, images or numbers."""
        return (Need(Given.IMAGES if self.pixels else Given.NUMBERS),)


class Poison:
    """Base class of what malicious clients do; every hook does nothing by default."""

    def client(self, number: ClientId, part: Rows) -> Self:
        """The poison for one malicious client, which holds these samples."""
        del number, part
        return self

    def on_round(self, number: int) -> None:
        """Learn which round the client's next batch belongs to."""

    def on_batch(self, batch: Batch) -> Batch:
        """Change a training batch."""
        return batch

    def on_packet(self, packet: Packet) -> Packet:
        """Change a packet before it is sent."""
        return packet

    def on_receive(self, packet: Packet) -> None:
        """See what is handed over to the client."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers between steps, as tensors."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""

    def aim(self, samples: Samples) -> "Aim | None":
        """The held-out samples that the attack is measured on; None if it has no aim.

        `samples` are those of a split.
        """
        del samples
        return None


class Timed(Poison):
    """Acts in some rounds alone; in all others the client does as an honest one."""

    def __init__(self, poison: Poison, first: int, last: int | None) -> None:
        self.poison, self.first, self.last = poison, first, last
        self._now = 0
        """The round that the client trained in last. A packet's own does not do: segments are also
        handed over for an evaluation, which belongs to no round."""

    @property
    def acts(self) -> bool:
        """Whether the client's last round is one of them."""
        return self.first <= self._now and (self.last is None or self._now <= self.last)

    def on_round(self, number: int) -> None:
        self._now = number
        self.poison.on_round(number)

    def on_batch(self, batch: Batch) -> Batch:
        return self.poison.on_batch(batch) if self.acts else batch

    def on_packet(self, packet: Packet) -> Packet:
        return self.poison.on_packet(packet) if self.acts else packet

    def on_receive(self, packet: Packet) -> None:
        self.poison.on_receive(packet)

    def state(self) -> dict[str, Tensor]:
        """The round, and what the poison remembers."""
        return {"now": torch.tensor(self._now)} | {
            f"timed.{name}": tensor for name, tensor in self.poison.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._now = int(state["now"])
        self.poison.load(below(state, "timed."))


def poisoned(poisons: Sequence[Poison], batch: Batch) -> Batch:
    """A training batch, changed by all of a client's poisons."""
    for poison in poisons:
        batch = poison.on_batch(batch)
    return batch


@dataclass(frozen=True)
class Aim:
    """Held-out samples that an attack is measured on, and the classes it wants for them."""

    rows: Rows
    wanted: Tensor
    """The class that the attacker wants for each of them."""
    poison: "BatchPoison"

    def trigger(self, batch: Batch) -> Batch:
        """The samples with the trigger."""
        return Batch(self.poison.shown(batch.inputs), batch.labels, batch.indices)


class BatchPoison(Poison, ABC):
    """Poisons the same share of a client's samples in every epoch."""

    def __init__(self, config: BatchPoisonConfig, scene: Scene) -> None:
        self.config, self.scene = config, scene
        self._chosen: Tensor | None = None
        for label in config.source or ():
            self.refuse_unknown("source", label)

    def client(self, number: ClientId, part: Rows) -> Self:
        """A copy that has drawn this client's poisoned samples."""
        mine = copy.copy(self)
        mine._chosen = self._choose(number, part)
        return mine

    def on_batch(self, batch: Batch) -> Batch:
        hit = self._hit(batch)
        if not hit.any():
            return batch
        inputs, labels = batch.inputs.clone(), batch.labels.clone()
        inputs[hit] = self.changed(batch.inputs[hit], batch.indices[hit.to(batch.indices.device)])
        labels[hit] = self.relabelled(batch.labels[hit])
        return Batch(inputs, labels, batch.indices)

    def aim(self, samples: Samples) -> Aim | None:
        """All eligible samples that are not already of the wanted class."""
        wanted = self.relabelled(samples.labels)
        rows = (self.judged(samples) & (samples.labels != wanted)).nonzero().flatten()
        return Aim(rows, wanted[rows], self)

    @property
    def chosen(self) -> Rows:
        """The samples that this client poisons."""
        assert self._chosen is not None, "asked of a client's own"
        return self._chosen.nonzero().flatten()

    def candidates(self, samples: Samples) -> Tensor:
        """Mask of the samples that may be poisoned."""
        return self._of_source(samples.labels)

    def judged(self, samples: Samples) -> Tensor:
        """Mask of the held-out samples that the attack is measured on."""
        return self.candidates(samples)

    @abstractmethod
    def relabelled(self, labels: Tensor) -> Tensor:
        """The labels that poisoned samples get."""

    def changed(self, inputs: Tensor, rows: Rows) -> Tensor:
        """The inputs that poisoned samples get in training."""
        del rows
        return self.shown(inputs)

    def shown(self, inputs: Tensor) -> Tensor:
        """The inputs with the trigger, if there is one."""
        return inputs

    def _hit(self, batch: Batch) -> Tensor:
        """Mask of a batch's samples that are poisoned."""
        assert self._chosen is not None, "asked of a client's own"
        if self._chosen.device != batch.labels.device:
            self._chosen = self._chosen.to(batch.labels.device)
        return self._chosen[batch.indices.to(batch.labels.device)]

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
        """Raise ScenarioError if a class does not exist."""
        last = self.scene.num_classes - 1
        if not 0 <= label <= last:
            raise ScenarioError(
                f"{self.scene.where}.{field}", f"must be a class between 0 and {last}, got {label}"
            )

    def _of_source(self, labels: Tensor) -> Tensor:
        if self.config.source is None:
            return torch.ones_like(labels, dtype=torch.bool)
        return torch.isin(labels, torch.tensor(self.config.source))
