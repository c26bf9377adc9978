"""A deployed client keeps to itself what a guarantee forbids it to send; its owner can read it."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import TINY
from deployed import Deployment
from gists import says

from simsplit.deploy.keys import client_name
from simsplit.deploy.site import WITHHELD_FIGURES
from simsplit.report.run_tables import show
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy

PAIR: dict[str, Any] = {"data": {"classes": [3, 8]}, "clients": {"count": 2}}
SLOWLY = {"kind": "sgd", "lr": 1e-4}
"""A rate at which so much noise does not make training diverge, whatever a client's secret is."""
NOISED = {
    "train": {"client": SLOWLY, "server": SLOWLY},
    "model": {"kind": "simplecnn", "learns": ["head", "trunk"]},
    "method": [{"kind": "dp_sgd", "multiplier": 2.0, "relative": False}],
}
FLIPPED = {"clients": {"heads": "per_client"}, "method": [{"kind": "pslf"}]}


def pair(changes: dict[str, Any]) -> Scenario:
    return parse(merge(merge(TINY, PAIR), changes))


def read_raw(run: Run, table: str) -> pd.DataFrame:
    """Read a table as a stranger to simsplit would."""
    return pd.read_csv(run.path / f"{table}.csv")


def test_losses_stay_with_a_client_whose_labels_noise_hides(
    deployment: Deployment, tmp_path: Path
) -> None:
    run = deployment.run(pair(NOISED), tmp_path, mode="private")
    assert deployment.ends(2) == ["finished"] * 2
    for table in ("rounds", "clients"):
        raw = read_raw(run, table)
        assert {*raw["train_loss"], *raw["train_accuracy"]} == {"withheld"}
    assert run.rounds["train_loss"].isna().all()
    assert run.rounds["test_accuracy"].notna().all(), "its tail is public"
    summary = run.summary
    assert summary["withheld"] == ["train_loss", "train_accuracy"]
    assert summary["privacy"][0]["epsilon"] > 0
    assert any(says(str(table.rows), "train_loss ... withheld") for table in show(run))
    kept = pd.read_csv(tmp_path / client_name(0) / WITHHELD_FIGURES)
    assert [*kept["figure"].unique()] == ["train_loss", "train_accuracy"]
    assert [*kept["round"].unique()] == [1, 2]


def test_scores_of_a_tail_with_true_labels_stay_too(deployment: Deployment, tmp_path: Path) -> None:
    run = deployment.run(pair(FLIPPED), tmp_path, mode="private")
    assert deployment.ends(2) == ["finished"] * 2
    raw = read_raw(run, "rounds")
    assert {*raw["test_accuracy"], *raw["test_loss"], *raw["train_loss"]} == {"withheld"}
    assert read_raw(run, "clients")["pseudo_accuracy"].between(0, 1).all()
    assert run.summary["last"] == {"round": 2}
    assert run.summary["privacy"][0]["epsilon"] == 1
    assert show(run)
    kept = pd.read_csv(tmp_path / client_name(1) / WITHHELD_FIGURES)
    assert {"test_accuracy", "labels_flipped"} <= {*kept["figure"]}


def test_a_rehearsal_gives_no_guarantee(deployment: Deployment, tmp_path: Path) -> None:
    run = deployment.run(pair(NOISED), tmp_path)
    assert deployment.ends(2) == ["finished"] * 2
    (entry,) = run.summary["privacy"]
    assert entry["epsilon"] is None
    assert says(entry["none"], "rehearsal ... --mode private")
    assert not (run.path / "privacy.csv").exists()
