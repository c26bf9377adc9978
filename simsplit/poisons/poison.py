"""This module defines the base of poisons, which change a malicious client's batches or packets.

A poison changes batches when they leave the client's feed, or packets before they reach the wire,
and nothing else: the client trains like an honest one. The poisoned samples are drawn once per
client by the run's seed, so that they are the same in every epoch.
"""

import copy
import math
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
from simsplit.legs import ClientId
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet
from simsplit.seeds import rng_for
from simsplit.states import select_below

Rows = Tensor
"""Indices of samples."""


@dataclass(frozen=True)
class Scene:
    """What a poison knows: the samples, their normalisation and the run's seed."""

    samples: Samples
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    where: str
    """The poison's field in the scenario, for messages."""
    colluders: tuple[ClientId, ...] = ()
    """All malicious clients, in ascending order."""

    def normalise(self, value: float, like: Tensor) -> Tensor:
        """Normalise a pixel value between 0 and 1 as batches are, by channel."""
        mean, std = (like.new_tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (value - mean) / std

    def get_bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return black and white, normalised as batches are, by channel."""
        return self.normalise(0.0, like), self.normalise(1.0, like)


class PoisonConfig(Config, ABC):
    """The base of the fields of poisons in a scenario."""

    aims: ClassVar[bool] = False
    """Whether the poison has an aim on test samples, so that attack success is measured."""
    from_round: int = Field(default=1, ge=1)
    """First round in which the poison acts. Before it the client acts like an honest one, but
    tables count it as malicious."""
    until_round: int | None = Field(default=None, ge=1)
    """Last round in which the poison acts; null: the run's last round."""

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        if self.until_round is not None and self.until_round < self.from_round:
            raise ValueError(
                f"until_round: must not come before from_round ({self.from_round}), "
                f"got {self.until_round}"
            )
        return self

    @property
    def needs(self) -> Needs:
        """The needs of the poison from the rest of the scenario."""
        return ()

    def limit_to_rounds(self, poison: "Poison") -> "Poison":
        """Return a client's poison, restricted to the rounds from `from_round` to `until_round`."""
        always = self.from_round == 1 and self.until_round is None
        return poison if always else Timed(poison, self.from_round, self.until_round)

    @abstractmethod
    def build(self, scene: Scene) -> "Poison":
        """Build the poison for a run's data."""


class BatchPoisonConfig(PoisonConfig):
    """The base of poisons of a share of a client's samples."""

    aims = True
    rate: float = Field(default=0.3, gt=0, le=1)
    """Share of a malicious client's usable samples that it poisons."""
    source: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Numbers of the classes whose samples may be poisoned; null: all classes."""
    rise: int | None = Field(default=None, ge=1)
    """Number of rounds, from `from_round` on, over which the share grows evenly to `rate`, so that
    no round differs much from the one before. A run or poison that ends earlier never reaches
    `rate`. null: it is `rate` at once."""

    pixels: ClassVar[bool] = True
    """Whether the poison changes pixels, and so needs images."""

    @property
    def needs(self) -> Needs:
        """Images; a poison that only changes labels also accepts tables."""
        return (Need(Given.IMAGES if self.pixels else Given.NUMBERS),)


class Poison:
    """Base class of poisons; every hook does nothing by default."""

    def for_client(self, number: ClientId, part: Rows) -> Self:
        """Return the poison of one malicious client, which has the samples `part`."""
        return self

    def on_round(self, number: int) -> None:
        """Note the round of the client's next batch."""

    def on_batch(self, batch: Batch) -> Batch:
        """Change a training batch."""
        return batch

    def on_packet(self, packet: Packet) -> Packet:
        """Change a packet before it is sent."""
        return packet

    def add_trigger(self, inputs: Tensor) -> Tensor:
        """Add the trigger to inputs, if there is one."""
        return inputs

    def mark(self, packet: Packet) -> Packet:
        """Add the trigger to a packet of held-out samples, if packets have one."""
        return packet

    def on_receive(self, packet: Packet) -> None:
        """Observe a packet that is handed over to the client."""

    def state(self) -> dict[str, Tensor]:
        """Return what the poison remembers between steps, as tensors."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""

    def find_aim(self, samples: Samples) -> "Aim | None":
        """Return the samples of a split on which success is measured; None without an aim."""
        return None


class Timed(Poison):
    """A poison that acts only in some rounds; in others the client acts like an honest one."""

    def __init__(self, poison: Poison, first: int, last: int | None) -> None:
        self.poison, self.first, self.last = poison, first, last
        self._now = 0
        """The round in which the client trained last. A packet's round cannot be used: segments are
        also handed over for evaluations, which belong to no round."""

    @property
    def acts(self) -> bool:
        """Whether the client's last round is one in which the poison acts."""
        return self.first <= self._now and (self.last is None or self._now <= self.last)

    def on_round(self, number: int) -> None:
        self._now = number
        self.poison.on_round(number)

    def on_batch(self, batch: Batch) -> Batch:
        return self.poison.on_batch(batch) if self.acts else batch

    def on_packet(self, packet: Packet) -> Packet:
        return self.poison.on_packet(packet) if self.acts else packet

    def mark(self, packet: Packet) -> Packet:
        return self.poison.mark(packet)

    def on_receive(self, packet: Packet) -> None:
        self.poison.on_receive(packet)

    def state(self) -> dict[str, Tensor]:
        return {"now": torch.tensor(self._now)} | {
            f"timed.{name}": tensor for name, tensor in self.poison.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._now = int(state["now"])
        self.poison.load(select_below(state, "timed."))


def poison_batch(poisons: Sequence[Poison], batch: Batch) -> Batch:
    """Change a training batch with all of a client's poisons, in order."""
    for poison in poisons:
        batch = poison.on_batch(batch)
    return batch


@dataclass(frozen=True)
class Aim:
    """The samples on which attack success is measured, and the class that the attacker wants."""

    rows: Rows
    wanted: Tensor
    """The wanted class of each sample."""
    poison: Poison

    def add_trigger(self, batch: Batch) -> Batch:
        """Add the trigger to the samples."""
        return Batch(self.poison.add_trigger(batch.inputs), batch.labels, batch.indices)


class BatchPoison(Poison, ABC):
    """Base class of poisons of the same samples of a client in every epoch."""

    _places: Tensor
    """Of a client's copy: by row of the data, the share of its poisoned samples up to this one, in
    the order in which a growing share takes them; infinite for samples that it never poisons."""

    def __init__(self, config: BatchPoisonConfig, scene: Scene) -> None:
        self.config, self.scene = config, scene
        self._share = 1.0
        """Share of the client's poisoned samples that are poisoned in this round."""
        for label in config.source or ():
            self.refuse_unknown("source", label)

    def for_client(self, number: ClientId, part: Rows) -> Self:
        """Return a copy for one client, which has drawn its poisoned samples."""
        mine, usable = copy.copy(self), part[self._candidates[part]]
        # a stream by client: its samples do not depend on the other clients
        order = torch.randperm(len(usable), generator=rng_for(self.scene.seed, "poison", number))
        taken = usable[order[: round(self.config.rate * len(usable))]]
        mine._places = torch.full((len(self.scene.samples),), math.inf)
        mine._places[taken] = torch.arange(1, len(taken) + 1) / len(taken)
        return mine

    def on_round(self, number: int) -> None:
        if self.config.rise is not None:
            self._share = min(1.0, (number - self.config.from_round + 1) / self.config.rise)

    def on_batch(self, batch: Batch) -> Batch:
        hit = self._find_poisoned(batch)
        if not hit.any():
            return batch
        inputs, labels = batch.inputs.clone(), batch.labels.clone()
        inputs[hit] = self.change(batch.inputs[hit], batch.indices[hit.to(batch.indices.device)])
        labels[hit] = self.relabel(batch.labels[hit])
        return Batch(inputs, labels, batch.indices)

    def find_aim(self, samples: Samples) -> Aim | None:
        """Return the samples on which success is measured and that are not of the wanted class."""
        wanted = self.relabel(samples.labels)
        rows = (self.find_judged(samples) & (samples.labels != wanted)).nonzero().flatten()
        return Aim(rows, wanted[rows], self)

    @property
    def poisoned_rows(self) -> Rows:
        """Rows of the samples that this client poisons."""
        return self._places.isfinite().nonzero().flatten()

    def find_candidates(self, samples: Samples) -> Tensor:
        """Return a mask of the samples that may be poisoned."""
        return self._is_of_source(samples.labels)

    def find_judged(self, samples: Samples) -> Tensor:
        """Return a mask of the samples on which attack success may be measured."""
        return self.find_candidates(samples)

    @abstractmethod
    def relabel(self, labels: Tensor) -> Tensor:
        """Return the labels that poisoned samples get."""

    def change(self, inputs: Tensor, rows: Rows) -> Tensor:
        """Change the inputs of poisoned samples for training."""
        return self.add_trigger(inputs)

    def _find_poisoned(self, batch: Batch) -> Tensor:
        """Return a mask of a batch's poisoned samples."""
        # Moved once: batches of a run lie on one device.
        self._places = self._places.to(batch.labels.device)
        return self._places[batch.indices.to(batch.labels.device)] <= self._share

    @cached_property
    def _candidates(self) -> Tensor:
        return self.find_candidates(self.scene.samples)

    def refuse_unknown(self, field: str, label: int) -> None:
        """Raise ScenarioError if class `label` does not exist."""
        last = self.scene.num_classes - 1
        if not 0 <= label <= last:
            raise ScenarioError(
                f"{self.scene.where}.{field}", f"must be a class between 0 and {last}, got {label}"
            )

    def _is_of_source(self, labels: Tensor) -> Tensor:
        if self.config.source is None:
            return torch.ones_like(labels, dtype=torch.bool)
        return torch.isin(labels, torch.tensor(self.config.source))
