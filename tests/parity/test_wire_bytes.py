"""Bytes in the `wire` table equal the paper's (LightSplit, Table I), leg by leg, to the byte."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import image_folder, run_to_end, scenario

from simsplit.results import Run
from simsplit.scenario.files import merge

SAMPLES, FEATURES = 40, 512


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "images")


def wire_of(images: Path, path: Path, **changes: Any) -> pd.DataFrame:
    source = {"kind": "folder", "path": str(images), "size": 32}
    common: dict[str, Any] = {
        "data": {"source": source, "train_samples": None, "test_samples": None},
        "model": {"kind": "resnet18"},
        "clients": {"count": 5},
        "schedule": {"rounds": 1},
        "checkpoint": {"every": 0},
        "evaluate": {"every": 0, "metrics": ["loss"]},
    }
    given = scenario(**merge(common, changes))
    run_to_end(given, path)
    wire = Run.load(path).wire
    return wire[wire["phase"] != "evaluate"]


def leg_bytes(wire: pd.DataFrame) -> dict[str, int]:
    return wire.groupby("leg")["bytes"].sum().to_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "gib", "gib_with_features"),
    [
        (1, 152.59, 171.66),
        (8, 19.07, 38.15),
        (16, 9.54, 28.61),
        (32, 4.77, 23.84),
    ],
)
def test_table_one(
    ratio: int, gib: float, gib_with_features: float, images: Path, tmp_path: Path
) -> None:
    method = [] if ratio == 1 else [{"kind": "lightsplit", "ratio": ratio, "broadcast": "seed"}]
    legs = leg_bytes(wire_of(images, tmp_path / "run", method=method))
    k = 4096 // ratio
    assert legs.get("broadcast", 0) == (0 if ratio == 1 else 5 * 8)  # a seed for each client
    assert legs["smashed"] == legs["smashed_grad"] == SAMPLES * k * 4
    assert legs["features"] == legs["features_grad"] == SAMPLES * FEATURES * 4
    # the paper: 50,000 samples, 100 epochs, two legs; its GB are GiB
    scale = 50_000 * 100 / SAMPLES / 2**30
    both = legs["smashed"] + legs["smashed_grad"]
    assert round(both * scale, 2) == gib
    everything = both + legs["features"] + legs["features_grad"]
    assert round(everything * scale, 2) == gib_with_features


@pytest.mark.slow
def test_the_feature_legs_shrink_too_where_the_scenario_says_so(
    images: Path, tmp_path: Path
) -> None:
    method = [{"kind": "lightsplit", "ratio": 8, "legs": ["smashed", "features"]}]
    legs = leg_bytes(wire_of(images, tmp_path / "run", method=method))
    assert legs["smashed"] == SAMPLES * 512 * 4
    assert legs["features"] == legs["features_grad"] == SAMPLES * 64 * 4


@pytest.mark.slow
def test_int8_counts_its_scales_and_a_matrix_is_counted_once_per_client(
    images: Path, tmp_path: Path
) -> None:
    method = [
        {"kind": "lightsplit", "ratio": 8, "broadcast": "matrix"},
        {"kind": "cast", "to": "int8"},
    ]
    legs = leg_bytes(wire_of(images, tmp_path / "run", method=method))
    assert legs["smashed"] == legs["smashed_grad"] == SAMPLES * (512 + 4)
    assert legs["broadcast"] == 5 * 4096 * 512 * 4
    assert legs["features"] == SAMPLES * FEATURES * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handover", "copies"),
    [("weights", 1), ("state", 2)],  # momentum doubles the parameters
)
def test_hand_overs_carry_head_and_tail(
    handover: str, copies: int, images: Path, tmp_path: Path
) -> None:
    momentum = {"kind": "sgd", "lr": 0.01, "momentum": 0.9}
    wire = wire_of(
        images,
        tmp_path / "run",
        clients={"count": 5, "handover": handover},
        train={"client": momentum, "batch_size": 4},
    )
    parameters = 83_520 + 512 * 4 + 4  # the L2H head of Table II and a tail for 4 classes
    # running mean and variance of three BatchNorms of 64, and a 64-bit counter each
    buffers = 3 * (2 * 64 * 4 + 8)
    steps = 5 * 2  # 8 samples each in batches of 4, client after client
    rows = wire[wire["leg"] == "handover"]
    assert rows["packets"].sum() == steps - 1
    assert rows["bytes"].sum() == (steps - 1) * (parameters * copies * 4 + buffers)


@pytest.mark.slow
def test_vanilla_sends_labels_and_no_features_and_own_heads_are_never_handed_over(
    images: Path, tmp_path: Path
) -> None:
    own = {"count": 5, "heads": "per_client"}
    legs = leg_bytes(wire_of(images, tmp_path / "run", topology="vanilla", clients=own))
    assert "handover" not in legs
    assert legs["labels"] == SAMPLES * 8
    assert "features" not in legs
    assert "features_grad" not in legs
