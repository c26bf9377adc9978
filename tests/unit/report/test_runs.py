import json
import math
import shutil

import pytest
from gists import says

from simsplit.errors import RunError
from simsplit.report.comparison import compare
from simsplit.report.run_tables import show, write_heading
from simsplit.report.tables import write_mean
from simsplit.results import Run

LIGHT = {"kind": "lightsplit", "ratio": 8.0, "k": None, "lift": "fixed", "legs": ["smashed"]}


def make_scores(value):
    return {"test_accuracy": value, "test_balanced_accuracy": value - 0.1}


def cells(table):
    """Return run -> column -> cell."""
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def make_unfinished(finished_run, path, rounds_kept, **summary):
    shutil.copytree(finished_run.path, path)
    facts = {"name": "cut", "status": "running", "rounds_done": 0, "rounds": 5, **summary}
    (path / "summary.json").write_text(json.dumps(facts))
    for table in ("rounds", "wire"):
        lines = (path / f"{table}.csv").read_text().splitlines(keepends=True)
        (path / f"{table}.csv").write_text("".join(lines if rounds_kept else lines[:1]))
    return Run.load(path)


def test_a_finished_run_is_shown_with_a_row_per_figure_and_per_leg(finished_run):
    figures, legs, _ = show(finished_run)
    summary = finished_run.summary
    assert write_heading(finished_run) == "finished: finished, 1 of 1 round"
    assert figures.columns == (
        "", "last round", "best on validation", "best on test (as papers select)"
    )  # fmt: skip
    shown = {name: rest for name, *rest in figures.rows}
    assert list(shown)[:2] == ["round", "validation accuracy"]
    assert shown["round"] == ["1", "1", "1"]
    assert shown["test accuracy"][0] == f"{100 * summary['last']['test_accuracy']:.2f}%"
    assert shown["test loss"][0] == f"{summary['last']['test_loss']:.4f}"
    by_leg = {leg.partition(" (w")[0]: rest for leg, *rest in legs.rows}
    for leg, nbytes in summary["bytes"].items():
        if leg not in ("total", "evaluation"):
            assert by_leg[leg][1] == f"{nbytes:,}"
    assert by_leg["all"][1] == f"{summary['bytes']['total']:,}"
    assert by_leg["all"][3] == "100.0%"


@pytest.mark.parametrize(
    ("fields", "gist"),
    [
        ({}, "weights ... moments"),
        ({"clients": {"handover": "weights"}}, "weights"),
        ({"aggregation": {"kind": "splitfed_v2"}}, "weights"),
        ({"aggregation": {"kind": "splitfed_v2", "bits": 8}}, "changes ... 8 bits"),
    ],
)
def test_the_form_of_handovers_stands_where_bytes_are(variant, fields, gist):
    run = variant("handed", fields)
    legs = next(table for table in show(run) if table.columns[0] == "leg")
    assert any(says(row[0], f"handover ({gist})") for row in legs.rows)
    assert says(compare([run]).title, f"; hand-overs ... {gist}")
    both = compare([run, variant("other")]).title
    assert both.count("optimizer's moments") == 1


def test_an_attack_s_success_is_shown_with_its_interval(variant):
    last = {"attack_success": 0.9, "attack_success_all": 0.92}
    figures, *_ = show(variant("attacked", last=last, attack_samples=100))
    shown = {name: rest for name, *rest in figures.rows}
    assert shown["attack success"][0] == "90.0% [82.4, 95.1]"
    assert shown["attack success, all heads"][0] == "92.0% [84.8, 96.5]"


def test_a_mean_over_heads_is_shown_as_it_is_in_every_table(variant):
    """One head of two has 2 hits in 20, the other 1: their mean is no number of hits in 20."""
    run = variant("attacked", last={"attack_success": 0.075}, attack_samples=20)
    figures, *_ = show(run)
    (shown,) = [rest for name, *rest in figures.rows if name == "attack success"]
    assert shown[0] == "7.5% [1.2, 31.7]"
    assert cells(compare([run]))["attacked"]["attack success"] == shown[0]


def test_a_run_without_validation_data_has_no_such_column(variant):
    figures, *_ = show(variant("plain", best_on_validation=None))
    assert figures.columns == ("", "last round", "best on test (as papers select)")


def test_a_killed_run_shows_what_there_is(finished_run, tmp_path):
    killed = make_unfinished(finished_run, tmp_path / "killed", rounds_kept=True)
    assert says(write_heading(killed), "cut: ... killed ... 1 of 5")
    figures, legs = show(killed)
    assert figures.columns == ("", "last round")
    assert figures.rows[0] == ("round", "1")
    assert legs.rows[-1][0] == "all"


def test_a_run_stopped_before_its_first_round_shows_why(finished_run, tmp_path):
    why = {"status": "failed", "reason": "the disk is full"}
    failed = make_unfinished(finished_run, tmp_path / "failed", rounds_kept=False, **why)
    assert write_heading(failed) == "cut: failed, 0 of 5 rounds\nwhy: the disk is full"
    assert show(failed) == []


WATCHED = {"observers": [{"kind": "jsonl", "file": "rounds.jsonl"}]}


def test_runs_alike_but_for_their_seed_are_a_mean_and_a_spread(variant):
    runs = [
        variant("raw-0", {"seed": 0}, make_scores(0.90), total=1000),
        variant(
            "raw-1", {"seed": 1, "threads": 7, "device": "cuda"}, make_scores(0.94), total=1000
        ),
        variant("light-0", {"seed": 0, "method": [LIGHT]} | WATCHED, make_scores(0.88), total=300),
        variant("light-1", {"seed": 1, "method": [LIGHT]}, make_scores(0.86), total=300),
        variant(
            "light-2", {"seed": 2, "method": [LIGHT], "newer": None}, make_scores(0.87), total=600
        ),
    ]
    table = compare(runs)
    assert cells(table) == {
        "raw-0": {
            "run": "raw-0", "method": "raw", "seeds": "2", "accuracy": "92.00 ± 2.83",
            "balanced": "82.00 ± 2.83", "change": "", "bytes": "1000 B", "of Raw": "1.000",
        },
        "light-0": {
            "run": "light-0", "method": "lightsplit 8 fixed", "seeds": "3",
            "accuracy": "87.00 ± 1.00", "balanced": "77.00 ± 1.00",
            "change": "-5.00 [-43.12, +33.12]", "bytes": "400 B", "of Raw": "0.400",
        },
    }  # fmt: skip
    assert table.align == "llrrrrrr"


def test_a_run_of_a_seed_that_is_there_is_left_out_by_name(variant):
    one, again = (variant(name, {"name": "x"}, make_scores(0.9), total=1000) for name in ("a", "b"))
    table = compare([one, again])
    assert cells(table)["a"]["seeds"] == "1"
    assert cells(table)["a"]["accuracy"] == "90.00"
    assert says(table.title, f"left out ... {again.path}")


def test_a_best_round_is_claimed_only_where_there_is_validation_data(variant):
    best = variant("best", {}, make_scores(0.9))
    last = variant("last", {"seed": 9}, make_scores(0.9))
    summary = json.loads((last.path / "summary.json").read_text()) | {"best_on_validation": None}
    (last.path / "summary.json").write_text(json.dumps(summary))
    last = Run.load(last.path)
    assert "last (no" in compare([last]).title
    assert "best on validation; last" in compare([best, last]).title
    assert "best on validation; hand-overs" in compare([best]).title


def test_a_row_of_fewer_seeds_is_held_against_raw_of_those_seeds(variant):
    runs = [
        variant("raw-0", {"seed": 0}, make_scores(0.90), total=1000),
        variant("raw-1", {"seed": 1}, make_scores(0.94), total=2000),
        variant("light-1", {"seed": 1, "method": [LIGHT]}, make_scores(0.93), total=500),
    ]
    row = cells(compare(runs))["light-1"]
    assert (row["change"], row["of Raw"]) == ("-1.00", "0.250")


def test_each_data_set_has_its_own_baseline(variant):
    mnist = {"data": {"source": {"kind": "mnist", "root": "data", "download": False}}}
    per_client = {"clients": {"heads": "per_client"}}
    runs = [
        variant("light", {"method": [LIGHT]}, make_scores(0.80), total=100),
        variant("raw", {}, make_scores(0.70), total=400),
        variant("mnist-light", {**mnist, "method": [LIGHT]}, make_scores(0.90), total=100),
        variant("mnist-raw", {**mnist, "method": [{"kind": "raw"}]}, make_scores(0.95), total=200),
        variant("pch-light", {**per_client, "method": [LIGHT]}, make_scores(0.5), total=100),
    ]
    table = cells(compare(runs))
    assert (table["light"]["change"], table["light"]["of Raw"]) == ("+10.00", "0.250")
    assert (table["mnist-light"]["change"], table["mnist-light"]["of Raw"]) == ("-5.00", "0.500")
    assert (table["mnist-raw"]["change"], table["mnist-raw"]["of Raw"]) == ("", "1.000")
    assert (table["pch-light"]["change"], table["pch-light"]["of Raw"]) == ("", "")
    assert [row["setting"] for row in table.values()] == [
        "digits, iid, SCH", "digits, iid, SCH", "mnist, iid, SCH", "mnist, iid, SCH",
        "digits, iid, PCH",
    ]  # fmt: skip


def test_schedule_and_averages_tell_rows_apart(variant):
    v1 = {"kind": "splitfed_v1", "strategy": {"kind": "fedavg"}, "moments": "keep"}
    fused = {"kind": "fused", "strategy": {"kind": "fedmedian"}}
    parallel = {"kind": "parallel", "rounds": 1}
    runs = [
        variant("usual"),
        variant(
            "hosts", {"engine": {"kind": "ray"}, "seed": 9}
        ),  # of which the results do not depend
        variant("v1", {"aggregation": v1}),
        variant("fused", {"schedule": parallel, "aggregation": fused}),
        variant("alone", {"schedule": parallel, "clients": {"heads": "per_client"}}),
    ]
    table = cells(compare(runs))
    assert {name: (row["setting"], row["seeds"]) for name, row in table.items()} == {
        "usual": ("digits, iid, SCH", "2"),
        "v1": ("digits, iid, SCH, splitfed_v1", "1"),
        "fused": ("digits, iid, SCH, parallel, fused fedmedian", "1"),
        "alone": ("digits, iid, PCH, parallel", "1"),
    }


def test_runs_with_one_name_are_distinguished_by_the_fields_that_differ(variant):
    poisoned = {"malicious": {"fraction": 0.5, "poison": [{"kind": "badnets"}]}}
    runs = [
        variant("usual", {"name": "x"}),
        variant("many", {"clients": {"count": 7}, "train": {"client": {"lr": 0.5}}}),
        variant("bad", {"clients": poisoned}),
        variant("light", {"method": [LIGHT]}),
    ]
    table = compare(runs)
    columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
    assert columns["count"] == ["2", "7", "2", "2"]
    assert columns["lr"][1] == "0.5" != columns["lr"][0]
    assert columns["poison"][2] == "badnets", "by its kind, as nothing else of it differs"
    assert table.align[table.columns.index("poison")] == "r"
    assert not columns.keys() & {"seed", "rounds", "batch_size"}, "these do not differ"
    assert compare(runs[::3]).columns[:3] == ("run", "method", "seeds")


def test_an_empty_list_of_methods_is_raw(variant):
    table = compare(
        [variant("a", {"method": []}), variant("b", {"method": [{"kind": "raw"}], "seed": 9})]
    )
    assert [(row["method"], row["seeds"]) for row in cells(table).values()] == [("raw", "2")]


@pytest.mark.parametrize(
    ("methods", "name"),
    [
        ([], "raw"),
        ([LIGHT, {"kind": "wcc", "weight": 0.01}], "lightsplit 8 fixed + wcc 0.01"),
        ([{**LIGHT, "ratio": None, "k": 40, "lift": "learned"}], "lightsplit 40 learned"),
        ([{**LIGHT, "legs": ["smashed", "features"]}], "lightsplit 8 fixed both legs"),
        ([{"kind": "cast", "to": "int8", "legs": ["features"]}], "cast int8 features"),
    ],
)
def test_methods_have_short_names(variant, methods, name):
    assert cells(compare([variant("x", {"method": methods})]))["x"]["method"] == name


def test_the_round_that_is_quoted_can_be_chosen(variant):
    run = variant("x")
    facts = run.summary
    for chosen, value in (("last", 0.1), ("best_on_validation", 0.2), ("best_on_test", 0.3)):
        facts[chosen] = make_scores(value)
    for chosen, value in (
        ("last", "10.00"),
        ("best_on_validation", "20.00"),
        ("best_on_test", "30.00"),
    ):
        table = compare([run], chosen)
        assert cells(table)["x"]["accuracy"] == value
        assert chosen.replace("_", " ") in table.title
    facts["best_on_validation"] = None
    assert cells(compare([run]))["x"]["accuracy"] == "10.00"


def test_a_run_scored_without_accuracy_is_compared_by_its_bytes(variant):
    runs = [variant("raw", total=100), variant("light", {"method": [LIGHT]}, total=50)]
    for run in runs:
        for chosen in ("last", "best_on_validation", "best_on_test"):
            run.summary[chosen] = {"round": 1, "test_loss": 1.0}
    table = compare(runs)
    assert table.columns == ("run", "method", "seeds", "bytes", "of Raw")
    assert cells(table)["light"]["of Raw"] == "0.500"


def test_a_run_that_has_not_finished_cannot_be_compared(variant, finished_run, tmp_path):
    killed = make_unfinished(
        finished_run, tmp_path / "killed", rounds_kept=True, status="interrupted"
    )
    with pytest.raises(RunError, match=r"killed.*interrupted.*--resume"):
        compare([variant("raw"), killed])


def test_a_mean_and_a_spread():
    assert write_mean("accuracy", []) == ""
    assert write_mean("accuracy", [0.5]) == "50.00"
    assert write_mean("answers", [0.5, 0.5]) == "50.00 ± 0.00"
    assert write_mean("perplexity", [1, 3]) == "2.0 ± 1.4"
    assert write_mean("perplexity", [1, math.inf]) == "inf ± nan", "the exponent overflowed"
    assert write_mean("loss", [1, math.nan]) == "nan ± nan", "the last step diverged"


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_every_form_has_every_row(variant, form):
    table = compare([variant("raw_1"), variant("light", {"method": [LIGHT]})])
    text = table.text(form)
    assert "lightsplit 8 fixed" in text
    assert (r"raw\_1" if form == "latex" else "raw_1") in text


def test_runs_of_one_name_are_called_by_their_folders(variant):
    fields = {"train": {"batch_size": 4}, "name": "same"}
    one = variant("first", {"name": "same"})
    two = variant("second", fields)
    for run in (one, two):
        run.summary["name"] = "same"
    assert list(cells(compare([one, two]))) == ["first", "second"]
