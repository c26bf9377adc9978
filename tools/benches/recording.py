"""This bench measures what recording costs a plain PyTorch loop that knows nothing of a split."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from simsplit import record
from simsplit.bench.overhead import RESNET, OverheadCase, assemble_case, feed_of, in_blocks
from simsplit.bench.sides import (
    BenchLines,
    BenchSide,
    Figures,
    PlainLoop,
    Say,
    ratio_row,
    refuse_other_loss,
)
from simsplit.report.tables import Table

CASES = [OverheadCase("ResNet-18, batch 64, all legs", RESNET, 64, [], 1.05, 4)]


def measure_recording(
    device: str, quick: bool, say: Say, cases: list[OverheadCase] = CASES
) -> Iterator[tuple[Table, Figures]]:
    """Compare steps that are recorded with the same steps of a loop that is not."""
    lines, where = BenchLines(), torch.device(device)
    for case in cases:
        say(f"recording: {case.name} ...")
        loops = []
        for _ in range(2):  # of equal weights, on equal batches
            assembler, parts = assemble_case(case, where, clients=1)
            loops.append(PlainLoop(assembler, {0: feed_of(parts, 0)}))
        recorded, plain = loops
        with (
            tempfile.TemporaryDirectory() as folder,
            record(
                Path(folder, "wire"),
                smashed=recorded.net[0],
                features=recorded.net[2],
                most="8 GiB",
            ) as tape,
        ):
            sides = BenchSide(recorded.train), BenchSide(plain.train)
            measured = in_blocks(sides, case, where, quick)
        measured |= {"recorded_bytes": tape.nbytes, "steps": tape.steps, "target": case.target}
        count = tape.steps * case.batch_size
        one, other = ((each.loss_sum / count).item() for each in loops)
        refuse_other_loss(one, other, ("the recorded loop", "the plain loop"))
        lines.add(case.name, measured, ratio_row(case.name, measured, case.target))
    yield lines.table("a recorded loop against the same loop")
