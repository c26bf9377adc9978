"""Runs as numbers: by hand, over seeds, and which way is better."""

import csv
import io
import math
import statistics

import pytest
from written_leaks import write_leaks

from simsplit import compare
from simsplit.errors import RunError
from simsplit.metrics import find_better
from simsplit.report.grouping import load_entries
from simsplit.report.numbers import write_csv
from simsplit.results import Run

LIGHT = [{"kind": "lightsplit", "ratio": 8.0, "lift": "fixed"}]


@pytest.fixture
def runs(variant):
    """Two seeds raw, one light; the attack leaks less of light."""
    made = []
    for name, method, seed, accuracy, mse in (
        ("raw0", [], 0, 0.9, 0.1), ("raw1", [], 1, 0.8, 0.3), ("light", LIGHT, 0, 0.7, 0.5)
    ):  # fmt: skip
        run = variant(
            name, {"method": method, "seed": seed}, {"test_accuracy": accuracy}, total=1000
        )
        rows = [{"target": target, "ssim": ssim} for target, ssim in ((0, 0.5), (1, 0.7))]
        place = {"round": 1, "attack": "ridge", "mse": mse}
        write_leaks(run.path, "images", [place | row for row in rows])
        made.append(Run.load(run.path))
    return made


def test_a_row_per_setting_with_mean_and_deviation_as_numbers(runs):
    table = compare(*runs)
    assert table["method"].tolist() == ["raw", "lightsplit 8 fixed"]
    assert table["seeds"].tolist() == [2, 1]
    raw, light = table.to_dict("records")
    assert raw["test_accuracy_mean"] == pytest.approx(0.85)
    assert raw["test_accuracy_std"] == pytest.approx(statistics.stdev([0.9, 0.8]))
    assert light["test_accuracy_std"] != light["test_accuracy_std"], "one seed has no deviation"
    assert raw["bytes_total_mean"] == 1000
    assert raw["ridge_mse_mean"] == pytest.approx(0.2)
    assert light["ridge_ssim_mean"] == pytest.approx(0.6)
    assert {"seconds_mean", "seconds_per_sample_mean", "bytes_smashed_mean"} <= set(table)


def test_a_misspelt_round_is_not_taken_for_the_last(runs):
    with pytest.raises(RunError, match="best_on_validation"):
        compare(*runs, figure="best_on_validaton")


def test_paths_do_as_well_as_runs(runs):
    paths = compare(*(str(run.path) for run in runs))
    assert paths.equals(compare(*runs))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("test_accuracy", "more"),
        ("test_loss_without_trunk", "less"),
        ("test_rouge_l", "more"),
        ("bytes_total", "less"),
        ("seconds_per_sample", "less"),
        ("attack_success", "less"),
        ("ridge_mse", "more"),
        ("whitebox_ssim", "less"),
        ("sip_rouge_l", "less"),
        ("cosine_payload_auroc", "more"),
        ("cosine_payload_fpr", "less"),
        ("cosine_payload_tpr_at_1pct_fpr", "more"),
        ("round", None),
    ],
)
def test_which_way_is_better(name, way):
    assert find_better(name) == way


def test_csv_has_raw_numbers_and_one_table(runs):
    entries, _ = load_entries(run.path for run in runs)
    rows = list(csv.DictReader(io.StringIO(write_csv(entries, "last", "settings"))))
    assert float(rows[0]["test_accuracy_mean"]) == pytest.approx(0.85)
    assert float(rows[0]["bytes_total_mean"]) == 1000
    assert rows[1]["test_accuracy_std"] == ""
    attacks = list(csv.DictReader(io.StringIO(write_csv(entries, "last", "inputs"))))
    assert [(row["method"], row["attack"], row["seeds"]) for row in attacks] == [
        ("raw", "ridge", "2"),
        ("lightsplit 8 fixed", "ridge", "1"),
    ]
    assert float(attacks[0]["mse_mean"]) == pytest.approx(0.2)
    assert float(attacks[0]["mse_std"]) == pytest.approx(statistics.stdev([0.1, 0.3]))
    with pytest.raises(RunError, match="--table detections"):
        write_csv(entries, "last", "detections")


def test_change_is_against_the_baseline_that_compare_takes(runs):
    raw, light = compare(*runs).to_dict("records")
    assert raw["accuracy_change"] == 0
    assert light["accuracy_change"] == pytest.approx(0.7 - 0.9), "of the seed that both have"
    assert light["bytes_ratio"] == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_has_no_deviation_and_stops_no_table(variant, value):
    """The last step of training can make a network whose loss is no number."""
    figures = zip((value, 2.0), (0.9, 0.7), strict=True)
    runs = [
        variant(f"{seed}", {"seed": seed}, {"test_loss": loss, "test_accuracy": accuracy})
        for seed, (loss, accuracy) in enumerate(figures)
    ]
    (row,) = compare(*runs).to_dict("records")
    assert not math.isfinite(row["test_loss_mean"])
    assert math.isnan(row["test_loss_std"])
    assert row["test_accuracy_std"] == pytest.approx(statistics.stdev([0.9, 0.7]))


def test_an_attack_that_was_judged_earlier_than_another_is_in_the_csv(variant):
    """As a run has that was attacked, made longer, and attacked by another kind."""
    run = variant("twice", {}, {})
    rows = [{"round": 1, "attack": "ridge", "mse": 0.3}, {"round": 2, "attack": "near", "mse": 0.2}]
    write_leaks(run.path, "images", [row | {"target": 0} for row in rows])
    entries, _ = load_entries([run.path])
    table = list(csv.DictReader(io.StringIO(write_csv(entries, "last", "inputs"))))
    assert {row["attack"]: float(row["mse_mean"]) for row in table} == {"ridge": 0.3, "near": 0.2}
    (numbers,) = compare(run).to_dict("records")
    assert (numbers["ridge_mse_mean"], numbers["near_mse_mean"]) == (0.3, 0.2)


def test_a_name_of_another_s_run_is_no_formula_in_the_csv(variant):
    run = variant("=cmd()", {}, {"test_loss": -0.5})
    entries, _ = load_entries([run.path])
    (row,) = csv.DictReader(io.StringIO(write_csv(entries, "last", "settings")))
    assert row["run"] == "'=cmd()"
    assert row["test_loss_mean"] == "-0.5"
