"""This bench compares a step of several parties with a plain loop over a network with branches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from simsplit.assembly import Assembler, Assembly
from simsplit.bench.bench_scenarios import random_images, scenario
from simsplit.bench.sides import (
    BenchLines,
    BenchSide,
    Figures,
    Say,
    ratio_of,
    ratio_row,
    refuse_other_loss,
)
from simsplit.engine.pool import InlinePool
from simsplit.legs import ClientId
from simsplit.models.joins import join_parts
from simsplit.phases import Phase
from simsplit.report.tables import Table
from simsplit.scenario import Scenario
from simsplit.topologies import find_topology


@dataclass(frozen=True)
class PartiesCase:
    """One comparison: its parties, and the steps of a block."""

    name: str
    model: dict[str, Any]
    parties: int
    steps: int
    batch_size: int = 64
    target: float = 1.06
    pairs: int = 15


RESNET: dict[str, Any] = {"kind": "resnet20"}
CASES = [
    PartiesCase("ResNet-20, two halves", RESNET, 2, 10),
    PartiesCase("ResNet-20, four quadrants", RESNET, 4, 10),
]


class Branches:
    """The plain loop: a head for each party, one trunk and tail, and one optimizer."""

    def __init__(self, parts: Assembly, assembler: Assembler) -> None:
        assert isinstance(parts.pool, InlinePool), "benches that look at batches run inline"
        owners, scenario = assembler.owners, assembler.scenario
        self.feeds = [c.training.feeds["private"] for c in parts.pool.clients.values()]
        model, _ = owners.joint()
        heads = [owners.build_client_parts(each).head for each in parts.clients]
        self.net = nn.ModuleList([*heads, model.trunk, model.tail]).train()
        self.how, self.loss = scenario.joining.join, model.loss
        self.optimizer = scenario.train.client.build(list(self.net.parameters()))
        self.taken, self.losses = 0, torch.zeros(())

    def train(self, client: ClientId) -> None:
        """Take a step on the next batch."""
        del client  # all parties take it together
        *heads, trunk, tail = self.net
        batches = [feed.batch(self.taken) for feed in self.feeds]
        outs = [head(batch.inputs) for head, batch in zip(heads, batches, strict=True)]
        loss = self.loss(tail(trunk(join_parts(outs, self.how))), batches[-1].labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses = self.losses + loss.detach()
        self.taken += 1


def compare_parties(
    device: torch.device, quick: bool, say: Say, cases: Sequence[PartiesCase] = CASES
) -> tuple[Table, Figures]:
    """Compare steps of parties with steps of the network with branches, on the same batches."""
    lines = BenchLines()
    for case in cases:
        say(f"overhead: {case.name} ...")
        given = _build_scenario(case)
        # noise with labels, of which each party has a part of every image
        data = random_images(given, 6400)
        rows = [np.arange(len(data.train))] * case.parties
        assembler = Assembler(given, given.cut_portions(replace(data, parts=rows)), device)
        parts = assembler.assemble()
        parts.exchange.announce(parts.clients, counted=False)
        parts.server.enter(Phase("train", rounds=1), 1.0)
        plain = Branches(parts, assembler)

        def step(client: ClientId, parts: Assembly = parts) -> None:
            del client
            parts.exchange.step_together(parts.clients)

        sides = BenchSide(step), BenchSide(plain.train)
        steps = max(2, case.steps // 10) if quick else case.steps
        measured = ratio_of(sides, steps, 3 if quick else case.pairs, device)
        report = parts.exchange.collect_reports(parts.clients)[given.label_party]
        joint = plain.losses.item() / plain.taken
        refuse_other_loss(report["train_loss"], joint, ("the parties", "the plain loop"))
        row = ratio_row(case.name, measured, case.target)
        lines.add(case.name, measured | {"target": case.target}, row)
    return lines.table("parties against a plain loop with a branch for each")


def _build_scenario(case: PartiesCase) -> Scenario:
    by = "patches" if case.parties > 2 else "columns"
    return scenario(
        case.model,
        case.batch_size,
        {"count": case.parties, "heads": "per_client"},
        topology=find_topology(lambda each: each.joint),
        vertical={"join": "mean"},
        data={"partition": {"kind": "parts", "parts": case.parties, "by": by}},
        train={"drop_last": True},
    )
