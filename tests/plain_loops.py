"""Plain PyTorch loops over the batches that a run's clients take: what a course must come to."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders import TINY, enter_round, scenario
from torch import Tensor, nn

from simsplit.bench.overhead import feed_of
from simsplit.data import Prepared, prepare
from simsplit.data.batches import Batch
from simsplit.experiment import Experiment
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import CountSteps, OwnState, SharedState
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.wire import Wire

Weights = dict[str, Tensor]
SEGMENTS = ("head", "trunk", "tail")
SMALL: dict[str, Any] = {
    "train": {"batch_size": 8},
    "schedule": {"kind": "parallel", "rounds": 2},
    "checkpoint": {"every": 0},
    "evaluate": {"every": 0},
}
UNEQUAL = (21, 13, 6)
"""Samples of three clients: 3, 2 and 1 batches of 8, none of them whole at the end."""


@functools.cache
def _digits() -> Prepared:
    data = prepare(scenario().data, 1, TINY["seed"])
    return replace(data, test=data.test.take(np.arange(20)))


def begin(path: Path, sizes: Sequence[int] = UNEQUAL, **changes: Any) -> Experiment:
    """Build a run that has not started, of clients with so many samples each."""
    values = merge(merge(merge(TINY, SMALL), {"clients": {"count": len(sizes)}}), changes)
    values["schedule"] = {"rounds": SMALL["schedule"]["rounds"], **values["schedule"]}
    ends = np.cumsum(sizes)
    rows = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return Experiment(parse(values), path, (), replace(_digits(), parts=rows))


def train(path: Path, sizes: Sequence[int] = UNEQUAL, **changes: Any) -> Experiment:
    """Run `begin`'s run to its end."""
    run = begin(path, sizes, **changes)
    run.run(resume=False)
    return run


@dataclass
class Net:
    """The three segments, and an optimizer for each side."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module
    client: torch.optim.Optimizer
    server: torch.optim.Optimizer
    proximal: float = 0.0
    anchor: dict[str, Tensor] = field(default_factory=dict)

    def hold(self, segments: Sequence[str]) -> None:
        """Pull these segments to their present values by the proximal term from now on."""
        result = self.parameters.items()
        self.anchor = {n: p.detach().clone() for n, p in result if n.split(".")[0] in segments}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{segment}.{name}": parameter
            for segment in SEGMENTS
            for name, parameter in getattr(self, segment).named_parameters()
        }

    def step(self, batch: Batch) -> float:
        """Take one step of everything on the batch's mean loss, and return the loss."""
        loss = self.loss(self.trunk(self.head(batch.inputs)), batch)
        loss.backward()
        self.learn(self.client, self.server)
        return loss.item()

    def loss(self, features: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(self.tail(features), batch.labels)

    def learn(self, *optimizers: torch.optim.Optimizer) -> None:
        for name, tensor in self.anchor.items():  # FedProx: mu / 2 |w - w of the round's start|^2
            parameter = self.parameters[name]
            parameter.grad = parameter.grad + self.proximal * (parameter.detach() - tensor)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def weights(self, segments: Sequence[str] = SEGMENTS) -> Weights:
        """Return the live weights, under a run's names."""
        return {
            f"{segment}.{name}": tensor
            for segment in segments
            for name, tensor in getattr(self, segment).state_dict().items()
        }

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in; optimizers stay what they are."""
        for name, tensor in self.weights().items():
            if name in weights:
                tensor.copy_(weights[name])


def net(run: Experiment, served: Net | None = None) -> Net:
    """Build the network as a run begins with it, on `served`'s half of the server if given."""
    given = run.scenario
    model = given.model.build(run.data.info.shape, run.data.info.classes, given.seed)
    vanilla = given.topology == "vanilla"
    own, theirs = [model.head], [model.trunk]
    (theirs if vanilla else own).append(model.tail)
    client = given.train.client.build(_parameters(own))
    if served is not None:
        tail = served.tail if vanilla else model.tail
        return Net(model.head, served.trunk, tail, client, served.server)
    server = given.train.server.build(_parameters(theirs))
    return Net(model.head, model.trunk, model.tail, client, server)


def nets_on_one_trunk(run: Experiment) -> list[Net]:
    """Build a net for each client, by number, all with the same server."""
    first = net(run)
    return [first, *(net(run, first) for _ in run.clients[1:])]


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def batch(run: Experiment, client: ClientId, number: int) -> Batch:
    """Return a client's batch `number`, from 0."""
    result: Batch = feed_of(run.parts, client).batch(number)
    return result


def epoch(run: Experiment, client: ClientId, number: int) -> list[Batch]:
    """Return all batches of a client's pass `number` over its data."""
    steps = run.parts.pool.ask(client, CountSteps("private"))
    return [batch(run, client, number * steps + each) for each in range(steps)]


def average(parts: Sequence[tuple[Mapping[str, Tensor], int]]) -> Weights:
    """Compute the mean weighted by samples; integers are rounded."""
    total = sum(samples for _, samples in parts)
    mean = {}
    for name, first in parts[0][0].items():
        exact = sum(weights[name].double() * samples for weights, samples in parts) / total
        assert isinstance(exact, Tensor)
        mean[name] = (exact if first.is_floating_point() else exact.round()).to(first.dtype)
    return mean


def moments(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """Return all tensors that optimizers keep, parameter by parameter."""
    return [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


def weights_of(run: Experiment, client: ClientId = 0) -> Weights:
    """Return a run's weights: the server's, and those that a client now trains with."""
    state = run.parts.pool.ask(client, OwnState())
    own = {name.removeprefix("own.0."): tensor for name, tensor in state.items()}
    both = own | run.parts.pool.ask(client, SharedState()) | run.parts.server.learner.weights()
    return {n: t.detach() for n, t in both.items() if n.split(".")[0] in (*SEGMENTS, "method")}


@dataclass
class _Training:
    """A tap that keeps what training sends."""

    wire: Wire
    packets: list[Packet] = field(default_factory=list)

    def observe(self, packet: Packet) -> None:
        if self.wire.moment.is_training:
            self.packets.append(packet)


def watch(run: Experiment) -> list[Packet]:
    """Run to the end, and return what crosses the wire in training, in order."""
    tap = _Training(run.parts.wire)
    run.parts.wire.taps.append(tap)
    run.run(resume=False)
    return [packet for packet in tap.packets if packet.round]  # 0 is before training


def train_round(run: Experiment, number: int) -> None:
    """Train and average for a round, without its evaluation and tables."""
    run.parts.course.run(enter_round(run, number), lambda done, total: None)


def table(run: Experiment, name: str) -> str:
    """Read a table from its file."""
    return (run.path / f"{name}.csv").read_text()


def rounds_of(run: Experiment, columns: Sequence[str]) -> list[list[float]]:
    """Return columns of the `rounds` table."""
    result: list[list[float]] = Run.load(run.path).rounds[list(columns)].to_numpy().tolist()
    return result


def figures(given: Scenario) -> list[str]:
    """Return the figures of training and evaluation, without bytes and times."""
    return ["steps", "samples", "train_loss", "train_accuracy", *given.figures]


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Assert equal names, and tensors that are equal to the bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Assert equality but for the order in which floats are added."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)
