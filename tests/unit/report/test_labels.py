"""What attacks infer about labels is shown, compared and drawn; of a finished run too."""

import json

import pandas as pd
import pytest
from builders import run_to_end, scenario

from simsplit import Run
from simsplit.report.label_tables import measure_labels, tabulate_label_views, tabulate_labels
from simsplit.report.numbers import compare
from simsplit.results.label_results import summarise_labels

TWO = {"targets": {"count": 16, "per_class": 8}, "data": {"train_samples": 300}}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    given = scenario(**TWO, attacks=[{"kind": "spectral"}, {"kind": "kmeans"}])
    return run_to_end(given, tmp_path_factory.mktemp("runs") / "run").path


def rows(*given):
    place = {"round": 1, "view": "features", "adapter": 0, "low": 0.0, "high": 1.0, "samples": 9}
    return pd.DataFrame([{**place, "known": 0.0, **each} for each in given])


def test_the_worst_is_over_all_and_knows_its_own_floor():
    table = rows(
        {"attack": "spectral", "figure": "auc", "leak": 0.8},
        {"attack": "spectral", "figure": "auc", "leak": 0.9, "round": 2, "view": "gradient"},
        {"attack": "kmeans", "figure": "accuracy", "leak": 0.7},
        {"attack": "kmeans", "figure": "purity", "leak": 0.99},
        {"attack": "probe", "figure": "accuracy", "leak": 0.95, "known": 0.5, "samples": 4},
        {"attack": "chance", "figure": "auc", "leak": 0.55, "high": 0.6},
        {"attack": "chance", "figure": "auc", "leak": 0.56, "high": 0.61, "round": 2},
        {"attack": "chance", "figure": "accuracy", "leak": 0.3, "known": 0.5, "samples": 4},
        {"attack": "majority", "figure": "accuracy", "leak": 0.6, "known": 0.5, "samples": 4},
    )
    worst = summarise_labels(table)
    assert (worst["labels"]["leak"], worst["labels"]["round"]) == (0.9, 2)
    assert (worst["labels"]["chance"], worst["labels"]["chance_high"]) == (0.56, 0.61)
    assert "majority" not in worst["labels"]
    assert worst["labels_known"]["leak"] == 0.95
    assert worst["labels_known"]["majority"] == 0.6


def test_numbers_have_the_worst_of_each_view(with_labels):
    values = measure_labels(with_labels())
    assert (values["labels_leak"], values["labels_gradient_leak"]) == (1.0, 1.0)
    assert values["labels_features_leak"] == 0.75
    assert values["labels_features_chance"] == 0.56


def test_no_attack_on_labels_has_no_worst():
    assert summarise_labels(pd.DataFrame()) == {}


def test_show_has_a_row_for_each_attack_and_figure(run_dir, simsplit):
    shown = tabulate_labels(Run.load(run_dir))
    assert [row[:2] for row in shown.rows] == [
        ("spectral", "AUC"),
        ("kmeans", "accuracy"),
        ("kmeans", "purity of clusters"),
    ]
    code, out, err = simsplit("show", run_dir)
    assert code == 0, err
    assert "labels that" in out


def test_compare_has_a_column_for_each(run_dir, simsplit):
    code, out, err = simsplit("compare", run_dir, "--table", "labels")
    assert code == 0, err
    assert {"spectral,", "AUC", "purity"} <= set(out.split())
    code, out, err = simsplit("compare", run_dir, "--table", "labels", "--format", "csv")
    assert code == 0, err
    assert "leak_mean" in out.splitlines()[0]
    worst = Run.load(run_dir).summary["labels"]["leak"]
    assert compare(run_dir)["labels_leak_mean"].tolist() == [worst]


def test_an_attack_on_a_finished_run_recovers_the_same_as_in_the_run(run_dir, simsplit):
    code, out, err = simsplit("attack", run_dir, "--kind", "kmeans", "--set", "name=again")
    assert code == 0, err
    assert "again" in out
    table = Run.load(run_dir).labels
    own, before = (table[table["attack"] == name] for name in ("again", "kmeans"))
    assert own["view"].tolist() == before["view"].tolist()
    assert (run_dir / "attacks" / "again" / "labels.csv").exists()
    assert not (run_dir / "attacks" / "again" / "recovered.csv").exists()
    assert not table.duplicated(["round", "attack", "view", "figure"]).any()
    code, out, err = simsplit("attack", run_dir, "--kind", "norm", "--json")
    assert code == 0, err
    assert {row["attack"] for row in json.loads(out)["figures"]} >= {"norm"}


def test_a_row_for_each_view_and_below_them_the_floors(run_dir):
    run = Run.load(run_dir)
    shown = tabulate_label_views(run)
    assert set(shown.columns) >= {"seen in", "spectral, AUC", "kmeans, accuracy"}
    seen = [row[0] for row in shown.rows]
    assert seen == [
        "gradients of features",
        "gradients, unit length",
        "features",
        "chance",
        "majority",
    ]
    own = run.labels.query("attack == 'spectral' and view == 'direction'")
    spectral, kmeans = map(shown.columns.index, ("spectral, AUC", "kmeans, accuracy"))
    assert shown.rows[1][spectral].startswith(f"{100 * own['leak'].max():.1f} (")
    assert (shown.rows[-1][spectral], shown.rows[-1][kmeans]) == ("", "50.0")


def test_a_run_without_attacks_on_labels_has_nothing_to_show(finished_run):
    assert finished_run.labels.empty
    assert "labels" not in finished_run.summary
    assert tabulate_label_views(finished_run).rows == []
