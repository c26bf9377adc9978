"""The cost of learning by `train.dp`: its steps against the same steps without.

Its gradients of single samples are held against those of torch.func alone and of Opacus.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benches.language import enter
from simsplit.assembly import Assembler, Assembly
from simsplit.bench.bench_scenarios import random_images, random_texts, scenario
from simsplit.bench.sides import (
    BenchLines,
    BenchSide,
    Block,
    Figures,
    Say,
    ratio_of,
    ratio_row,
    time_in_turns,
)
from simsplit.parties.calls import Plan
from simsplit.parties.sample_gradients import SampleGradients
from simsplit.report.tables import Table

TARGET = 2.5
"""How many times as long as a plain step one by `train.dp` may take."""
LENGTH = 32
ADAPTED = {
    "kind": "causal_lm",
    "sizes": {"family": "llama", "width": 576, "layers": 6, "heads": 9, "vocabulary": 4096},
    "head": 3,
    "tail": 1,
    "lora": {"rank": 8},
    "learns": ["head"],
}
"""Layers as wide as SmolLM2-135M's, of random weights, of which time does not depend."""
CASES: Mapping[str, tuple[dict[str, Any], int, int]] = {
    "SimpleCNN, head and tail, batch 64": ({"kind": "simplecnn", "cut": "l1h"}, 64, 20),
    f"LoRA head, 3 layers of width 576, batch 64 x {LENGTH}": (ADAPTED, 64, 1),
}
"""Name -> model, batch size and steps of a block."""


def measure_private(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Compare steps by `train.dp` with plain ones."""
    lines, where = BenchLines(), torch.device(device)
    for name, (model, batch, steps) in CASES.items():
        say(f"private: {name} ...")
        sides = [
            BenchSide(assemble(model, batch, dp, where).exchange.step)
            for dp in ({"multiplier": 1.0}, None)
        ]
        pairs = 3 if quick else 9
        measured = ratio_of(
            (sides[0], sides[1]), max(1, steps // (10 if quick else 1)), pairs, where
        )
        lines.add(name, measured | {"target": TARGET}, ratio_row(name, measured, TARGET))
    yield lines.table("train.dp against plain steps (1 client)")
    yield compare_gradients(where, 3 if quick else 9, say)


def compare_gradients(device: torch.device, pairs: int, say: Say) -> tuple[Table, Figures]:
    """Compare clipped sums of a head's gradients with a plain backward pass, and others' sums."""
    lines = BenchLines()
    for name, (model, batch, _) in CASES.items():
        say(f"private: gradients of samples, {name} ...")
        training = assemble(model, batch, None, device).pool.clients[0].training
        head, x = training.end.head, training.feeds["private"].batch(0).inputs
        plain = partial(differentiate, head, x)
        ways = {
            "simsplit": partial(sum_clipped, head, x),
            "torch.func": partial(sum_by_func, head, x),
            **({"Opacus": make_opacus(head, x)} if find_spec("opacus") else {}),
        }
        for way, work in ways.items():
            case = f"{name}: {way}"
            try:
                measured = time_in_turns(_time(work), _time(plain), pairs)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                say(f"private: {case} cannot do it: {str(error).splitlines()[0][:100]}")
                continue
            row = (case, *measured.cells[:2], f"{1e3 * measured.first_s:.1f}")
            lines.add(case, {"ratio": measured.ratio, "ms": 1e3 * measured.first_s}, row)
    columns = ("case", "ratio to a backward pass", "quartiles", "ms")
    return lines.table("clipped sums of a head's gradients (Opacus where it is installed)", columns)


def _time(work: Callable[[], object]) -> Block:
    """Return a function that does a piece of work, and returns its seconds."""

    def measure() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return measure


def differentiate(head: nn.Module, x: Tensor) -> None:
    """Differentiate a head's outputs by its weights."""
    head.zero_grad()
    head(x).sum().backward()


def sum_clipped(head: nn.Module, x: Tensor) -> Mapping[nn.Parameter, Tensor]:
    """Return clipped sums as clients compute them."""
    head.zero_grad()
    samples = SampleGradients(len(x))
    with samples.record(head):
        out = head(x)
    out.sum().backward()
    return samples.clip(1.0, torch.ones(len(x), device=x.device))


def sum_by_func(head: nn.Module, x: Tensor) -> list[Tensor]:
    """Return clipped sums by torch.func alone: a gradient for each sample."""
    frozen = {n: p.detach() for n, p in head.named_parameters() if not p.requires_grad}
    learned = {n: p.detach() for n, p in head.named_parameters() if p.requires_grad}

    def project(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        total: Tensor = functional_call(head, {**frozen, **weights}, (row[None],)).sum()
        return total

    rows = vmap(grad(project), in_dims=(None, 0))(learned, x)
    return clip_rows([*rows.values()])


def make_opacus(head: nn.Module, x: Tensor) -> Callable[[], list[Tensor]]:
    """Return a function that makes clipped sums by Opacus' GradSampleModule."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(copy.deepcopy(head), loss_reduction="sum")

    def work() -> list[Tensor]:
        wrapped.zero_grad()
        wrapped(x).sum().backward()
        return clip_rows([p.grad_sample for p in wrapped.parameters() if p.requires_grad])

    return work


def clip_rows(rows: Sequence[Tensor]) -> list[Tensor]:
    """Return sums of rows that are clipped to a joint norm of 1."""
    norms = torch.stack([each.flatten(1).square().sum(1) for each in rows]).sum(0).sqrt()
    weights = 1 / norms.clamp(min=1.0)
    return [torch.tensordot(weights, each, 1) for each in rows]


def assemble(
    model: dict[str, Any], batch: int, dp: Mapping[str, Any] | None, device: torch.device
) -> Assembly:
    """Assemble a run of one client, in its main phase."""
    texts = model["kind"] == "causal_lm"
    more: dict[str, Any] = {"train": {"dp": dp}, "threads": 1}
    if texts:
        source = {"kind": "python_docs", "task": "language", "length": LENGTH}
        more["data"] = {"source": source}
    given = scenario(model, batch, {"count": 1}, **more)
    data = random_texts(given, LENGTH) if texts else random_images(given, 1280)
    parts = Assembler(given, data, device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    enter(parts, parts.pool.ask(0, Plan(1))[1])
    return parts
