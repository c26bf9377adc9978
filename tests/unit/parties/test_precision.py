"""Narrow arithmetic and other memory layouts: the same training, nearly."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from builders import experiment, image_folder, run_to_end, scenario

from simsplit.assembly.state import collect_state
from simsplit.parties.calls import SharedState
from simsplit.results import Run

ONE: dict[str, Any] = {
    "clients": {"count": 1},
    "model": {"cut": "l2h"},
    "data": {"train_samples": 48, "test_samples": 10},
}


def train(path: Path, **train: Any) -> Run:
    run_to_end(scenario(**ONE, train=train), path)
    return Run.load(path)


def count_smashed_bytes(wire: pd.DataFrame) -> int:
    legs = wire[(wire["phase"] == "train") & (wire["leg"] == "smashed")]
    return int(legs["bytes"].sum())


@pytest.mark.slow
def test_bf16_halves_what_crosses_and_hardly_moves_the_loss(tmp_path: Path) -> None:
    full, narrow = train(tmp_path / "fp32"), train(tmp_path / "bf16", precision="bf16")
    assert count_smashed_bytes(full.wire) == 2 * 48 * 20 * 12 * 12 * 4  # rounds, samples, cut, fp32
    assert count_smashed_bytes(narrow.wire) * 2 == count_smashed_bytes(full.wire)
    assert narrow.rounds["bytes_total"].iloc[-1] * 2 == full.rounds["bytes_total"].iloc[-1]
    losses = narrow.rounds["train_loss"].tolist()
    assert losses == pytest.approx(full.rounds["train_loss"].tolist(), rel=0.05)
    assert losses != full.rounds["train_loss"].tolist()


@pytest.mark.slow
def test_bf16_under_a_vanilla_cut(tmp_path: Path) -> None:
    runs = []
    for precision in ("fp32", "bf16"):
        given = scenario(**ONE, topology="vanilla", train={"precision": precision})
        run_to_end(given, tmp_path / precision)
        runs.append(Run.load(tmp_path / precision).rounds)
    assert runs[1]["train_loss"].tolist() == pytest.approx(runs[0]["train_loss"].tolist(), rel=0.05)


def test_channels_last_is_the_same_up_to_rounding(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images", each=6)
    losses = []
    for channels_last in (False, True):
        given = scenario(
            **(ONE | {"data": {"source": {"kind": "folder", "path": str(images), "size": 32}}}),
            train={"channels_last": channels_last},
        )
        made = experiment(given, tmp_path / str(channels_last))
        weight = made.parts.pool.ask(0, SharedState())["head.0.weight"]
        assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last
        made.run(resume=False)
        losses.append(Run.load(made.path).rounds["train_loss"].tolist())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_a_resumed_channels_last_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    changes: dict[str, Any] = ONE | {"train": {"channels_last": True, "client": {"kind": "adam"}}}
    whole = run_to_end(scenario(**changes, schedule={"rounds": 3}), tmp_path / "whole")
    run_to_end(scenario(**changes, schedule={"rounds": 2}), tmp_path / "half")
    resumed = experiment(scenario(**changes, schedule={"rounds": 3}), tmp_path / "half")
    resumed.run(resume=True)
    one, other = collect_state(whole.parts), collect_state(resumed.parts)
    assert all(torch.equal(one[name], other[name]) for name in one)
