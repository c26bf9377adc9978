"""One real client and the real server take a step of each kind, so that what crosses is known.

Nothing is computed by formulas: packets are those of a run's own code, and their tensors' forms are
kept. A step of many operations runs on stand-ins for the segments (see `stand_ins`).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.assembly import Assembler
from simsplit.assembly.making import Maker
from simsplit.data.parts import count_rows
from simsplit.errors import ScenarioError
from simsplit.forecasting.outline import Outline
from simsplit.forecasting.stand_ins import SegmentForm, replace_segments
from simsplit.forecasting.weightless import FEW, count_weightless_flops, walk_segments
from simsplit.models.shards import is_weightless
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import Enter, HandOver, Hear, Probe
from simsplit.parties.client import Client
from simsplit.parties.feed import Exam, Feed
from simsplit.phases import EVALUATE, Phase
from simsplit.protocol import Turn
from simsplit.scenario import Scenario
from simsplit.scenario.needs import count_messages
from simsplit.schedules.exchange import Event
from simsplit.seeds import isolate

COSTLY = 20e9
"""Operations of a forecast's steps from which on segments are replaced by stand-ins."""
Events = tuple[Event, ...]


@dataclass(frozen=True)
class BatchKey:
    """All of a batch on which the sizes of packets depend."""

    rows: int
    length: int = 0
    """Tokens of the longest text."""


class FixedFeed(Feed):
    """A client's stream of batches that returns the same rows again and again."""

    rows: Tensor

    @classmethod
    def of(cls, feed: Feed) -> "FixedFeed":
        """Return one with the samples of another feed."""
        made = cls(
            feed.batcher,
            feed.part,
            batch_size=feed.batch_size,
            seed=feed.seed,
            client=feed.client,
        )
        made.rows = feed.part
        return made

    def indices(self, number: int) -> Tensor:
        """Return the rows that were set."""
        del number
        return self.rows


class Prober:
    """A scenario's parts with a client of each cut, which takes steps on chosen batches."""

    def __init__(self, scenario: Scenario, outline: Outline) -> None:
        self.scenario, self.outline = scenario, outline
        self.is_weightless = is_weightless()
        self._known_forms: dict[ClientId, dict[nn.Module, SegmentForm]] = {}
        for index, method in enumerate(scenario.method if self.is_weightless else ()):
            if method.reads_tail or method.reads_tokens:
                raise _build_refusal(f"method.{index}.kind")
        self.assembler = Assembler(scenario, outline.data, torch.device("cpu"))
        if self.is_weightless:
            replies = math.ceil(count_messages(scenario.method) / scenario.servers)
            self.assembler.flops = count_weightless_flops(self.assembler.owners, replies)
        owners, supplies = self.assembler.owners, self.assembler.supplies
        rows, kinds = count_rows(outline.data.parts), owners.depths.list_kinds()
        self.numbers = [_choose_largest(kind, rows) for kind in kinds]
        """A client of each cut: the one with the most samples."""
        pairs = zip(self.numbers[1:], kinds[1:], strict=True)
        self._deeper = {client: number for number, kind in pairs for client in kind}
        self.pool = self.assembler.make_pool(self.numbers)
        self.exchange = self.assembler.build_exchange(self.pool)
        self.number: ClientId = _choose_largest(self.numbers, rows)
        """The client that takes steps."""
        self.maker = Maker(owners, supplies, self.assembler.autocast, {})
        if self.is_weightless and self._looks_inside:
            raise _build_refusal("method")
        self.announced = self.exchange.server.announce()
        for number in self.numbers:
            training = self.pool.clients[number].training
            training.feeds = {n: FixedFeed.of(feed) for n, feed in training.feeds.items()}
            self.pool.ask(number, Hear(self.announced))

    @property
    def client(self) -> Client:
        """The client that takes steps."""
        return self.pool.clients[self.number]

    @property
    def feeds(self) -> dict[str, FixedFeed]:
        """Its streams of batches."""
        return cast("dict[str, FixedFeed]", self.client.training.feeds)

    def turn_to(self, client: ClientId) -> ClientId:
        """Let the client with this one's cut take the next steps, and return its number."""
        self.number = self._deeper.get(client, self.numbers[0])
        return self.number

    @property
    def batch_rows(self) -> int:
        """The rows of the largest batch of training."""
        largest = int(count_rows(self.outline.data.parts).max(initial=0))
        return min(self.scenario.train.batch_size, largest)

    @contextmanager
    def replace_if_costly(self, rows: int) -> Iterator[None]:
        """Open a context in which steps of so many rows in all take no time."""
        flops = self.assembler.flops
        costly = 3 * rows * (flops.head + flops.trunk + flops.tail) > COSTLY or self.is_weightless
        if costly and (segments := self._forms):
            with replace_segments(segments):
                yield
        else:
            yield

    @property
    def _looks_inside(self) -> bool:
        """Whether a method takes part in the head's own passes."""
        stack = self.client.training.end.stack
        return stack.reaches_head or any(each.changes_embeddings for each in stack.smashed)

    @property
    def _forms(self) -> dict[nn.Module, SegmentForm]:
        """The forms of the segments' outputs; empty if a method looks into a segment."""
        if self.number not in self._known_forms:
            self._known_forms[self.number] = self._find_forms()
        return self._known_forms[self.number]

    @property
    def trunk(self) -> nn.Module:
        """The trunk from the client's cut on."""
        return self.assembler.owners.depths.get_rest(self.number)

    def _find_forms(self) -> dict[nn.Module, SegmentForm]:
        end, server, trunk = self.client.training.end, self.exchange.server.end, self.trunk
        topology, texts = self.exchange.topology, self.assembler.owners.info.texts
        if topology.whole_model or self._looks_inside:
            return {}
        tail = end.tail if end.tail is not None else server.tail
        assert tail is not None, "one side has it"
        if self.is_weightless:
            outputs = walk_segments(self.assembler.owners, FEW, self.number).outputs
            made = dict(zip((end.head, trunk, tail), outputs.values(), strict=True))
            return {segment: SegmentForm.of(each, texts=texts) for segment, each in made.items()}
        batch = self.feeds["private"].batcher.batch(self.feeds["private"].part[:2])
        with torch.no_grad():
            z = topology.headed(end.head, batch)
            beside = topology.beside(batch)
            u = trunk(z, *beside)
            y = tail(u, *beside)
        made = {end.head: z, trunk: u, tail: y}
        return {segment: SegmentForm.of(output, texts=texts) for segment, output in made.items()}

    def step(self, phase: Phase, rows: Tensor) -> Events:
        """Let the client take a step of a phase on these rows, and return its events."""
        events: list[Event] = []
        with self._enter(phase, rows):
            if self.exchange.parts > 1 and phase.crosses:
                with self._record() as sent:
                    self.exchange.step(self.number)
                events = list[Event](sent)
            else:
                events = [*map(_keep_form, self.exchange.step_by_events(self.number))]
        self.exchange.collect_reports([self.number])
        return tuple(events)

    def step_between(self, phase: Phase, rows: Tensor) -> Events:
        """Let the client take a step of an interleaved phase, which never crosses in parts."""
        training, parts = self.client.training, self.scenario.train.accumulate
        training.accumulate, self.exchange.parts = 1, 1
        try:
            return self.step(phase, rows)
        finally:
            training.accumulate, self.exchange.parts = parts, parts

    def walk(self, phase: Phase, rows: Tensor) -> Iterator[Event]:
        """Let the client take a step on these rows, in one part; yield its events as they come."""
        training, parts = self.client.training, self.scenario.train.accumulate
        training.accumulate = 1
        try:
            with self._enter(phase, rows):
                yield from self.exchange.step_by_events(self.number)
        finally:
            training.accumulate = parts
        self.exchange.collect_reports([self.number])

    def abandon(self, phase: Phase, rows: Tensor) -> Events:
        """Let the client drop out of a step, and return what has crossed."""
        with self._enter(phase, rows), self._record() as sent:
            self.exchange.abandon(self.number)
        self.exchange.collect_reports([self.number])
        return tuple(sent)

    def hand_over(self, number: ClientId) -> Packet:
        """Return the packet of shared weights as a client of `numbers` would send it now."""
        return keep_form(self.pool.ask(number, HandOver(1)))

    def predict(self, phase: Phase, split: str, rows: Tensor, reading: str) -> Events:
        """Evaluate these rows of a split, and return what has crossed."""
        samples = self.assembler.supplies.samples(split)
        batcher = self.assembler.supplies.batcher(samples, augment=False)
        views = self.scenario.evaluate.views
        self.client.examination.exams = {split: Exam(batcher, rows, len(rows), views=views)}
        with (
            self._enter(phase, rows),
            self.exchange.use_reading(reading),
            self.exchange.moment.count_as(EVALUATE),
            self._record() as sent,
        ):
            self.exchange.predict(self.number, Probe(split, 1, 0))
        return tuple(sent)

    @contextmanager
    def _enter(self, phase: Phase, rows: Tensor) -> Iterator[None]:
        """Open a context in a round of a phase, whose batch has these rows."""
        alone = replace(phase, interleaved=None)
        with (
            self.exchange.moment.enter_round(1, alone, [self.number]),
            isolate(self.scenario.seed, "forecast"),
        ):
            self.exchange.server.enter(alone, 1.0)
            self.pool.ask(self.number, Enter(alone, 1.0))
            self.feeds[phase.source].rows = rows
            yield

    @contextmanager
    def _record(self) -> Iterator[list[Packet]]:
        """Open a context that records what crosses the wire."""
        tap = _FormTap()
        self.exchange.wire.taps.append(tap)
        try:
            yield tap.sent
        finally:
            self.exchange.wire.taps.remove(tap)


def _choose_largest(clients: Sequence[ClientId], rows: np.ndarray) -> ClientId:
    """Return the client that has the most samples, the first of several."""
    some = np.asarray(clients)
    return int(some[rows[some].argmax()])


def _build_refusal(field: str) -> ScenarioError:
    return ScenarioError(
        field,
        "reads weights, and the model is too large to be loaded for a plan; plan it without this "
        "method, or a smaller model with it",
    )


class _FormTap:
    """A tap that keeps the forms of packets."""

    def __init__(self) -> None:
        self.sent: list[Packet] = []

    def observe(self, packet: Packet) -> None:
        """Keep a packet's form."""
        self.sent.append(keep_form(packet))


def keep_form(packet: Packet) -> Packet:
    """Return a packet without its values."""
    return packet.with_tensors(
        tuple(torch.empty_like(tensor, device="meta") for tensor in packet.tensors)
    )


def _keep_form(event: Event) -> Event:
    return event if isinstance(event, Turn) else keep_form(event)


def count_announced(announced: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the forms of what methods announce to a client."""
    return tuple(
        torch.empty_like(tensor, device="meta") for message in announced for tensor in message
    )
