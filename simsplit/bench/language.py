"""What cutting a language model costs, and whether MixGuard costs more than its passes.

The whole model is transformers' own, trained by a plain loop from the same weights on the same
batches; both must end at the same loss. MixGuard is held against the arithmetic that it adds: k
texts through the head and m messages through the trunk, and once more forwards for refinement.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.api import api
from simsplit.bench.overhead import COLUMNS, Figures, Say, Side, feed_of, ratio_of, ratio_row
from simsplit.bench.writing import writing
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.samples import IGNORED, Choices, TextInfo, Vocabulary
from simsplit.errors import ProtocolError
from simsplit.network.clock import Flops
from simsplit.packets import ClientId
from simsplit.parties.calls import Enter, Plan
from simsplit.phases import Phase
from simsplit.pretrain.tiers import PretrainConfig
from simsplit.pretrain.training import pretrain
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse
from simsplit.seeds import rng_for

LENGTH, BATCH = 64, 16
STEPS, PAIRS = 6, 15
MESSAGES = INPUTS = 3
MIXGUARD = [{"kind": "mixguard", "tokens": 0, "warm_up": 0}]


def language(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """The cut model against the whole one, MixGuard against its passes, and writing."""
    where = torch.device(device)
    with tempfile.TemporaryDirectory() as folder:
        say("language: a model of the demo's size ...")
        model = _model(Path(folder))
        yield _against_whole(model, where, quick, say)
        yield _against_passes(model, where, quick, say)
        yield api(model, where, quick, say)
        given = scenario_on(model, [], BATCH)
        yield writing(given, random_texts(given), where, quick, say)


def _model(folder: Path) -> str:
    """Weights after one step, on words of no meaning: time does not depend on what they are."""
    draws = rng_for(0, "bench", "words")
    letters = torch.randint(97, 123, (40_000, 5), generator=draws).tolist()
    text = folder / "words.txt"
    text.write_text(" ".join("".join(map(chr, word)) for word in letters), encoding="utf-8")
    given = PretrainConfig(text=text, steps=1, batch_size=2, length=LENGTH)
    return str(pretrain(given, folder / "model"))


def _against_whole(
    model: str, device: torch.device, quick: bool, say: Say
) -> tuple[Table, Figures]:
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for batch in (BATCH, 4):
        name = f"batch {batch} x {LENGTH}"
        say(f"language: cut against whole, {name} ...")
        parts = _assembled(model, [], device, batch=batch)
        whole = _Whole(model, parts, device)
        measured = _ratio(_stepper(parts), whole.train, device, quick)
        split, plain = parts.exchange.collect_reports([0])[0]["train_loss"], whole.mean_loss
        if abs(split - plain) > 1e-3 * abs(plain):
            raise ProtocolError(f"the split ends at loss {split:.6f}, the whole at {plain:.6f}")
        rows.append(ratio_row(name, measured, 1.05))
        figures[f"language, {name}"] = measured | {"target": 1.05}
    return Table(
        "the cut model against the whole one (1.7 million weights)", COLUMNS, rows
    ), figures


def _against_passes(
    model: str, device: torch.device, quick: bool, say: Say
) -> tuple[Table, Figures]:
    say("language: MixGuard against its passes ...")
    parts = _assembled(model, MIXGUARD, device, batch=BATCH)
    assembler, plain = built(model, [], device, batch=BATCH)
    measured = _ratio(_stepper(parts), _stepper(plain), device, quick)
    expected = passes(assembler.flops, MESSAGES, INPUTS)
    over = {"ratio": measured["ratio"] / expected}
    over |= {name: measured[name] / expected for name in ("low", "high")}
    figures: Figures = {"MixGuard over its passes": {**measured, **over, "passes": expected}}
    row = ratio_row(
        f"MixGuard, m = k = 3 ({expected:.2f} plain steps' passes)", measured | over, 1.10
    )
    return Table("MixGuard's step over that many plain ones", COLUMNS, [row]), figures


def passes(flops: Flops, messages: int, inputs: int) -> float:
    """A private step and one of refinement, in plain steps; backwards counts as two forwards."""
    private = inputs * flops.head + messages * flops.trunk + flops.tail
    refining = (inputs * flops.head + (messages + 1) * flops.trunk) / 3
    return (private + refining) / (flops.head + flops.trunk + flops.tail)


class _Whole:
    """transformers' own model, a plain loop, the same batches."""

    def __init__(self, model: str, parts: Assembly, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM

        net: Any = AutoModelForCausalLM.from_pretrained(model)
        self.net = net.to(device).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.feed = feed_of(parts, 0)
        self.losses: list[torch.Tensor] = []

    def train(self, client: ClientId) -> None:
        """One step on the next batch."""
        batch = self.feed.batch(len(self.losses))
        logits = self.net(input_ids=batch.inputs, use_cache=False).logits
        told = (logits.flatten(0, 1), batch.labels.flatten())
        loss = nn.functional.cross_entropy(*told, ignore_index=IGNORED)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    @property
    def mean_loss(self) -> float:
        """Mean loss over all steps so far."""
        return torch.stack(self.losses).mean().item()


def _stepper(parts: Assembly) -> Callable[[ClientId], None]:
    return parts.exchange.step


def _ratio(
    first: Callable[[ClientId], None],
    other: Callable[[ClientId], None],
    device: torch.device,
    quick: bool,
) -> dict[str, float]:
    steps, pairs = (2, 3) if quick else (STEPS, PAIRS)
    return ratio_of((Side(first, range(1)), Side(other, range(1))), steps, pairs, device)


def _assembled(
    model: str, method: list[dict[str, Any]], device: torch.device, **sizes: int
) -> Assembly:
    return built(model, method, device, **sizes)[1]


def built(
    model: str, method: list[dict[str, Any]], device: torch.device, *, batch: int
) -> tuple[Assembler, Assembly]:
    """A cut model with a client, in the phase of training proper."""
    given = scenario_on(model, method, batch)
    assembler = Assembler(given, random_texts(given), device)
    parts = assembler.assemble()
    parts.exchange.announce(parts.clients, counted=False)
    _, proper = parts.pool.ask(0, Plan(1))
    enter(parts, proper)
    return assembler, parts


def enter(parts: Assembly, phase: Phase) -> None:
    """Go over to a phase, on both sides."""
    phase = parts.exchange.moment.phase = replace(phase, rounds=1)
    parts.server.enter(phase, 1.0)
    parts.pool.ask(0, Enter(phase, 1.0))


def scenario_on(model: str, method: list[dict[str, Any]], batch: int) -> Scenario:
    """A causal model with two layers at each end, tuned by one client."""
    optimizer = {"kind": "adamw", "lr": 1e-4}
    source = {"kind": "python_docs", "task": "language", "length": LENGTH}
    return parse(
        {
            "data": {"source": source, "auxiliary": 0.5},
            "model": {"kind": "causal_lm", "name": model, "head": 2, "tail": 2},
            "clients": {"count": 1},
            "method": method,
            "train": {"batch_size": batch, "client": optimizer, "server": optimizer},
        }
    )


def random_texts(given: Scenario) -> Prepared:
    """Random texts, all of the same length."""
    reader = given.text_reader()
    count = 640
    ids = torch.randint(reader.size, (count, LENGTH), generator=rng_for(0, "bench", "texts"))
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORED
    whole = torch.full((count,), LENGTH)
    texts = TextInfo(whole, torch.zeros_like(whole), torch.zeros_like(whole))
    samples = Samples(ids, labels, texts)
    parts = [np.arange(count)]
    vocabulary = Vocabulary(reader.size, reader.pad, reader.special, Choices(0, ()))
    info = DataInfo((LENGTH,), 1, texts=True)
    few = samples.take(np.arange(4))
    held = (samples, None, samples, few, parts, (), ())
    return Prepared("random", info, *held, support=samples, vocabulary=vocabulary)
