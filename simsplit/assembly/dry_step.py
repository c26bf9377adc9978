"""A dry step: some real clients and the real server take a step, and nothing of it is kept.

So it is known before a run what crosses, what fails and what diverges. Nothing is computed by
formulas: packets are those of a run's own code.

A step of many operations runs on stand-ins for the segments. What crosses depends on a segment's
shapes alone, so a stand-in returns random numbers, and its weights get gradients of zeros. Methods,
optimizers and the protocol around it are the run's own. A head still embeds its tokens, which costs
nothing, since methods may look at embeddings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from simsplit.assembly.assembler import Assembler
from simsplit.assembly.dry_pass import FEW, walk_segments
from simsplit.assembly.making import Maker
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.client_parts import count_rows
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId
from simsplit.models.shards import is_weightless
from simsplit.packets import Packet
from simsplit.parties.calls import Enter, HandOver, Hear, Probe
from simsplit.parties.client import Client
from simsplit.parties.feed import Exam, Feed
from simsplit.phases import EVALUATE, Phase
from simsplit.protocol import Turn
from simsplit.scenario import Scenario
from simsplit.schedules.exchange import Event, Exchange
from simsplit.seeds import isolate, numpy_rng_for

COSTLY = 20e9
"""Operations of a forecast's steps from which on segments are replaced by stand-ins."""
SLOW = 100e9
"""Operations from which on no step of a forecast is computed at all, however few its samples."""
Events = tuple[Event, ...]


def draw_samples(scenario: Scenario, scope: str, split: str, count: int, info: DataInfo) -> Samples:
    """Draw random images, or random numbers, in the form of the scenario's data."""
    rng, shape = numpy_rng_for(scenario.seed, scope, split), (count, *info.shape)
    labels = torch.arange(count) % info.classes
    if scenario.data.source.modality == "images":
        return Samples(torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8)), labels)
    return Samples(torch.from_numpy(rng.random(shape, np.float32)), labels)


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


class DryStep:
    """The server of a scenario and some of its clients, which take steps."""

    def __init__(self, assembler: Assembler, clients: Sequence[ClientId]) -> None:
        self.assembler, self.scenario, self.numbers = assembler, assembler.scenario, clients
        self.pool = assembler.make_pool(clients)

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange between these clients and the server."""
        return self.assembler.build_exchange(self.pool)

    @contextmanager
    def enter(
        self, phase: Phase, clients: Sequence[ClientId], round_number: int = 1, factor: float = 1.0
    ) -> Iterator[None]:
        """Open a context in a round of a phase, of which each client can then take steps."""
        with self.exchange.moment.enter_round(round_number, phase, clients):
            self.exchange.server.enter(phase, factor)
            self.pool.ask_all(clients, Enter(phase, factor))
            yield


class Prober(DryStep):
    """A client of each cut takes steps on chosen batches, of which forms are kept."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        self.is_weightless = is_weightless()
        self._outputs: dict[ClientId, dict[nn.Module, Tensor]] = {}
        for index, method in enumerate(scenario.method if self.is_weightless else ()):
            if method.reads_tail or method.reads_tokens:
                raise _build_refusal(f"method.{index}.kind")
        assembler = Assembler(scenario, data, torch.device("cpu"))
        owners, supplies = assembler.owners, assembler.supplies
        self._rows = count_rows(data.parts)
        kinds = owners.depths.list_kinds()
        # Of each cut, the client with the most samples.
        super().__init__(assembler, [_choose_largest(kind, self._rows) for kind in kinds])
        pairs = zip(self.numbers[1:], kinds[1:], strict=True)
        self._deeper = {client: number for number, kind in pairs for client in kind}
        self.number: ClientId = _choose_largest(self.numbers, self._rows)
        """The client that takes steps."""
        self.maker = Maker(owners, supplies, assembler.autocast, {})
        # A method may take part in the head's own passes.
        stack = self.client.training.end.stack
        inside = stack.reaches_head or any(each.changes_embeddings for each in stack.smashed)
        if self.is_weightless and inside:
            raise _build_refusal("method")
        for number in self.numbers:
            training = self.pool.clients[number].training
            training.feeds = {n: FixedFeed.of(feed) for n, feed in training.feeds.items()}
            self.pool.ask(number, Hear(self.exchange.server.announce(number)))

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
        return min(self.scenario.train.batch_size, int(self._rows.max(initial=0)))

    @contextmanager
    def replace_if_costly(self, rows: int) -> Iterator[None]:
        """Open a context in which steps of so many rows in all take no time."""
        flops = self.assembler.flops
        costly = 3 * rows * (flops.head + flops.trunk + flops.tail) > COSTLY or self.is_weightless
        if not costly or self.exchange.topology.whole_model:
            yield
            return
        with replace_segments(self._get_outputs(), 2 if self.assembler.owners.info.texts else 1):
            yield

    @property
    def is_slow(self) -> bool:
        """Whether a step of the fewest samples would take long."""
        flops, whole = self.assembler.flops, self.exchange.topology.whole_model
        return not whole and 3 * FEW * (flops.head + flops.trunk + flops.tail) > SLOW

    @property
    def trunk(self) -> nn.Module:
        """The trunk from the client's cut on."""
        return self.assembler.owners.depths.get_rest(self.number)

    def _get_outputs(self) -> dict[nn.Module, Tensor]:
        """Return what the segments put out for a blank batch: the client's, or all parties'."""
        if self.number not in self._outputs:
            owners, made = self.assembler.owners, dict[nn.Module, Tensor]()
            for number in self._steppers:
                end, server = self.pool.clients[number].training.end, self.exchange.server.end
                tail = server.tail if end.tail is None else end.tail
                segments = {"head": end.head, "trunk": self.trunk, "tail": tail}
                for name, output in walk_segments(owners, FEW, number).outputs.items():
                    if (segment := segments[name]) is not None:
                        made[segment] = output
                    if name == "tail" and owners.known_tail is not None:
                        made[owners.known_tail] = output
            self._outputs[self.number] = made
        return self._outputs[self.number]

    def step(self, phase: Phase, rows: Tensor) -> Events:
        """Let the client take a step of a phase on these rows, and return its events."""
        events: list[Event] = []
        with self._enter(phase, rows):
            if self.exchange.parts > 1 and phase.crosses:
                with self._record() as sent:
                    self.exchange.step(self.number)
                events = list[Event](sent)
            else:
                for event in filter(self._is_own, self.exchange.step_by_events(self.number)):
                    events.append(event if isinstance(event, Turn) else keep_form(event))
        self.exchange.collect_reports([self.number])
        return tuple(events)

    def _is_own(self, event: Event) -> bool:
        """Return whether an event is the client's own, and not that of another party."""
        return isinstance(event, Turn) or event.client == self.number

    def step_between(self, phase: Phase, rows: Tensor) -> Events:
        """Let the client take a step of an interleaved phase, which never crosses in parts."""
        with self._in_one_part():
            return self.step(phase, rows)

    def walk(self, phase: Phase, rows: Tensor) -> Iterator[Event]:
        """Let the client take a step on these rows, in one part; yield its events as they come."""
        with self._in_one_part(), self._enter(phase, rows):
            yield from self.exchange.step_by_events(self.number)
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
        for number in self._steppers:
            exam = self._build_exam(number, split, rows)
            self.pool.clients[number].examination.exams = {split: exam}
        # Of several parties one gets the outputs.
        reader = self.number if self.exchange.holder is None else self.exchange.holder
        with (
            self._enter(phase, rows),
            self.exchange.use_reading(reading),
            self.exchange.moment.count_as(EVALUATE),
            self._record() as sent,
        ):
            self.exchange.predict(reader, Probe(split, 1, 0))
        return tuple(filter(self._is_own, sent))

    @property
    def _steppers(self) -> Sequence[ClientId]:
        """The clients of a step: the one that takes it, or all parties."""
        return self.exchange.parties or [self.number]

    def _build_exam(self, number: ClientId, split: str, rows: Tensor) -> Exam:
        """Build the exam of a client on these rows of a split."""
        supplies = self.assembler.supply(number)
        batcher = supplies.batcher(supplies.samples(split), augment=False)
        return Exam(batcher, rows, len(rows), views=self.scenario.evaluate.views)

    @contextmanager
    def _enter(self, phase: Phase, rows: Tensor) -> Iterator[None]:
        """Open a context in a round of a phase, whose batch has these rows."""
        alone = replace(phase, interleaved=None)
        with isolate(self.scenario.seed, "forecast"), self.enter(alone, self._steppers):
            for number in self._steppers:
                feed = self.pool.clients[number].training.feeds[phase.source]
                cast("FixedFeed", feed).rows = rows
            yield

    @contextmanager
    def _in_one_part(self) -> Iterator[None]:
        """Open a context in which a mini-batch crosses in one part."""
        training, parts = self.client.training, self.scenario.train.accumulate
        training.accumulate, self.exchange.parts = 1, 1
        try:
            yield
        finally:
            training.accumulate, self.exchange.parts = parts, parts

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


def drop_values(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the forms of tensors."""
    return tuple(torch.empty_like(tensor, device="meta") for tensor in tensors)


def keep_form(packet: Packet) -> Packet:
    """Return a packet without its values."""
    return packet.with_tensors(drop_values(packet.tensors))


class _MadeUp(torch.autograd.Function):
    """Returns numbers that are made up, with gradients of zeros for all that they stand for."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, *inputs: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        ctx.inputs = inputs
        return made

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Any:  # noqa: ANN401
        inputs: tuple[Tensor, ...] = ctx.inputs  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad[1:]  # type: ignore[attr-defined]
        zeros = [torch.zeros_like(x) if n else None for x, n in zip(inputs, needed, strict=True)]
        return None, *zeros


@contextmanager
def replace_segments(segments: Mapping[nn.Module, Tensor], lead: int) -> Iterator[None]:
    """Open a context in which segments only return random numbers in the form of these outputs.

    The first `lead` axes, samples and tokens of texts, are as long as the input's.
    """
    before = {segment: segment.__dict__.get("forward") for segment in segments}
    for segment, output in segments.items():
        segment.__dict__["forward"] = MethodType(_make_forward(output, lead), segment)
    try:
        yield
    finally:
        for segment, forward in before.items():
            del segment.__dict__["forward"]
            if forward is not None:
                segment.__dict__["forward"] = forward


def _make_forward(output: Tensor, lead: int) -> Any:  # noqa: ANN401 - a method of any module
    def forward(self: nn.Module, x: Tensor, *_beside: object, **_options: object) -> Tensor:
        made = torch.randn(*x.shape[:lead], *output.shape[lead:]).to(output.dtype)
        weights = [weight for weight in self.parameters() if weight.requires_grad]
        tokens = getattr(self, "tokens", None)
        if isinstance(tokens, nn.Module) and not x.is_floating_point():
            x = tokens(x)
        given = [x] if x.is_floating_point() else []
        made_up: Tensor = _MadeUp.apply(made, *given, *weights)
        return made_up

    return forward
