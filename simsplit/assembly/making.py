"""How a run's clients are made, one by one, before training or whenever a seat becomes another."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.assembly.supplies import Supplies
from simsplit.data.batches import Batches
from simsplit.packets import ClientId
from simsplit.parties.client import Client
from simsplit.parties.feed import Exam, Feed, keep_batch
from simsplit.parties.precision import Autocast
from simsplit.poisons import Poison, poisoned


class Maker:
    """Makes clients of an owner's modules and of a run's data."""

    def __init__(
        self,
        owners: Ownership,
        supplies: Supplies,
        autocast: Autocast,
        exams: Mapping[str, Exam],
    ) -> None:
        """`exams` are what clients are examined on, which they have in common."""
        self.owners, self.supplies, self.autocast, self.exams = owners, supplies, autocast, exams
        self.scenario, self.data = supplies.scenario, supplies.data
        public = self.data.auxiliary
        self._malicious = frozenset(self.scenario.malicious)
        self._private = supplies.batcher(self.data.train, augment=True)
        self._public = None if public is None else supplies.batcher(public, augment=True)
        self._everything = torch.arange(0 if public is None else len(public))

    def make(self, number: ClientId) -> Client:
        """A client as it is before training."""
        owners, poisons = self.owners, self._poisons_of(number)
        parts = owners.client_parts(number)
        end = owners.topology.client(
            number,
            parts,
            owners.loss,
            seed=owners.seed_of(number),
            device=self.supplies.device,
            autocast=self.autocast,
            stock=self.supplies.stock,
        )
        feeds = self.feeds(number, poisons)
        return Client.of(end, parts, owners.topology.protocols, feeds, self.exams, poisons=poisons)

    def feeds(self, number: ClientId, poisons: Sequence[Poison] = ()) -> dict[str, Feed]:
        """A client's streams of batches, of its own samples and of public ones."""
        feeds = {"private": self._feed(self._private, self._part(number), number, poisons)}
        if self._public is not None:
            size = self.supplies.public_batch_size
            feeds["public"] = self._feed(self._public, self._everything, number, size=size)
        return feeds

    def seed(self, number: ClientId) -> int:
        """The seed of all that a client draws."""
        return self.owners.seed_of(number)

    @property
    def alike(self) -> bool:
        """Whether all clients start from the same weights."""
        return self.scenario.clients.start == "same"

    def start(self, number: ClientId) -> Mapping[str, nn.Module]:
        """A client's own modules as they are before training, to be copied from."""
        return self.owners.start(number)

    def _part(self, number: ClientId) -> Tensor:
        return torch.as_tensor(self.data.parts[number])

    def _poisons_of(self, number: ClientId) -> list[Poison]:
        malicious = self.scenario.clients.malicious
        if malicious is None or number not in self._malicious:
            return []
        part = self._part(number)
        return [
            config.during(poison.client(number, part))
            for config, poison in zip(malicious.poison, self.supplies.poisons, strict=True)
        ]

    def _feed(
        self,
        batcher: Batches,
        part: Tensor,
        number: ClientId,
        poisons: Sequence[Poison] = (),
        size: int | None = None,
    ) -> Feed:
        train = self.scenario.train
        change = partial(poisoned, poisons) if poisons else keep_batch
        return Feed(
            batcher,
            part,
            batch_size=size or train.batch_size,
            seed=self.scenario.seed,
            client=number,
            drop_last=train.drop_last,
            change=change,
            lengths=batcher.lengths(part) if train.group_by_length else None,
        )
