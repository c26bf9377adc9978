"""Two ways to do the same work are timed in alternating blocks, and compared by their ratio.

Alternation makes a drift of the machine's speed affect both sides. Tables give the median of the
pairs' ratios with its quartiles.

The plain loop sets the lower limit of time: the joint network, one optimizer and no cut, on the
same batches in the same order. A method's own layers are part of the network, as they are real work
on both sides.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import nn

from simsplit.assembly import Assembler
from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId
from simsplit.methods.method import Step
from simsplit.methods.stack import Stack
from simsplit.parties.feed import Feed
from simsplit.report.tables import Table

Say = Callable[[str], None]
Figures = dict[str, object]
Block = Callable[[], float]
"""A function that does a block of work, and returns its seconds."""
Stepping = Callable[[ClientId], None]
"""A function that takes a client's next step."""
COLUMNS = ("case", "ratio", "quartiles", "target", "ms per step", "against")


@dataclass
class BenchLines:
    """A bench's table and the figures behind it, case by case."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)

    def add(self, name: str, figures: object, row: tuple[str, ...]) -> None:
        """Add a case: its row, and its figures by name."""
        self.rows.append(row)
        self.figures[name] = figures

    def table(
        self, title: str, columns: tuple[str, ...] = COLUMNS, align: str = ""
    ) -> tuple[Table, Figures]:
        """Return the table and its figures."""
        return Table(title, columns, self.rows, align), self.figures


@dataclass(frozen=True)
class Ratio:
    """The time that the first side takes for each second of the other."""

    ratio: float
    low: float
    high: float
    first_s: float
    other_s: float
    pairs: int

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The ratio, its quartiles, and the seconds of both sides, for a table's row."""
        spread = f"{self.low:.3f}-{self.high:.3f}"
        return f"{self.ratio:.3f}", spread, f"{self.first_s:.2f}", f"{self.other_s:.2f}"

    def invert(self) -> "Ratio":
        """Return how many times as fast the first side is."""
        return Ratio(
            1 / self.ratio, 1 / self.high, 1 / self.low, self.first_s, self.other_s, self.pairs
        )


def time_in_turns(first: Block, other: Block, pairs: int) -> Ratio:
    """Time A B, B A, A B, ... after a block each to warm up."""
    first()
    other()
    times: list[tuple[float, float]] = []
    for pair in range(pairs):
        if pair % 2 == 0:
            one = first()
            times.append((one, other()))
        else:
            two = other()
            times.append((first(), two))
    ratios = sorted(one / two for one, two in times)
    low, middle, high = statistics.quantiles(ratios, n=4) if pairs > 1 else ratios * 3
    return Ratio(
        middle,
        low,
        high,
        statistics.median(one for one, _ in times),
        statistics.median(two for _, two in times),
        pairs,
    )


class BenchSide:
    """One side of a comparison: clients that take their turns, block after block."""

    def __init__(self, step: Stepping, clients: range = range(1)) -> None:
        self.step, self.turns = step, cycle(clients)

    def seconds(self, steps: int, device: torch.device) -> float:
        """Time the next `steps` steps."""
        synchronise(device)
        started = time.perf_counter()
        for client in islice(self.turns, steps):
            self.step(client)
        synchronise(device)
        return time.perf_counter() - started


def ratio_of(
    sides: tuple[BenchSide, BenchSide], steps: int, pairs: int, device: torch.device
) -> dict[str, float]:
    """Time both sides in alternating blocks; return the quartiles of their ratios."""
    first, other = (partial(side.seconds, steps, device) for side in sides)
    measured = time_in_turns(first, other, pairs)
    return {
        "ratio": measured.ratio,
        "low": measured.low,
        "high": measured.high,
        "ms": 1000 * measured.first_s / steps,
        "against_ms": 1000 * measured.other_s / steps,
        "pairs": measured.pairs,
        "threads": torch.get_num_threads(),
    }


def compare_steps(
    first: Stepping, other: Stepping, device: torch.device, quick: bool
) -> dict[str, float]:
    """Time steps of a language model by `ratio_of`; if `quick`, only a few."""
    steps, pairs = (2, 3) if quick else (6, 15)
    return ratio_of((BenchSide(first), BenchSide(other)), steps, pairs, device)


def ratio_row(name: str, measured: dict[str, float], target: float | None) -> tuple[str, ...]:
    """Format the result of `ratio_of` as a row under `COLUMNS`."""
    return (
        name,
        f"{measured['ratio']:.3f}",
        f"{measured['low']:.3f}-{measured['high']:.3f}",
        "" if target is None else f"{target:.2f}",
        f"{measured['ms']:.2f}",
        f"{measured['against_ms']:.2f}",
    )


def refuse_other_loss(loss: float, expected: float, sides: tuple[str, str]) -> None:
    """Raise ProtocolError if two trainings on the same batches end at different losses."""
    if abs(loss - expected) > 1e-3 * abs(expected):
        one, other = sides
        raise ProtocolError(f"{one} ends at loss {loss:.6f}, {other} at {expected:.6f}")


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def share_imports() -> dict[str, str]:
    """Return an environment in which a new process can import what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def call_apart(function: Callable[..., object], *words: object) -> dict[str, Any]:
    """Call a bench's function in its own process, and return the JSON that it prints.

    The process isolates the resident memory of the function.
    """
    module, name = function.__module__, function.__name__
    code = f"from {module} import {name}; {name}(*{words!r})"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=share_imports())
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


class AtTheCut(nn.Module):
    """Both halves of the methods as one layer."""

    def __init__(self, client: Stack, server: Stack) -> None:
        super().__init__()
        self.client, self.server = client, server
        self.learned = nn.ModuleList([client.modules, server.modules])
        self.step = Step(client=0, round=0, number=0, seed=0)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Encode and lift, with no wire between."""
        return self.server.lift(self.client.encode(z, self.step), self.step)


class PlainLoop:
    """A training loop of the joint network, as one would write it by hand."""

    def __init__(self, assembler: Assembler, feeds: dict[ClientId, Feed]) -> None:
        model, cut = assembler.owners.joint()
        self.loss = assembler.owners.loss
        self.net = nn.Sequential(model.head, AtTheCut(*cut), model.trunk, model.tail)
        self.net.train()
        self.optimizer = assembler.scenario.train.server.build(self.net.parameters())
        self.feeds = feeds
        self.taken = dict.fromkeys(feeds, 0)
        self.loss_sum = torch.zeros((), device=assembler.device)

    def train(self, client: ClientId) -> None:
        """Take one step on a client's next batch."""
        batch = self.feeds[client].batch(self.taken[client])
        self.taken[client] += 1
        loss = self.loss(self.net(batch.inputs), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss_sum += loss.detach() * len(batch.labels)


class TextLoop(ABC):
    """A plain loop over one client's texts, with a whole model."""

    optimizer: torch.optim.Optimizer

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.losses: list[torch.Tensor] = []

    @abstractmethod
    def loss_of(self, batch: Batch) -> torch.Tensor:
        """Compute the loss of a batch."""

    def train(self, client: ClientId) -> None:
        """Take one step on the next batch."""
        loss = self.loss_of(self.feed.batch(len(self.losses)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    @property
    def mean_loss(self) -> float:
        """The mean loss over all steps so far."""
        return torch.stack(self.losses).mean().item()
