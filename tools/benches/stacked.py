"""Steps of a cohort: clients stacked as one tensor, one after another, and a plain loop.

All three take the same batches with the same optimizers and end at the same loss. A block is a
round: the clients' weights are stacked in its first step, and brought back with the reports at its
end. The plain loop has a head, a tail and an optimizer for each client, and nothing of a simulator.
Images and tables share a trunk; with texts each client has adapters of its own in all segments.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benches.few_of_many import compare_growth
from benches.flower_messages import flower_messages
from simsplit.assembly import Assembler, Assembly
from simsplit.bench.bench_scenarios import random_images, random_texts, scenario
from simsplit.bench.sides import (
    BenchLines,
    Figures,
    Ratio,
    Say,
    refuse_other_loss,
    synchronise,
    time_in_turns,
)
from simsplit.data import DataInfo, Prepared
from simsplit.data.samples import IGNORED, Samples
from simsplit.engine.pool import InlinePool, Job
from simsplit.models.frozen import copy_learning
from simsplit.parties.calls import Enter
from simsplit.phases import Phase
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

MOMENTUM = {"kind": "sgd", "lr": 0.01, "momentum": 0.9}
ADAM = {"kind": "adam", "lr": 0.002}
WIDTH, CLASSES = 30, 10
"""Numbers in a row of a table, and its classes."""
BATCHES = 8
"""Batches that each client has."""


@dataclass(frozen=True)
class CrowdCase:
    """One comparison: its network and clients, and how many times as fast stacks should be."""

    name: str
    model: dict[str, Any]
    batch_size: int
    optimizer: dict[str, Any]
    against_loop: float
    """The target against one client after another."""
    against_plain: float
    clients: int = 100
    steps: int = 10
    pairs: int = 9

    @property
    def reads_texts(self) -> bool:
        """Whether samples are texts, whose clients have a trunk each."""
        return bool(self.model["kind"] == "causal_lm")


MLP: dict[str, Any] = {"kind": "mlp", "widths": [64, 32, 64, 32], "head": 2, "tail": 1}
CNN: dict[str, Any] = {"kind": "simplecnn"}
LORA: dict[str, Any] = {
    "kind": "causal_lm",
    "sizes": {"width": 64, "layers": 4},
    "head": 1,
    "tail": 1,
    "lora": {"rank": 4},
}
LENGTH = 32
"""The most tokens of a text; each has between half as many and these."""
ON_GPU = CrowdCase("SimpleCNN, batch 64", CNN, 64, MOMENTUM, 4, 4, steps=2, pairs=5)
CASES = [
    CrowdCase("table MLP, batch 16, momentum", MLP, 16, MOMENTUM, 5, 3),
    CrowdCase("table MLP, batch 16, Adam", MLP, 16, ADAM, 5, 3),
    CrowdCase("table MLP, batch 4, Adam", MLP, 4, ADAM, 5, 3),
    CrowdCase("table MLP, batch 16, Adam, 10 clients", MLP, 16, ADAM, 1, 1, clients=10),
    CrowdCase("SimpleCNN, batch 4", CNN, 4, MOMENTUM, 1.5, 1.2, steps=3, pairs=5),
    CrowdCase("SimpleCNN, batch 16", CNN, 16, MOMENTUM, 1, 1, steps=2, pairs=3),
    CrowdCase("LoRA heads of a transformer, batch 4", LORA, 4, ADAM, 2, 1.5, steps=4, pairs=3),
]


VARIANTS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("a trunk each (splitfed_v1)", "splitfed_v1", []),
    ("noise", "fused", [{"kind": "noise"}]),
    ("lightsplit", "fused", [{"kind": "lightsplit", "ratio": 4}]),
    ("quantise to 8 bits", "fused", [{"kind": "quantise"}]),
    ("a loss at the cut, client by client", "fused", [{"kind": "wcc", "weight": 0.1}]),
]


class OneByOne:
    """The plain loop: each client's head, tail and optimizer, and one trunk for all."""

    def __init__(self, parts: Assembly, assembler: Assembler) -> None:
        assert isinstance(parts.pool, InlinePool), "benches that look at batches run inline"
        owners, train = assembler.owners, assembler.scenario.train
        self.feeds = [parts.pool.clients[c].training.feeds["private"] for c in parts.clients]
        made = [owners.build_client_parts(client) for client in parts.clients]
        self.pairs = [(each.head.train(), each.tail.train()) for each in made if each.tail]
        model, _ = owners.joint()
        self.trunk, self.loss = model.trunk.train(), model.loss
        self.own = [
            train.client.build([*head.parameters(), *tail.parameters()])
            for head, tail in self.pairs
        ]
        self.optimizer = train.server.build(self.trunk.parameters())
        self.taken = 0

    def step(self) -> float:
        """Take a step of every client, and of the trunk on the mean of all rows."""
        batches = [feed.batch(self.taken) for feed in self.feeds]
        sent = [head(b.inputs) for (head, _), b in zip(self.pairs, batches, strict=True)]
        features = self.trunk(torch.cat(sent)).split([len(each) for each in sent])
        losses = [
            self.loss(tail(x), b.labels)
            for (_, tail), x, b in zip(self.pairs, features, batches, strict=True)
        ]
        torch.stack(losses).sum().backward()
        for parameter in self.trunk.parameters():
            assert parameter.grad is not None, "every client's loss depends on the trunk"
            parameter.grad.div_(len(losses))  # batches have one size
        for optimizer in (*self.own, self.optimizer):
            optimizer.step()
            optimizer.zero_grad()
        self.taken += 1
        return torch.stack(losses).mean().item()


class EachApart(OneByOne):
    """The plain loop with a trunk for each client; all trunks are equal when a round begins."""

    def __init__(self, parts: Assembly, assembler: Assembler, steps: int) -> None:
        super().__init__(parts, assembler)
        self.steps, server = steps, assembler.scenario.train.server
        self.trunks = [copy_learning(self.trunk) for _ in self.pairs]
        self.learned = [[p for p in each.parameters() if p.requires_grad] for each in self.trunks]
        self.start = [p.detach().clone() for p in self.learned[0]]
        self.theirs = [server.build(each) for each in self.learned]

    def step(self) -> float:
        """Take a step of every client, one after another."""
        if self.taken % self.steps == 0:
            for learned in self.learned:
                torch._foreach_copy_([p.detach() for p in learned], self.start)
        losses = []
        for place, (head, tail) in enumerate(self.pairs):
            batch = self.feeds[place].batch(self.taken)
            loss = self.loss(tail(self.trunks[place](head(batch.inputs))), batch.labels)
            loss.backward()
            for optimizer in (self.own[place], self.theirs[place]):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        self.taken += 1
        return torch.stack(losses).mean().item()


class Laps:
    """A run's clients, which take round after round of so many laps."""

    def __init__(self, assembler: Assembler, steps: int) -> None:
        self.parts, self.steps, self.loss = assembler.assemble(), steps, 0.0
        phase = Phase("train", rounds=1)
        self.parts.exchange.announce(self.parts.clients, counted=False)
        self.parts.server.enter(phase, 1.0)
        self.parts.pool.enter(self.parts.clients, Enter(phase, 1.0))

    def run(self) -> None:
        """Take a round, and collect the clients' reports."""
        for _ in range(self.steps):
            self.parts.exchange.step_together(self.parts.clients)
        reports = self.parts.exchange.collect_reports(self.parts.clients)
        self.loss = float(np.mean([report["train_loss"] for report in reports.values()]))


class Copies(Laps):
    """A run's clients, which take whole rounds against copies of the trunk."""

    def run(self) -> None:
        """Take a round; copies begin with the server's weights."""
        phase, learner = Phase("train", rounds=1), self.parts.server.learner
        trunk = {name: tensor.clone() for name, tensor in learner.weights().items()}
        jobs = {client: Job(1, self.steps, phase, 1.0) for client in self.parts.clients}
        outcomes = dict(self.parts.pool.train_rounds(jobs, trunk))
        learner.take(trunk)
        losses = [outcome.report["train_loss"] for outcome in outcomes.values()]
        self.loss = float(np.mean(losses))


def crowds(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Measure stacked clients beside other ways; on a processor also how their cost grows, and what
    the same training takes in Flower's simulation.
    """
    yield compare_cases(device, quick, say, CASES if device == "cpu" else [ON_GPU, *CASES])
    if device == "cpu":
        yield compare_variants(quick, say)
        yield compare_growth(quick, say)
        yield flower_messages(quick, say)


def compare_cases(
    device: str, quick: bool, say: Say, cases: Sequence[CrowdCase]
) -> tuple[Table, Figures]:
    """Compare a round of stacked clients with one client after another, and with a plain loop."""
    lines = BenchLines()
    for case in cases:
        say(f"crowds: {case.name} ...")
        measured = _measure(case, torch.device(device), 3 if quick else case.pairs)
        of_loop, of_plain = measured
        each = 1e6 / case.steps / case.clients
        row = (
            case.name,
            *(f"{of_loop.ratio:.2f}", f"{of_loop.low:.2f}-{of_loop.high:.2f}"),
            f"{case.against_loop:g}",
            *(f"{of_plain.ratio:.2f}", f"{of_plain.low:.2f}-{of_plain.high:.2f}"),
            f"{case.against_plain:g}",
            *(f"{each * s:.0f}" for s in (of_loop.first_s, of_loop.other_s, of_plain.other_s)),
        )
        lines.add(case.name, {"loop": of_loop.ratio, "plain": of_plain.ratio}, row)
    columns = (
        *("case", "loop/stacked", "quartiles", "target", "plain/stacked", "quartiles", "target"),
        *("us a client, stacked", "loop", "plain"),
    )
    return lines.table("a step of a crowd, stacked", columns)


def compare_variants(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Compare rounds with methods, and with a trunk each, stacked and one client after another."""
    lines, case, device = BenchLines(), CASES[0], torch.device("cpu")
    for name, aggregation, method in VARIANTS:
        say(f"crowds: {case.name}, {name} ...")
        given = _build_scenario(case, aggregation, method)
        data, kind = _make_data(given, case), Laps if aggregation == "fused" else Copies
        stacked, loop = (
            kind(Assembler(given, data, device, stacks=stacks), case.steps)
            for stacks in (True, False)
        )
        blocks = [partial(_time, each.run, device) for each in (stacked, loop)]
        ratio = time_in_turns(blocks[0], blocks[1], 3 if quick else case.pairs).invert()
        refuse_other_loss(stacked.loss, loop.loss, ("stacked clients", "one after another"))
        each = 1e6 / case.steps / case.clients
        times = (f"{each * s:.0f}" for s in (ratio.first_s, ratio.other_s))
        row = (name, f"{ratio.ratio:.2f}", f"{ratio.low:.2f}-{ratio.high:.2f}", *times)
        lines.add(name, {"loop": ratio.ratio}, row)
    columns = ("variant", "loop/stacked", "quartiles", "us a client, stacked", "loop")
    return lines.table(f"variants of the step, {case.name}", columns)


def compare_ways(case: CrowdCase, device: torch.device, pairs: int) -> Ratio:
    """Time whole laps of stacked clients against those of one after another."""
    given = _build_scenario(case)
    data, kind = _make_data(given, case), Copies if case.reads_texts else Laps
    stacked, loop = (
        kind(Assembler(given, data, device, stacks=way), case.steps) for way in (True, False)
    )
    blocks = [partial(_time, work, device) for work in (stacked.run, loop.run)]
    measured = time_in_turns(blocks[0], blocks[1], pairs).invert()
    refuse_other_loss(stacked.loss, loop.loss, ("stacked clients", "one after another"))
    return measured


def _measure(case: CrowdCase, device: torch.device, pairs: int) -> tuple[Ratio, Ratio]:
    """Time stacked clients against one after another, and against the plain loop."""
    of_loop = compare_ways(case, device, pairs)
    given = _build_scenario(case)
    assembler = Assembler(given, _make_data(given, case), device)
    fresh = (Copies if case.reads_texts else Laps)(assembler, case.steps)
    plain, losses = OneByOne(fresh.parts, assembler), [0.0]
    if case.reads_texts:
        plain = EachApart(fresh.parts, assembler, case.steps)

    def run_plain() -> None:
        losses[0] = sum(plain.step() for _ in range(case.steps)) / case.steps

    blocks = [partial(_time, work, device) for work in (fresh.run, run_plain)]
    of_plain = time_in_turns(blocks[0], blocks[1], pairs).invert()
    refuse_other_loss(fresh.loss, losses[0], ("stacked clients", "the plain loop"))
    return of_loop, of_plain


def _time(work: Callable[[], None], device: torch.device) -> float:
    synchronise(device)
    begun = time.process_time() if device.type == "cpu" else time.perf_counter()
    work()
    synchronise(device)
    ended = time.process_time() if device.type == "cpu" else time.perf_counter()
    return ended - begun


def _build_scenario(
    case: CrowdCase, aggregation: str = "fused", method: Sequence[dict[str, Any]] = ()
) -> Scenario:
    more: dict[str, Any] = {}
    if case.reads_texts:
        aggregation = "splitfed_v1"
        more["data"] = {"source": {"kind": "python_docs", "task": "language", "length": LENGTH}}
    return scenario(
        case.model,
        case.batch_size,
        {"count": case.clients, "heads": "per_client"},
        aggregation={"kind": aggregation},
        schedule={"kind": "parallel"},
        engine={"kind": "inline", "stack": case.clients},
        train={"client": case.optimizer, "server": case.optimizer},
        method=method,
        **more,
    )


def _make_data(given: Scenario, case: CrowdCase) -> Prepared:
    """Make noise with labels: rows of a table for linear layers, else images."""
    total = case.clients * case.batch_size * BATCHES
    parts = [np.arange(client, total, case.clients) for client in range(case.clients)]
    if case.reads_texts:
        return replace(_cut_texts(random_texts(given, LENGTH, total)), parts=parts)
    if case.model["kind"] != "mlp":
        return random_images(given, total)
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.standard_normal((total, WIDTH), dtype=np.float32))
    samples = Samples(rows, torch.from_numpy(rng.integers(0, CLASSES, total)))
    held = (samples, None, None, samples.take(np.arange(10)), parts, (), ())
    return Prepared("random", DataInfo((WIDTH,), CLASSES), *held)


def _cut_texts(data: Prepared) -> Prepared:
    """Give each training text a length of its own."""
    samples = data.train
    assert samples.texts is not None, "only texts are cut"
    drawn = np.random.default_rng(0).integers(LENGTH // 2, LENGTH + 1, len(samples))
    lengths = torch.from_numpy(drawn)
    # Of a text's last token no next one is known.
    labels = samples.labels.where(torch.arange(LENGTH) < lengths[:, None] - 1, IGNORED)
    texts = replace(samples.texts, lengths=lengths)
    return replace(data, train=Samples(samples.inputs, labels, texts))
