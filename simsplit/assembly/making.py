"""The maker builds a run's clients, before training and when a seat is given to another client."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.assembly.supplies import Supplies
from simsplit.data.batches import Batches
from simsplit.data.client_parts import count_rows
from simsplit.legs import ClientId
from simsplit.machine import Autocast
from simsplit.parties.client import Client
from simsplit.parties.feed import Exam, Feed, count_batches, keep_batch
from simsplit.poisons import Poison, poison_batch
from simsplit.privacy.spending import find_account, make_noise


class Maker:
    """Builder of clients from the modules that they own and a run's data."""

    def __init__(
        self,
        owners: Ownership,
        supplies: Supplies,
        autocast: Autocast,
        exams: Mapping[str, Exam],
    ) -> None:
        """Prepare to make clients, which have `exams` in common."""
        self.owners, self.supplies, self.autocast, self.exams = owners, supplies, autocast, exams
        self.scenario, self.data = supplies.scenario, supplies.data
        public = self.data.auxiliary
        self._malicious = frozenset(self.scenario.malicious)
        self._private = supplies.batcher(self.data.train, augment=True)
        self._public = None if public is None else supplies.batcher(public, augment=True)
        self._everything = torch.arange(0 if public is None else len(public))

    def make(self, number: ClientId) -> Client:
        """Return a new client, in its state before training."""
        owners, poisons = self.owners, self._build_poisons(number)
        parts = owners.build_client_parts(number)
        samples = len(self._get_part(number))
        parts.noise = make_noise(self.scenario, samples)
        end = owners.topology.client(
            number,
            parts,
            owners.loss,
            seed=owners.seed_of(number),
            device=self.supplies.device,
            autocast=self.autocast,
            stock=self.supplies.stock,
            noise=self.scenario.noise,
        )
        feeds = self.feeds(number, poisons)
        return Client.of(
            end,
            parts,
            owners.topology.select_protocols(has_labels=parts.has_labels),
            feeds,
            self.exams,
            poisons=poisons,
            accumulate=self.scenario.train.accumulate,
            account=find_account(self.scenario, samples, number),
        )

    def feeds(self, number: ClientId, poisons: Sequence[Poison] = ()) -> dict[str, Feed]:
        """Return a client's streams of batches from its own samples and from public ones."""
        feeds = {
            "private": self._build_feed(self._private, self._get_part(number), number, poisons)
        }
        if self._public is not None:
            size = self.supplies.public_batch_size
            feeds["public"] = self._build_feed(self._public, self._everything, number, size=size)
        return feeds

    def count_steps(self, source: str) -> np.ndarray:
        """Count the batches of all clients in a pass over a source's samples."""
        train, counts = self.scenario.train, count_rows(self.data.parts)
        if source == "public":
            counts = np.full_like(counts, len(self._everything))
        size = (self.supplies.public_batch_size if source == "public" else None) or train.batch_size
        count = partial(count_batches, batch_size=size, drop_last=train.drop_last)
        sizes, places = np.unique(counts, return_inverse=True)
        return np.array([*map(count, sizes.tolist())], np.int64)[places]

    def seed(self, number: ClientId) -> int:
        """Return the seed of all of a client's random draws."""
        return self.owners.seed_of(number)

    @property
    def alike(self) -> bool:
        """Whether all clients start from the same weights."""
        return self.scenario.clients.start == "same"

    def start(self, number: ClientId) -> Mapping[str, nn.Module]:
        """Return a client's own modules with their weights before training."""
        return self.owners.start(number)

    def _get_part(self, number: ClientId) -> Tensor:
        return torch.as_tensor(self.data.parts[number])

    def _build_poisons(self, number: ClientId) -> list[Poison]:
        """Return a client's poisons; an honest client has none."""
        malicious = self.scenario.clients.malicious
        if malicious is None or number not in self._malicious:
            return []
        part = self._get_part(number)
        return [
            config.limit_to_rounds(poison.for_client(number, part))
            for config, poison in zip(malicious.poison, self.supplies.poisons, strict=True)
        ]

    def _build_feed(
        self,
        batcher: Batches,
        part: Tensor,
        number: ClientId,
        poisons: Sequence[Poison] = (),
        size: int | None = None,
    ) -> Feed:
        train = self.scenario.train
        drawn = train.draws and batcher is self._private
        change = partial(poison_batch, poisons) if poisons else keep_batch
        return Feed(
            batcher,
            part,
            batch_size=size or train.batch_size,
            seed=self.scenario.seed,
            # Parties take the same samples at each step, in the order of one stream.
            client=0 if self.scenario.parties else number,
            drop_last=train.drop_last,
            change=change,
            lengths=batcher.get_lengths(part) if train.group_by_length else None,
            drawn_by=self.owners.seed_of(number) if drawn else None,
        )
