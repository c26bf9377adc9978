"""The book of steps: what crosses in a step is found out once for each kind of batch."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from simsplit.assembly.dry_step import Events, Prober
from simsplit.data.client_parts import count_rows
from simsplit.forecasting.outline import Outline
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.feed import Feed, count_batches
from simsplit.phases import Phase

BatchKey = tuple[int, int]
"""All of a batch on which the sizes of packets depend: rows, and tokens of the longest text."""


class StepBook:
    """The events of steps by phase and batch, and how many batches each client has taken."""

    def __init__(self, prober: Prober, outline: Outline) -> None:
        self.prober, self.outline = prober, outline
        self.scenario, self.data = prober.scenario, outline.data
        self.taken: dict[ClientId, Counter[str]] = defaultdict(Counter)
        """Batches taken so far, by client and source."""
        self.phase: Phase | None = None
        self._known: dict[tuple[ClientId, str, str, str, BatchKey], Events] = {}
        self._feeds: dict[tuple[ClientId, str], Feed] = {}
        self._rows = count_rows(self.data.parts)  # parts of many clients are drawn when asked for
        self._fresh = {each: prober.hand_over(each) for each in prober.numbers}
        self._trained: dict[ClientId, Packet] = {}

    @property
    def varies(self) -> bool:
        """Whether batches differ from epoch to epoch in what crosses."""
        return self.data.info.texts and self.outline.was_read

    @property
    def trained(self) -> frozenset[ClientId]:
        """The clients that have taken a step here, so that their optimizers have moments."""
        return frozenset(self._trained)

    def count_batches(self, client: ClientId, source: str) -> int:
        """Count the batches in one pass over a client's data."""
        if source not in self.prober.feeds:
            return 0
        count, size = self._count_rows(client, source), self.prober.feeds[source].batch_size
        return count_batches(count, size, drop_last=self.scenario.train.drop_last)

    def _count_rows(self, client: ClientId, source: str) -> int:
        private = source == "private"
        return int(self._rows[client]) if private else self.outline.counts.get("auxiliary", 0)

    def take_next(self, client: ClientId, manner: str) -> tuple[Events, int]:
        """Return the events of a client's next step, and the number of its samples."""
        assert self.phase is not None, "entered before each round"
        return self._take(client, manner, self.phase)

    def take_between(self, client: ClientId) -> Events:
        """Return the events of the step between others, if one is due."""
        assert self.phase is not None, "entered before each round"
        interleaved = self.phase.interleaved
        assert interleaved is not None, "asked for where there is one"
        if self.taken[client][self.phase.source] % interleaved.every:
            return ()
        return self._take(client, "between", interleaved.phase)[0]

    def hand_over(self, client: ClientId) -> Packet:
        """Return the form of the packet by which a client hands shared weights on."""
        number = self.prober.turn_to(client)
        return self._trained.get(number) or self._fresh[number]

    def _take(self, client: ClientId, manner: str, phase: Phase) -> tuple[Events, int]:
        number = self.taken[client][phase.source]
        self.taken[client][phase.source] += 1
        key, rows = self._find_batch(client, phase.source, number)
        place = (self.prober.turn_to(client), manner, phase.name, phase.source, key)
        if place not in self._known:
            self._known[place] = self._probe(manner, phase, rows)
        return self._known[place], key[0]

    def _probe(self, manner: str, phase: Phase, rows: Tensor) -> Events:
        # The samples of all kinds of batches that clients have.
        size = self.scenario.train.batch_size
        lasts: set[int] = {*(count_rows(self.data.parts) % size).tolist()}
        probed = (size + sum(lasts)) * (self.data.info.shape[0] if self.varies else 1)
        with self.prober.replace_if_costly(probed):
            if manner == "abandon":
                return self.prober.abandon(phase, rows)
            step = self.prober.step_between if manner == "between" else self.prober.step
            events = step(phase, rows)
        self._trained[self.prober.number] = self.prober.hand_over(self.prober.number)
        return events

    def _find_batch(self, client: ClientId, source: str, number: int) -> tuple[BatchKey, Tensor]:
        """Return what decides the sizes of a batch, and rows that make such a one."""
        if self.varies:
            rows = self._get_feed(client, source).indices(number)
            samples = self.data.train if source == "private" else self.data.auxiliary
            assert samples is not None, "a source with batches has samples"
            assert samples.texts is not None, "only texts vary"
            return (len(rows), int(samples.texts.lengths[rows].max())), rows
        count, size = self._count_rows(client, source), self.prober.feeds[source].batch_size
        place = number % self.count_batches(client, source)
        few = min(size, count - place * size)
        return (few, 0), torch.arange(few)

    def _get_feed(self, client: ClientId, source: str) -> Feed:
        if (client, source) not in self._feeds:
            made = self.prober.maker.feeds(client)
            self._feeds |= {(client, name): feed for name, feed in made.items()}
        return self._feeds[client, source]

    def list_exams(self, split: str) -> Iterator[Tensor]:
        """Yield the rows of each batch of a split's evaluation."""
        count, size = self.outline.counts[split], self.scenario.evaluate.batch_size
        for start in range(0, count, size):
            few = min(size, count - start)
            yield torch.arange(start, start + few) if self.varies else torch.arange(few)
