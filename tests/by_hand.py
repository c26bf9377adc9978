"""One client and one server put together without a scenario, for what no scenario can express."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from simsplit.data import Samples
from simsplit.data.batches import Batcher
from simsplit.engine.pool import InlinePool
from simsplit.legs import Leg
from simsplit.methods.method import Method
from simsplit.methods.stack import Stack
from simsplit.packets import Packet
from simsplit.parties.client import Client
from simsplit.parties.client_end import ClientParts
from simsplit.parties.feed import Exam, Feed
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import OptimizerConfig, SgdConfig
from simsplit.parties.server import Server
from simsplit.phases import Phase
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import isolate, rng_for
from simsplit.topologies import Topology
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.wire import Wire

CPU = torch.device("cpu")
SGD = SgdConfig(lr=0.1, momentum=0.9)


@dataclass
class Recorder:
    """A tap that keeps copies."""

    packets: list[Packet] = field(default_factory=list)

    def observe(self, packet: Packet) -> None:
        copies = tuple(tensor.clone() for tensor in packet.tensors)
        self.packets.append(Packet(packet.client, packet.leg, packet.round, packet.step, copies))

    @property
    def legs(self) -> list[Leg]:
        return [packet.leg for packet in self.packets]

    def on(self, leg: Leg) -> list[Packet]:
        return [packet for packet in self.packets if packet.leg is leg]


@dataclass
class Segments:
    """Three small segments; the same weights every time."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module


def segments(dropout: float = 0.0) -> Segments:
    """Build 16 pixels to 8 values, through a trunk that is not linear, to 3 classes."""
    with isolate(0, "segments"):
        return Segments(
            nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(dropout)),
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)),
            nn.Sequential(nn.Dropout(dropout), nn.Linear(8, 3)),
        )


def samples(count: int = 24) -> Samples:
    """Draw images of uniform noise, with random labels."""
    rng = rng_for(0, "samples")
    inputs = torch.randint(256, (count, 1, 4, 4), generator=rng, dtype=torch.uint8)
    return Samples(inputs, torch.randint(3, (count,), generator=rng))


def feed(count: int = 24, batch_size: int = 8, *, drop_last: bool = False) -> Feed:
    """Build batches of `samples`, all of one client."""
    batcher = Batcher(samples(count), mean=(0.5,), std=(0.25,))
    part = torch.arange(count)
    return Feed(batcher, part, batch_size=batch_size, seed=0, client=0, drop_last=drop_last)


@dataclass
class Cut:
    """Both sides of one cut, and what crossed it."""

    parts: Segments
    client: Client
    server: Server
    exchange: Exchange
    tap: Recorder

    def enter(self, phase: Phase) -> None:
        self.client.training.enter(phase, 1.0)
        self.server.enter(phase, 1.0)
        self.exchange.moment.phase = phase

    def train(self, steps: int = 1) -> "Cut":
        for _ in range(steps):
            self.exchange.step(0)
        return self

    def state(self) -> dict[str, Tensor]:
        """Copy all tensors that both sides own."""
        both = {f"client.{name}": tensor for name, tensor in self.client.keeping.state().items()}
        both |= {f"server.{name}": tensor for name, tensor in self.server.learner.state().items()}
        return {name: tensor.clone() for name, tensor in both.items()}


def cut(
    parts: Segments | None = None,
    methods: Sequence[Method] = (),
    *,
    optimizer: OptimizerConfig = SGD,
    clip_norm: float | None = None,
    split_learner: bool = False,
    topology: Topology = U_SHAPED,
) -> Cut:
    """Build a client and a server; `methods` are the client's, the server's do nothing."""
    parts = parts or segments()
    stack = Stack(methods, (), "client")
    tail = {"tail": parts.tail}
    own, served = (tail, {}) if topology.tail_with_client else ({}, tail)
    modules = {"head": parts.head, **own, "method": stack.modules}
    sets = [{name: modules[name]} for name in modules] if split_learner else [modules]
    learners = tuple(Learner(each, optimizer, clip_norm) for each in sets)
    owned = ClientParts(parts.head, own.get("tail"), stack, learners)
    loss = nn.functional.cross_entropy
    exam = Exam(Batcher(samples(8), mean=(0.5,), std=(0.25,)), torch.arange(8), 8)
    client = Client.of(
        topology.client(0, owned, loss, seed=1, device=CPU),
        owned,
        topology.select_protocols(has_labels=True),
        {"private": feed()},
        {"test": exam},
    )
    end = topology.server(
        parts.trunk,
        served.get("tail"),
        Stack([Method() for _ in methods], (), "server"),
        Learner({"trunk": parts.trunk, **served}, optimizer, clip_norm),
        loss,
        seed=2,
        device=CPU,
    )
    tap, server = Recorder(), Server(end, topology.returned)
    exchange = Exchange(InlinePool({0: client}), server, Wire([tap]), topology)
    exchange.moment.round = 1
    return Cut(parts, client, server, exchange, tap)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether two states agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def list_changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the names whose tensors differ, or that only one has."""
    common = before.keys() & after.keys()
    return (before.keys() ^ after.keys()) | {
        name for name in common if not torch.equal(before[name], after[name])
    }
