"""What attacks infer about labels is shown, compared and drawn; of a finished run too."""

import json

import pandas as pd
import pytest
from builders import run_to_end, scenario
from written_leaks import make_leaks

from simsplit import Run
from simsplit.report.leak_tables import tabulate_leaks, tabulate_views
from simsplit.report.numbers import compare
from simsplit.results.worst_views import measure_worst, summarise_worst

TWO = {"targets": {"count": 16, "per_class": 8}, "data": {"train_samples": 300}}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    given = scenario(**TWO, attacks=[{"kind": "spectral"}, {"kind": "kmeans"}])
    return run_to_end(given, tmp_path_factory.mktemp("runs") / "run").path


def rows(*given):
    place = {"round": 1, "view": "features", "adapter": 0, "low": 0.0, "high": 1.0, "samples": 9}
    return make_leaks("labels", [{**place, "known": 0.0, **each} for each in given])


def test_the_worst_is_over_all_and_knows_its_own_floor():
    table = rows(
        {"attack": "spectral", "metric": "auc", "value": 0.8},
        {"attack": "spectral", "metric": "auc", "value": 0.9, "round": 2, "view": "gradient"},
        {"attack": "kmeans", "metric": "accuracy", "value": 0.7},
        {"attack": "kmeans", "metric": "purity", "value": 0.99},
        {"attack": "probe", "metric": "accuracy", "value": 0.95, "known": 0.5, "samples": 4},
        {"attack": "chance", "metric": "auc", "value": 0.55, "high": 0.6},
        {"attack": "chance", "metric": "auc", "value": 0.56, "high": 0.61, "round": 2},
        {"attack": "chance", "metric": "accuracy", "value": 0.3, "known": 0.5, "samples": 4},
        {"attack": "majority", "metric": "accuracy", "value": 0.6, "known": 0.5, "samples": 4},
    )
    worst = summarise_worst(table)
    assert (worst["labels"]["leak"], worst["labels"]["round"]) == (0.9, 2)
    assert (worst["labels"]["chance"], worst["labels"]["chance_high"]) == (0.56, 0.61)
    assert "majority" not in worst["labels"]
    assert worst["labels_known"]["leak"] == 0.95
    assert worst["labels_known"]["majority"] == 0.6


def test_numbers_have_the_worst_of_each_view(with_labels):
    values = measure_worst(with_labels().labels)
    assert (values["labels_leak"], values["labels_gradient_leak"]) == (1.0, 1.0)
    assert values["labels_features_leak"] == 0.75
    assert values["labels_features_chance"] == 0.56


def test_numbers_have_each_attack_by_features_and_by_gradients(run_dir):
    """The best of several components is no paper's measure, so it counts for neither."""
    run = Run.load(run_dir)
    given = {"attack": "spectral", "metric": "auc"}
    vars(run)["labels"] = rows(
        {**given, "value": 0.8},
        {**given, "value": 0.6, "view": "gradient"},
        {**given, "value": 0.7, "view": "direction"},
        {**given, "value": 0.99, "view": "direction", "metric": "best_auc"},
        {"attack": "kmeans", "metric": "accuracy", "value": 0.9, "view": "recovered"},
        *({"attack": "chance", "metric": f, "value": 0.5} for f in ("auc", "best_auc", "accuracy")),
    )
    values = measure_worst(run.labels)
    assert values["labels_spectral_features_leak"] == 0.8
    assert values["labels_spectral_gradients_leak"] == 0.7
    assert values["labels_spectral_gradients_chance"] == 0.5
    assert values["labels_spectral_both_leak"] == 0.8
    assert values["labels_kmeans_gradients_leak"] == 0.9
    assert "labels_kmeans_features_leak" not in values


def test_no_attack_on_labels_has_no_worst():
    assert summarise_worst(pd.DataFrame()) == {}
    assert measure_worst(pd.DataFrame()) == {}


def test_show_has_a_row_for_each_attack_and_figure(run_dir, simsplit):
    shown = tabulate_leaks(Run.load(run_dir), "labels")
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
    assert "value_mean" in out.splitlines()[0]
    worst = Run.load(run_dir).summary["labels"]["leak"]
    assert compare(run_dir)["labels_leak_mean"].tolist() == [worst]


def test_an_attack_on_a_finished_run_recovers_the_same_as_in_the_run(run_dir, simsplit):
    code, out, err = simsplit("attack", run_dir, "--kind", "kmeans", "--set", "name=again")
    assert code == 0, err
    assert "again" in out
    table = Run.load(run_dir).labels
    own, before = (table[table["attack"] == name] for name in ("again", "kmeans"))
    assert own["view"].tolist() == before["view"].tolist()
    assert (run_dir / "attacks" / "again" / "leaks.csv").exists()
    assert not table.duplicated(["round", "attack", "view", "metric"]).any()
    code, out, err = simsplit("attack", run_dir, "--kind", "norm", "--json")
    assert code == 0, err
    assert {row["attack"] for row in json.loads(out)["figures"]} >= {"norm"}


def test_a_row_for_each_view_and_below_them_the_floors(run_dir):
    run = Run.load(run_dir)
    shown = tabulate_views(run, "labels")
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
    assert shown.rows[1][spectral].startswith(f"{100 * own['value'].max():.1f} (")
    assert (shown.rows[-1][spectral], shown.rows[-1][kmeans]) == ("", "50.0")


def test_a_run_without_attacks_on_labels_has_nothing_to_show(finished_run):
    assert finished_run.labels.empty
    assert "labels" not in finished_run.summary
    assert tabulate_views(finished_run, "labels").rows == []
