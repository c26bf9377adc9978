"""What an API costs beside peft's own loop on the whole model, and P3EFT beside its passes."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.overhead import COLUMNS, Figures, Say, Side, feed_of, ratio_of, ratio_row
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.samples import IGNORED, TextInfo
from simsplit.errors import ProtocolError
from simsplit.packets import ClientId
from simsplit.parties.calls import Enter
from simsplit.phases import Phase
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse
from simsplit.seeds import rng_for

LENGTH, BATCH = 64, 16
STEPS, PAIRS = 6, 15
OPTIMIZER = {"kind": "adamw", "lr": 1e-3}
DEFENDED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("P3EFT, two sets mixed", 2, {"kind": "p3eft", "alpha": 0.0}),
    ("P3EFT, two sets mixed and regularised", 2, {"kind": "p3eft", "alpha": 1.0}),
    ("private backprop, two messages", 1, {"kind": "private_backprop"}),
)
"""What doubles a step's passes: its name, sets of adapters, and the method."""


def api(model: str, device: torch.device, quick: bool, say: Say) -> tuple[Table, Figures]:
    """One set of adapters without protection against peft; two sets of P3EFT's against that."""
    say("language: fine-tuning over an API against peft ...")
    alone = _assembled(model, device, sets=1)
    plain = _Peft(alone, device)
    figures: Figures = {}
    measured = _ratio(alone.exchange.step, plain.train, device, quick)
    split, whole = alone.exchange.collect_reports([0])[0]["train_loss"], plain.mean_loss
    if abs(split - whole) > 1e-3 * abs(whole):
        raise ProtocolError(f"over the API it ends at loss {split:.6f}, by peft at {whole:.6f}")
    rows = [ratio_row("one set of adapters over peft", measured, 1.05)]
    figures["api over peft"] = measured | {"target": 1.05}
    for name, sets, method in DEFENDED:
        say(f"language: {name}, against two plain steps ...")
        defended = _assembled(model, device, sets=sets, method=[method])
        measured = _ratio(defended.exchange.step, alone.exchange.step, device, quick)
        halves = {of: measured[of] / 2 for of in ("ratio", "low", "high")}
        rows.append(ratio_row(f"{name}, over two plain steps", measured | halves, 1.10))
        figures[name] = measured | halves | {"target": 1.10}
    return Table("fine-tuning over an API (1.7 million weights)", COLUMNS, rows), figures


class _Peft:
    """The same transformer with peft's adapters and the same head, in a plain loop."""

    def __init__(self, parts: Assembly, device: torch.device) -> None:
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
        self.feed = feed_of(parts, 0)
        self.losses: list[torch.Tensor] = []

    def train(self, client: ClientId) -> None:
        """One step on the next batch."""
        batch = self.feed.batch(len(self.losses))
        mask = batch.real.long()
        states = self.body(input_ids=batch.inputs, attention_mask=mask).last_hidden_state
        last = states[torch.arange(len(states)), mask.sum(1) - 1]
        loss = nn.functional.cross_entropy(self.reader(last), batch.labels.amax(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    @property
    def mean_loss(self) -> float:
        """Mean loss over all steps so far."""
        return torch.stack(self.losses).mean().item()


Stepping = Callable[[ClientId], None]


def _ratio(one: Stepping, other: Stepping, device: torch.device, quick: bool) -> dict[str, float]:
    steps, pairs = (2, 3) if quick else (STEPS, PAIRS)
    return ratio_of((Side(one, range(1)), Side(other, range(1))), steps, pairs, device)


def _assembled(
    model: str, device: torch.device, *, sets: int, method: list[dict[str, Any]] | None = None
) -> Assembly:
    given = parse(
        {
            "data": {"source": {"kind": "python_docs", "length": LENGTH}},
            "model": {"kind": "adapted_classifier", "name": model, "adapters": sets},
            "topology": "api",
            "clients": {"count": 1},
            "method": method or [],
            "train": {"batch_size": BATCH, "client": OPTIMIZER},
        }
    )
    parts = Assembler(given, _random_texts(given), device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    phase = parts.exchange.moment.phase = Phase("train", rounds=1)
    parts.server.enter(phase, 1.0)
    parts.pool.ask(0, Enter(phase, 1.0))
    return parts


def _random_texts(given: Scenario) -> Prepared:
    """Random texts with random classes, all of the same length."""
    reader, count = given.text_reader(), 640
    rng = rng_for(0, "bench", "texts")
    ids = torch.randint(reader.size, (count, LENGTH), generator=rng)
    labels = torch.full_like(ids, IGNORED)
    labels[:, -1] = torch.randint(2, (count,), generator=rng)
    whole = torch.full((count,), LENGTH)
    samples = Samples(ids, labels, TextInfo(whole, whole, labels[:, -1]))
    few = samples.take(np.arange(4))
    held = (samples, None, samples, few, [np.arange(count)], (), ())
    return Prepared("random", DataInfo((LENGTH,), 2, texts=True), *held)
