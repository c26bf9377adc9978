"""What the split costs over a plain loop, what many clients cost over one, and their memory.

Blocks of steps of the two sides alternate in one process on the same batches. Both sides must end
at the same loss, or the comparison means nothing.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.plain import PlainLoop
from simsplit.bench.sides import interleaved
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.engine.pool import InlinePool
from simsplit.errors import ProtocolError
from simsplit.packets import ClientId
from simsplit.parties.feed import Feed
from simsplit.phases import Phase
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse

Say = Callable[[str], None]
Figures = dict[str, object]

RESNET = {"kind": "resnet18"}
SIMPLE = {"kind": "simplecnn"}
PROJECTION = [{"kind": "lightsplit", "ratio": 8}]


@dataclass(frozen=True)
class Case:
    """One comparison: what runs, how many steps a block has, how many pairs of blocks."""

    name: str
    model: dict[str, Any]
    batch_size: int
    method: list[dict[str, Any]]
    target: float
    steps: int
    pairs: int = 15
    plugins: Plugins = NO_PLUGINS
    train: Mapping[str, object] = field(default_factory=dict)
    """Fields of `train`, beside the batch's size."""


FAST = {"channels_last": True, "label_smoothing": 0.2, "drop_last": True}
SPLIT = [
    Case("ResNet-18, batch 64, raw", RESNET, 64, [], 1.02, 4),
    Case("ResNet-18, batch 64, LightSplit", RESNET, 64, PROJECTION, 1.02, 4),
    Case("SimpleCNN, batch 64, raw", SIMPLE, 64, [], 1.05, 30, pairs=25),
    Case("SimpleCNN, batch 64, LightSplit", SIMPLE, 64, PROJECTION, 1.05, 30, pairs=25),
    Case("SimpleCNN, batch 16, raw", SIMPLE, 16, [], 1.10, 60, pairs=25),
    Case("SimpleCNN, batch 16, LightSplit", SIMPLE, 16, PROJECTION, 1.10, 60, pairs=25),
    Case("airbench, batch 500, raw", {"kind": "airbench"}, 500, [], 1.03, 1, pairs=7, train=FAST),
]
CROWD = Case("100 clients against 1", SIMPLE, 64, [], 1.05, 50)


COLOUR = ("resnet18", "airbench")
"""Models that are given colour images of 32 pixels; the others get grey ones of 28."""
FURTHER = {"resnet18": 200, "simplecnn": 400}
"""How many further clients of each model the memory is measured of."""


def overhead(
    device: str,
    quick: bool,
    say: Say,
    cases: Sequence[Case] = SPLIT,
    further: Mapping[str, int] = FURTHER,
) -> Iterator[tuple[Table, Figures]]:
    """The three measurements, a table each."""
    where = torch.device(device)
    yield against_plain(where, quick, say, cases)
    yield _many_against_one(where, quick, say)
    yield _memory(say, further)


def against_plain(
    device: torch.device, quick: bool, say: Say, cases: Sequence[Case]
) -> tuple[Table, Figures]:
    """Steps through the cut against steps of the joint network, on the same batches."""
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for case in cases:
        say(f"overhead: {case.name} ...")
        assembler, parts = assembled(case, device, clients=10)
        plain = PlainLoop(assembler, {client: feed_of(parts, client) for client in parts.clients})
        sides = Side(stepper(parts), parts.clients), Side(plain.train, parts.clients)
        measured = in_blocks(sides, case, device, quick)
        _same_loss(parts, plain)
        rows.append(ratio_row(case.name, measured, case.target))
        figures[case.name] = measured | {"target": case.target}
    return Table(
        "the split against a plain loop (10 clients, shared head, round robin)", COLUMNS, rows
    ), figures


def _many_against_one(device: torch.device, quick: bool, say: Say) -> tuple[Table, Figures]:
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for heads, label in (("shared", "SCH"), ("per_client", "PCH")):
        name = f"{CROWD.name}, {label}"
        say(f"overhead: {name} ...")
        crowd, one = (assembled(CROWD, device, clients=count, heads=heads)[1] for count in (100, 1))
        sides = Side(stepper(crowd), crowd.clients), Side(stepper(one), one.clients)
        measured = in_blocks(sides, CROWD, device, quick)
        rows.append(ratio_row(name, measured, CROWD.target))
        figures[name] = measured | {"target": CROWD.target}
    return Table("many clients against one, equal samples", COLUMNS, rows), figures


COLUMNS = ("case", "ratio", "quartiles", "target", "ms per step", "against")


def ratio_row(name: str, measured: dict[str, float], target: float | None) -> tuple[str, ...]:
    """What `ratio_of` found, as `COLUMNS` has it."""
    return (
        name,
        f"{measured['ratio']:.3f}",
        f"{measured['low']:.3f}-{measured['high']:.3f}",
        "" if target is None else f"{target:.2f}",
        f"{measured['ms']:.2f}",
        f"{measured['against_ms']:.2f}",
    )


def in_blocks(
    sides: tuple["Side", "Side"], case: Case, device: torch.device, quick: bool
) -> dict[str, float]:
    """As many steps and pairs as the case has, fewer if quick."""
    steps = max(2, case.steps // 10) if quick else case.steps
    return ratio_of(sides, steps, 3 if quick else case.pairs, device)


def ratio_of(
    sides: tuple["Side", "Side"], steps: int, pairs: int, device: torch.device
) -> dict[str, float]:
    """Times of both sides in alternating blocks, and the quartiles of their ratios."""
    first, other = (partial(side.seconds, steps, device) for side in sides)
    measured = interleaved(first, other, pairs)
    return {
        "ratio": measured.ratio,
        "low": measured.low,
        "high": measured.high,
        "ms": 1000 * measured.first_s / steps,
        "against_ms": 1000 * measured.other_s / steps,
        "pairs": measured.pairs,
        "threads": torch.get_num_threads(),
    }


class Side:
    """One side of a comparison: clients that take their turns, block after block."""

    def __init__(self, step: Callable[[ClientId], None], clients: range) -> None:
        self.step, self.turns = step, cycle(clients)

    def seconds(self, steps: int, device: torch.device) -> float:
        """What the next `steps` steps take."""
        _synchronise(device)
        started = time.perf_counter()
        for client in islice(self.turns, steps):
            self.step(client)
        _synchronise(device)
        return time.perf_counter() - started


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _same_loss(parts: Assembly, plain: PlainLoop) -> None:
    """Both sides have trained on the same batches: their mean losses must agree."""
    reports = [
        report for report in parts.exchange.collect_reports(parts.clients).values() if report
    ]
    samples = sum(report["samples"] for report in reports)
    split = sum(report["train_loss"] * report["samples"] for report in reports) / samples
    joint = plain.loss_sum.item() / samples
    if abs(split - joint) > 1e-3 * abs(joint):
        raise ProtocolError(f"the split ends at loss {split:.6f}, the plain loop at {joint:.6f}")


def stepper(parts: Assembly) -> Callable[[ClientId], None]:
    """One turn of a client as the experiment takes it."""

    def step(client: ClientId) -> None:
        parts.exchange.hand_over(client)
        parts.exchange.step(client)

    return step


def assembled(
    case: Case, device: torch.device, *, clients: int, heads: str = "shared"
) -> tuple[Assembler, Assembly]:
    """A case's live parts, ready to train on random data."""
    given = _scenario(case, clients, heads)
    shape = (3, 32, 32) if case.model["kind"] in COLOUR else (1, 28, 28)
    assembler = Assembler(given, random_data(shape, clients, total=6400), device)
    parts = assembler.assemble()
    parts.exchange.announce(parts.clients, counted=False)
    parts.server.enter(Phase("train", rounds=1), 1.0)
    return assembler, parts


def _scenario(case: Case, clients: int, heads: str) -> Scenario:
    return parse(
        {
            "data": {"source": {"kind": "folder", "path": "random"}},
            "model": case.model,
            "clients": {"count": clients, "heads": heads},
            "method": case.method,
            "train": {"batch_size": case.batch_size, **case.train},
        },
        case.plugins,
    )


def random_data(shape: tuple[int, int, int], clients: int, *, total: int) -> Prepared:
    """Noise with labels, dealt evenly: time does not depend on what an image shows."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.integers(0, 256, (total, *shape), dtype=np.uint8))
    samples = Samples(inputs, torch.from_numpy(rng.integers(0, 10, total)))
    parts = [np.arange(client, total, clients) for client in range(clients)]
    mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
    few = samples.take(np.arange(10))
    held = (samples, None, None, few, parts, mean, std)
    return Prepared("random", DataInfo(shape, 10), *held, class_names=tuple("0123456789"))


def feed_of(parts: Assembly, client: ClientId) -> Feed:
    """A client's batches of its own data."""
    assert isinstance(parts.pool, InlinePool), "benches that look at batches run inline"
    return parts.pool.clients[client].training.feeds["private"]


def _memory(say: Say, further: Mapping[str, int]) -> tuple[Table, Figures]:
    """Resident memory of a process per further client with its own head, against what it owns."""
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for model, count in further.items():
        say(f"overhead: memory per client, {model} ...")
        few, many = (_resident(model, clients) for clients in (10, 10 + count))
        each = (many["resident"] - few["resident"]) / count
        owned = few["owned"]
        figures[f"memory, {model}"] = {"bytes": each, "owned": owned, "ratio": each / owned}
        rows.append(
            (model, f"{each / 1024:.1f}", f"{owned / 1024:.1f}", f"{each / owned:.3f}", "1.10")
        )
    columns = ("own head and tail", "KiB per further client", "KiB it owns", "ratio", "target")
    return Table("memory per further client", columns, rows), figures


def _resident(model: str, clients: int) -> dict[str, float]:
    code = f"from simsplit.bench.memory import main; main({model!r}, {clients})"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    resident, owned = out.stdout.split()
    return {"resident": float(resident), "owned": float(owned)}
