"""This bench measures the cost of cutting a language model, and MixGuard against its passes.

The whole model is transformers' own, which a plain loop trains from the same weights on the same
batches. Both must end at the same loss. MixGuard is compared with the arithmetic that it adds: k
texts through the head and m messages through the trunk, plus one forward pass for refinement.
Fine-tuning over an API is compared with peft's loop on the whole model, and with defences.

With a model of the user's, defences of both ends are compared with the plain cut on the same texts:
each one's training step, warm-up step and generated token. ADMI's paper states 1.5 plain steps, 0.5
steps, and 1.2 to 1.3 tokens.
"""

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benches.writing import measure_writing, prepare_writers
from simsplit.assembly import Assembler, Assembly
from simsplit.bench.bench_scenarios import random_texts
from simsplit.bench.overhead import feed_of
from simsplit.bench.sides import (
    BenchLines,
    BenchSide,
    Figures,
    Say,
    TextLoop,
    compare_steps,
    ratio_of,
    ratio_row,
    refuse_other_loss,
)
from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.network.clock import Flops
from simsplit.parties.calls import Enter, Plan
from simsplit.phases import Phase
from simsplit.pretrain.pretraining import pretrain
from simsplit.pretrain.tiers import PretrainConfig
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse
from simsplit.seeds import rng_for

LENGTH, BATCH = 64, 16
MESSAGES = INPUTS = 3
MIXGUARD = [{"kind": "mixguard", "tokens": 0, "warm_up": 0}]
DEFENDED_BATCH = 8
DEFENCE_STEPS, DEFENCE_PAIRS = 1, 5
LARGE_PAIRS, LARGE_TARGET = 7, 1.02
"""Pairs of steps of a model such as SmolLM2, and what a step may cost beside the whole model's."""
TOKENS = 16
DEFENCES: tuple[dict[str, Any], ...] = ({"kind": "admi"}, {"kind": "dualguard"}, {"kind": "mid"})
API_OPTIMIZER = {"kind": "adamw", "lr": 1e-3}
API_CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("P3EFT, two sets mixed", 2, {"kind": "p3eft", "alpha": 0.0}),
    ("P3EFT, two sets mixed and regularised", 2, {"kind": "p3eft", "alpha": 1.0}),
    ("private backprop, two messages", 1, {"kind": "private_backprop"}),
)
"""Cases that double a step's passes: the name, the number of adapter sets, and the method."""


def language(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Compare the cut model with the whole one, and MixGuard with its passes; time generation."""
    where = torch.device(device)
    with tempfile.TemporaryDirectory() as folder:
        say("language: a model of the demo's size ...")
        model = pretrain_model(Path(folder))
        yield _compare_with_whole(model, where, quick, say)
        yield _compare_with_passes(model, where, quick, say)
        yield api(model, where, quick, say)
        given = scenario_on(model, [], BATCH)
        yield measure_writing(given, random_texts(given, LENGTH), where, quick, say)


def pretrain_model(folder: Path) -> str:
    """Pretrain a model for one step on random words; time does not depend on the weights."""
    draws = rng_for(0, "bench", "words")
    letters = torch.randint(97, 123, (40_000, 5), generator=draws).tolist()
    text = folder / "words.txt"
    text.write_text(" ".join("".join(map(chr, word)) for word in letters), encoding="utf-8")
    given = PretrainConfig(text=text, steps=1, batch_size=2, length=LENGTH)
    return str(pretrain(given, folder / "model"))


def _compare_with_whole(
    model: str, device: torch.device, quick: bool, say: Say, *, large: bool = False
) -> tuple[Table, Figures]:
    """Compare steps of a cut model with the library's own; a large one with fewer, of one size."""
    lines, target = BenchLines(), LARGE_TARGET if large else 1.05
    for batch in (DEFENDED_BATCH,) if large else (BATCH, 4):
        name = f"batch {batch} x {LENGTH}"
        say(f"language: cut against whole, {name} ...")
        parts = build_run(model, [], device, batch=batch)[1]
        whole = _WholeModel(model, parts, device)
        if large and not quick:
            sides = BenchSide(parts.exchange.step), BenchSide(whole.train)
            measured = ratio_of(sides, 1, LARGE_PAIRS, device)
        else:
            measured = compare_steps(parts.exchange.step, whole.train, device, quick)
        split, plain = parts.exchange.collect_reports([0])[0]["train_loss"], whole.mean_loss
        refuse_other_loss(split, plain, ("the split", "the whole"))
        row = ratio_row(name, measured, target)
        lines.add(f"language, {name}", measured | {"target": target}, row)
    what = "the model at hand" if large else "1.7 million weights"
    return lines.table(f"the cut model against the whole one ({what})")


def _compare_with_passes(
    model: str, device: torch.device, quick: bool, say: Say
) -> tuple[Table, Figures]:
    say("language: MixGuard against its passes ...")
    parts = build_run(model, MIXGUARD, device, batch=BATCH)[1]
    assembler, plain = build_run(model, [], device, batch=BATCH)
    measured = compare_steps(parts.exchange.step, plain.exchange.step, device, quick)
    expected = count_passes(assembler.flops, MESSAGES, INPUTS)
    over = {"ratio": measured["ratio"] / expected}
    over |= {name: measured[name] / expected for name in ("low", "high")}
    name, lines = f"MixGuard, m = k = 3 ({expected:.2f} plain steps' passes)", BenchLines()
    row = ratio_row(name, measured | over, 1.10)
    lines.add("MixGuard over its passes", {**measured, **over, "passes": expected}, row)
    return lines.table("MixGuard's step over that many plain ones")


def count_passes(flops: Flops, messages: int, inputs: int) -> float:
    """Return the cost of a private and a refinement step, in plain steps.

    A backward pass counts as two forward passes.
    """
    private = inputs * flops.head + messages * flops.trunk + flops.tail
    refining = (inputs * flops.head + (messages + 1) * flops.trunk) / 3
    return (private + refining) / (flops.head + flops.trunk + flops.tail)


class _WholeModel(TextLoop):
    """transformers' own model in a plain loop, on the same batches."""

    def __init__(self, model: str, parts: Assembly, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__(feed_of(parts, 0))
        net: Any = AutoModelForCausalLM.from_pretrained(model)
        self.net = net.to(device).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)

    def loss_of(self, batch: Batch) -> torch.Tensor:
        """Predict the next tokens."""
        logits = self.net(input_ids=batch.inputs, use_cache=False).logits
        labels = batch.labels.flatten()
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED)


def build_run(
    model: str, method: list[dict[str, Any]], device: torch.device, *, batch: int
) -> tuple[Assembler, Assembly]:
    """Assemble a cut model with one client, and enter the main training phase."""
    given = scenario_on(model, method, batch)
    assembler = Assembler(given, random_texts(given, LENGTH), device)
    parts = assembler.assemble()
    parts.exchange.announce(parts.clients, counted=False)
    _, proper = parts.pool.ask(0, Plan(1))
    enter(parts, proper)
    return assembler, parts


def enter(parts: Assembly, phase: Phase) -> None:
    """Enter a phase on both sides."""
    phase = parts.exchange.moment.phase = replace(phase, rounds=1)
    parts.server.enter(phase, 1.0)
    parts.pool.ask(0, Enter(phase, 1.0))


def scenario_on(
    model: str,
    method: list[dict[str, Any]],
    batch: int,
    **more: Any,
) -> Scenario:
    """Make a scenario of a causal model with two layers at each end, tuned by one client."""
    optimizer = {"kind": "adamw", "lr": 1e-4}
    source = {"kind": "python_docs", "task": "language", "length": LENGTH}
    return parse(
        {
            "data": {"source": source, "auxiliary": 0.5},
            "model": {"kind": "causal_lm", "name": model, "head": 2, "tail": 2},
            "clients": {"count": 1},
            "method": method,
            "train": {"batch_size": batch, "client": optimizer, "server": optimizer},
            **more,
        }
    )


def language_of(device: str, quick: bool, say: Say, model: str) -> Iterator[tuple[Table, Figures]]:
    """Measure generation with a given model, and the cost of defences of its ends."""
    where = torch.device(device)
    yield _compare_with_whole(model, where, quick, say, large=True)
    given = scenario_on(model, [], DEFENDED_BATCH)
    yield measure_writing(given, random_texts(given, LENGTH), where, quick, say, large=True)
    yield _compare_defences(model, where, quick, say)


def _compare_defences(
    model: str, device: torch.device, quick: bool, say: Say
) -> tuple[Table, Figures]:
    lines = BenchLines()
    for method in DEFENCES:
        say(f"language: {method['kind']} against a plain cut ...")
        for case, measured in _measure_defence(model, method, device, quick):
            name = f"{method['kind']}, {case}"
            lines.add(name, measured, ratio_row(name, measured, None))
    title = (
        f"defences of both ends over a plain cut (batches of {DEFENDED_BATCH} x {LENGTH} tokens)"
    )
    return lines.table(title)


def _measure_defence(
    model: str, method: dict[str, Any], device: torch.device, quick: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the ratio of each kind of step in its phase; the plain cut always trains."""
    steps, pairs = (1, 2) if quick else (DEFENCE_STEPS, DEFENCE_PAIRS)
    plain = build_run(model, [], device, batch=DEFENDED_BATCH)[1]
    parts = build_run(model, [method], device, batch=DEFENDED_BATCH)[1]
    warming, proper = parts.pool.ask(0, Plan(1))
    # Steps in which a method's network learns by itself, before any text of the task, are left out.
    learning = [each for each in warming if each.task]
    phases = [("a step of training", proper), *(("a step of warm-up", each) for each in learning)]
    for case, phase in phases:
        enter(parts, phase)
        sides = BenchSide(parts.exchange.step), BenchSide(plain.exchange.step)
        yield case, ratio_of(sides, steps, pairs, device)
    tokens = 4 if quick else TOKENS
    writing_with, writing_plain = (
        BenchSide(prepare_writers(given, random_texts(given, LENGTH), device, tokens))
        for given in (scenario_on(model, each, DEFENDED_BATCH) for each in ([method], []))
    )
    measured = ratio_of((writing_with, writing_plain), 1, pairs, device)
    per_token = {key: measured[key] / tokens for key in ("ms", "against_ms")}
    yield "a token written", measured | per_token


def api(model: str, device: torch.device, quick: bool, say: Say) -> tuple[Table, Figures]:
    """Compare one unprotected set of adapters with peft, and defended cases with that set."""
    say("language: fine-tuning over an API against peft ...")
    alone = _assemble_api(model, device, sets=1)
    plain = _Peft(alone, device)
    lines = BenchLines()
    measured = compare_steps(alone.exchange.step, plain.train, device, quick)
    split, whole = alone.exchange.collect_reports([0])[0]["train_loss"], plain.mean_loss
    refuse_other_loss(split, whole, ("training over the API", "peft"))
    row = ratio_row("one set of adapters over peft", measured, 1.05)
    lines.add("api over peft", measured | {"target": 1.05}, row)
    for name, sets, method in API_CASES:
        say(f"language: {name}, against two plain steps ...")
        defended = _assemble_api(model, device, sets=sets, method=[method])
        measured = compare_steps(defended.exchange.step, alone.exchange.step, device, quick)
        halves = {of: measured[of] / 2 for of in ("ratio", "low", "high")}
        row = ratio_row(f"{name}, over two plain steps", measured | halves, 1.10)
        lines.add(name, measured | halves | {"target": 1.10}, row)
    return lines.table("fine-tuning over an API (1.7 million weights)")


class _Peft(TextLoop):
    """The same transformer with peft's adapters and the same head, in a plain loop."""

    def __init__(self, parts: Assembly, device: torch.device) -> None:
        super().__init__(feed_of(parts, 0))
        pool: Any = parts.pool
        trunk: Any = parts.server.end.trunk
        client = pool.clients[0].training.end
        self.body: Any = copy.deepcopy(trunk.body).to(device)
        self.reader: nn.Module = copy.deepcopy(client.tail.reader)
        own: dict[str, nn.Parameter] = dict(self.body.named_parameters())
        learned: list[torch.Tensor] = []
        for name, weight in client.head.sets[0].items():
            own[name.replace("/", ".")].data.copy_(weight.data)
            learned.append(own[name.replace("/", ".")].requires_grad_(True))
        self.optimizer = torch.optim.AdamW([*learned, *self.reader.parameters()], lr=1e-3)

    def loss_of(self, batch: Batch) -> torch.Tensor:
        """Classify texts at their last tokens."""
        mask = batch.real.long()
        states = self.body(input_ids=batch.inputs, attention_mask=mask).last_hidden_state
        last = states[torch.arange(len(states)), mask.sum(1) - 1]
        return nn.functional.cross_entropy(self.reader(last), batch.labels.amax(1))


def _assemble_api(
    model: str, device: torch.device, *, sets: int, method: list[dict[str, Any]] | None = None
) -> Assembly:
    given = parse(
        {
            "data": {"source": {"kind": "python_docs", "length": LENGTH}},
            "model": {"kind": "adapted_classifier", "name": model, "adapters": sets},
            "topology": "api",
            "clients": {"count": 1},
            "method": method or [],
            "train": {"batch_size": BATCH, "client": API_OPTIMIZER},
        }
    )
    parts = Assembler(given, random_texts(given, LENGTH), device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    enter(parts, Phase("train", rounds=1))
    return parts
