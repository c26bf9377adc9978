"""This bench compares the split with a plain loop, and many clients with one, also in memory.

Blocks of steps of the two sides alternate in one process on the same batches. Both sides must end
at the same loss, or the comparison means nothing.
"""

import contextlib
import ctypes
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.bench_scenarios import random_images, scenario
from simsplit.bench.parties import CASES as PARTIES
from simsplit.bench.parties import PartiesCase, compare_parties
from simsplit.bench.sides import (
    BenchLines,
    BenchSide,
    Figures,
    PlainLoop,
    Say,
    call_apart,
    ratio_of,
    ratio_row,
    refuse_other_loss,
)
from simsplit.engine.pool import InlinePool
from simsplit.legs import ClientId
from simsplit.machine import read_resident_bytes
from simsplit.parties.calls import OwnState
from simsplit.parties.feed import Feed
from simsplit.phases import Phase
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.tables import Table

RESNET = {"kind": "resnet18"}
SIMPLE = {"kind": "simplecnn"}
PROJECTION = [{"kind": "lightsplit", "ratio": 8}]
STEPS_OF_PLUGINS = 30
"""The steps of a block with a plugin's part, whose default options are measured."""


@dataclass(frozen=True)
class OverheadCase:
    """One comparison: its scenario, the steps of a block, and the pairs of blocks."""

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
    OverheadCase("ResNet-18, batch 64, raw", RESNET, 64, [], 1.02, 4),
    OverheadCase("ResNet-18, batch 64, LightSplit", RESNET, 64, PROJECTION, 1.02, 4),
    OverheadCase("SimpleCNN, batch 64, raw", SIMPLE, 64, [], 1.05, 30, pairs=25),
    OverheadCase("SimpleCNN, batch 64, LightSplit", SIMPLE, 64, PROJECTION, 1.05, 30, pairs=25),
    OverheadCase("SimpleCNN, batch 16, raw", SIMPLE, 16, [], 1.10, 60, pairs=25),
    OverheadCase("SimpleCNN, batch 16, LightSplit", SIMPLE, 16, PROJECTION, 1.10, 60, pairs=25),
    OverheadCase(
        "airbench, batch 500, raw", {"kind": "airbench"}, 500, [], 1.03, 1, pairs=7, train=FAST
    ),
]
CROWD = OverheadCase("100 clients against 1", SIMPLE, 64, [], 1.05, 50)
FURTHER = {"resnet18": 200, "simplecnn": 400}
"""For each model, the number of further clients whose memory is measured."""


def overhead(
    device: str,
    quick: bool,
    say: Say,
    cases: Sequence[OverheadCase] = SPLIT,
    further: Mapping[str, int] = FURTHER,
    *,
    parties: Sequence[PartiesCase] = PARTIES,
) -> Iterator[tuple[Table, Figures]]:
    """Measure four tables: against a plain loop, parties, many clients against one, and memory."""
    where = torch.device(device)
    yield against_plain(where, quick, say, cases)
    yield compare_parties(where, quick, say, parties)
    yield _compare_many_with_one(where, quick, say)
    yield _measure_memory(say, further)


def against_plain(
    device: torch.device, quick: bool, say: Say, cases: Sequence[OverheadCase]
) -> tuple[Table, Figures]:
    """Compare steps through the cut with steps of the joint network, on the same batches."""
    lines = BenchLines()
    for case in cases:
        say(f"overhead: {case.name} ...")
        assembler, parts = assemble_case(case, device, clients=10)
        plain = PlainLoop(assembler, {client: feed_of(parts, client) for client in parts.clients})
        sides = BenchSide(stepper(parts), parts.clients), BenchSide(plain.train, parts.clients)
        measured = in_blocks(sides, case, device, quick)
        _refuse_other_loss(parts, plain)
        row = ratio_row(case.name, measured, case.target)
        lines.add(case.name, measured | {"target": case.target}, row)
    return lines.table("the split against a plain loop (10 clients, shared head, round robin)")


def _compare_many_with_one(device: torch.device, quick: bool, say: Say) -> tuple[Table, Figures]:
    lines = BenchLines()
    for heads, label in (("shared", "SCH"), ("per_client", "PCH")):
        name = f"{CROWD.name}, {label}"
        say(f"overhead: {name} ...")
        pair = [assemble_case(CROWD, device, clients=n, heads=heads)[1] for n in (100, 1)]
        crowd, one = (BenchSide(stepper(parts), parts.clients) for parts in pair)
        measured = in_blocks((crowd, one), CROWD, device, quick)
        row = ratio_row(name, measured, CROWD.target)
        lines.add(name, measured | {"target": CROWD.target}, row)
    return lines.table("many clients against one, equal samples")


def in_blocks(
    sides: tuple[BenchSide, BenchSide], case: OverheadCase, device: torch.device, quick: bool
) -> dict[str, float]:
    """Time both sides with a case's steps and pairs, or fewer if quick."""
    steps = max(2, case.steps // 10) if quick else case.steps
    return ratio_of(sides, steps, 3 if quick else case.pairs, device)


def _refuse_other_loss(parts: Assembly, plain: PlainLoop) -> None:
    """Raise ProtocolError unless both sides have the same mean loss on the same batches."""
    reports = [*filter(None, parts.exchange.collect_reports(parts.clients).values())]
    samples = sum(report["samples"] for report in reports)
    split = sum(report["train_loss"] * report["samples"] for report in reports) / samples
    joint = plain.loss_sum.item() / samples
    refuse_other_loss(split, joint, ("the split", "the plain loop"))


def stepper(parts: Assembly) -> Callable[[ClientId], None]:
    """Return a function that runs one turn of a client as an experiment does."""

    def step(client: ClientId) -> None:
        parts.exchange.hand_over(client)
        parts.exchange.step(client)

    return step


def assemble_case(
    case: OverheadCase, device: torch.device, *, clients: int, heads: str = "shared"
) -> tuple[Assembler, Assembly]:
    """Assemble a case, ready to train on random data."""
    given = scenario(
        case.model,
        case.batch_size,
        {"count": clients, "heads": heads},
        plugins=case.plugins,
        method=case.method,
        train=case.train,
    )
    assembler = Assembler(given, random_images(given, 6400), device)
    parts = assembler.assemble()
    parts.exchange.announce(parts.clients, counted=False)
    parts.server.enter(Phase("train", rounds=1), 1.0)
    return assembler, parts


def feed_of(parts: Assembly, client: ClientId) -> Feed:
    """Return the feed of a client's own data."""
    assert isinstance(parts.pool, InlinePool), "benches that look at batches run inline"
    return parts.pool.clients[client].training.feeds["private"]


def _measure_memory(say: Say, further: Mapping[str, int]) -> tuple[Table, Figures]:
    """Compare the resident memory of each further client with the tensors that it owns."""
    lines = BenchLines()
    for model, count in further.items():
        say(f"overhead: memory per client, {model} ...")
        few, many = (call_apart(hold_clients, model, clients) for clients in (10, 10 + count))
        each = (many["resident"] - few["resident"]) / count
        owned, ratio = few["owned"], each / few["owned"]
        figures = {"bytes": each, "owned": owned, "ratio": ratio}
        row = (model, f"{each / 1024:.1f}", f"{owned / 1024:.1f}", f"{ratio:.3f}", "1.10")
        lines.add(f"memory, {model}", figures, row)
    columns = ("own head and tail", "KiB per further client", "KiB it owns", "ratio", "target")
    return lines.table("memory per further client", columns)


def hold_clients(model: str, clients: int) -> None:
    """Hold many clients after a step each; print resident bytes, and what one client owns."""
    torch.set_num_threads(1)
    given = scenario(model, 4, {"count": clients, "heads": "per_client"})
    parts = Assembler(given, random_images(given, 4000), torch.device("cpu")).assemble()
    parts.server.enter(Phase("train", rounds=1), 1.0)
    for client in parts.clients:
        parts.exchange.step(client)
    gc.collect()
    owned = sum(tensor.nbytes for tensor in parts.pool.ask(0, OwnState()).values())
    with contextlib.suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    print(json.dumps({"resident": read_resident_bytes(), "owned": owned}))  # noqa: T201 - it is read


def own(device: str, quick: bool, say: Say, plugins: Plugins) -> Iterator[tuple[Table, Figures]]:
    """Measure a table of the plugins' methods, and one of their models, if there are any."""
    where = torch.device(device)
    if methods := list(plugins.of("METHODS")):
        yield _compare_with_raw(where, quick, say, plugins, methods)
    if models := [
        OverheadCase(
            f"{kind}, raw", {"kind": kind}, 64, [], 1.05, STEPS_OF_PLUGINS, plugins=plugins
        )
        for kind in plugins.of("MODELS")
    ]:
        yield against_plain(where, quick, say, models)


def _compare_with_raw(
    device: torch.device, quick: bool, say: Say, plugins: Plugins, methods: list[str]
) -> tuple[Table, Figures]:
    """Compare steps with a method and steps without one.

    A plain loop would be no comparison, since a lossy method ends at another loss.
    """
    lines = BenchLines()
    raw = OverheadCase("raw", SIMPLE, 64, [], 1.0, STEPS_OF_PLUGINS)
    for kind in methods:
        say(f"overhead: {kind} ...")
        case = OverheadCase(
            kind, SIMPLE, 64, [{"kind": kind}], 1.0, STEPS_OF_PLUGINS, plugins=plugins
        )
        pair = [assemble_case(each, device, clients=10)[1] for each in (case, raw)]
        with_it, without = (BenchSide(stepper(parts), parts.clients) for parts in pair)
        measured = in_blocks((with_it, without), case, device, quick)
        lines.add(kind, measured, ratio_row(kind, measured, None))
    return lines.table("methods of plugins against raw (SimpleCNN, batch 64)")
