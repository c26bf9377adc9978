"""Fine-tuning over an API is compared with peft's loop on the whole model, and with defences."""

import copy
from typing import Any

import torch
from torch import nn

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.given import random_texts
from simsplit.bench.overhead import feed_of
from simsplit.bench.plain import TextLoop
from simsplit.bench.sides import (
    BenchLines,
    Figures,
    Say,
    compare_steps,
    ratio_row,
    refuse_other_loss,
)
from simsplit.data.batches import Batch
from simsplit.parties.calls import Enter
from simsplit.phases import Phase
from simsplit.report.tables import Table
from simsplit.scenario import parse

LENGTH, BATCH = 64, 16
OPTIMIZER = {"kind": "adamw", "lr": 1e-3}
DEFENDED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("P3EFT, two sets mixed", 2, {"kind": "p3eft", "alpha": 0.0}),
    ("P3EFT, two sets mixed and regularised", 2, {"kind": "p3eft", "alpha": 1.0}),
    ("private backprop, two messages", 1, {"kind": "private_backprop"}),
)
"""Cases that double a step's passes: the name, the number of adapter sets, and the method."""


def api(model: str, device: torch.device, quick: bool, say: Say) -> tuple[Table, Figures]:
    """Compare one unprotected set of adapters with peft, and defended cases with that set."""
    say("language: fine-tuning over an API against peft ...")
    alone = _assemble(model, device, sets=1)
    plain = _Peft(alone, device)
    lines = BenchLines()
    measured = compare_steps(alone.exchange.step, plain.train, device, quick)
    split, whole = alone.exchange.collect_reports([0])[0]["train_loss"], plain.mean_loss
    refuse_other_loss(split, whole, ("training over the API", "peft"))
    row = ratio_row("one set of adapters over peft", measured, 1.05)
    lines.add("api over peft", measured | {"target": 1.05}, row)
    for name, sets, method in DEFENDED:
        say(f"language: {name}, against two plain steps ...")
        defended = _assemble(model, device, sets=sets, method=[method])
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


def _assemble(
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
    parts = Assembler(given, random_texts(given, LENGTH), device).assemble()
    parts.exchange.announce(parts.clients, counted=False)
    phase = parts.exchange.moment.phase = Phase("train", rounds=1)
    parts.server.enter(phase, 1.0)
    parts.pool.ask(0, Enter(phase, 1.0))
    return parts
