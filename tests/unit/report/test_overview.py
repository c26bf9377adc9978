"""One table over images and texts, by hand, from tables written by hand."""

import json

import pytest
from written_leaks import write_leaks

from simsplit.report.grouping import Entry
from simsplit.report.input_tables import find_worst_leak
from simsplit.report.overview import has_several_kinds, tabulate_overview
from simsplit.results import Run
from simsplit.terminal.printing import print_comparison

LIGHT = [{"kind": "lightsplit", "ratio": 8.0, "lift": "fixed"}]
CAUSAL = {"model": {"kind": "causal_lm"}}


@pytest.fixture
def made(variant):
    """A run in which attacks came to these means, of two targets each."""

    def make(name, figure, means, *, seed=0, fields=None, flagged=None, **summary):
        run = variant(name, {"seed": seed, **(fields or {})}, **summary)
        rows = [
            {"round": 1, "attack": attack, "target": index, figure: mean + off}
            for attack, mean in means.items()
            for index, off in ((0, 0.01), (1, -0.01))
        ]
        write_leaks(run.path, "texts" if figure == "rouge_l" else "images", rows)
        if flagged is not None:
            write_detections(run, flagged)
        return Entry(Run.load(run.path))

    return make


def write_detections(run, flagged):
    """Write a run whose client 1 of two is malicious; a detector flags these."""
    table = run.clients.assign(malicious=lambda t: (t["client"] == 1).astype(int))
    table["krum_flagged"] = table["client"].isin(flagged).astype(int)
    table.to_csv(run.path / "clients.csv", index=False)
    (run.path / "detections.csv").write_text("round,detector\n1,krum\n")


def cells(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_worst_attack_is_the_one_that_is_furthest_from_the_best_guess(made):
    results = {"ridge": 0.05, "unsplit": 0.15, "black": 0.4, "mean_image": 0.2}
    leak = find_worst_leak([made("images", "mse", results).run])
    assert leak.attack == "ridge"
    assert leak.shares == [pytest.approx(0.75)]  # of the 0.2 that the mean image is off
    assert (leak.reached, leak.floor) == (pytest.approx(0.05), pytest.approx(0.2))
    results = {"sip": 0.28, "tag": 0.1, "random_tokens": 0.02, "frequent_token": 0.1}
    leak = find_worst_leak([made("texts", "rouge_l", results).run])
    assert (leak.attack, leak.shares) == ("sip", [pytest.approx(0.2)])
    nothing = {"pcat": 0.3, "black": 0.4, "mean_image": 0.2}
    assert find_worst_leak([made("none", "mse", nothing).run]).shares == [pytest.approx(-0.5)]


def test_images_and_texts_stand_in_one_table_with_figures_of_their_own(made):
    entries = [
        made("raw", "mse", {"ridge": 0.05, "black": 0.2}, last={"test_accuracy": 0.9}, total=4096),
        made("light", "mse", {"ridge": 0.1, "black": 0.2}, fields={"method": LIGHT}),
        made("words", "rouge_l", {"sip": 0.55, "random_tokens": 0.1}, fields=CAUSAL),
    ]
    raw, light, words = cells(tabulate_overview(entries))
    assert raw["utility"] == "90.00 % accuracy"
    assert raw["bytes"] == "4.0 KiB"
    assert [row["leak"] for row in (raw, light, words)] == ["75 %", "50 %", "50 %"]
    message = "worst attack: its figure / the guess's"
    assert raw[message] == "ridge: MSE 0.0500 / 0.2000"
    assert words[message] == "sip: ROUGE-L 0.550 / 0.100"
    assert words["utility"].endswith("% token accuracy")
    assert has_several_kinds(entries)
    assert not has_several_kinds(entries[:2])


def test_seeds_are_a_row_with_a_spread(made):
    means = ({"ridge": 0.05, "black": 0.2}, {"ridge": 0.09, "black": 0.2})
    entries = [made(f"s{seed}", "mse", each, seed=seed) for seed, each in enumerate(means)]
    (row,) = cells(tabulate_overview(entries))
    assert (row["seeds"], row["leak"]) == ("2", "65 ± 14 %")


def test_caught_clients_stand_by_detector_and_epsilon_where_there_is_one(made):
    entry = made("caught", "mse", {}, flagged=[0, 1])
    (row,) = cells(tabulate_overview([entry]))
    assert row["krum: caught, honest flagged"] == "1 of 1, 1 of 1"
    assert "leak" not in row
    assert "epsilon" not in row
    guarded = made("guarded", "mse", {})
    path = guarded.run.path / "summary.json"
    privacy = [{"method": "dp_forward", "protects": "a sample's input", "epsilon": 1939.4}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "privacy": privacy}))
    (row,) = cells(tabulate_overview([Entry(Run.load(guarded.run.path))]))
    assert row["epsilon"] == "1,939 (a sample's input)"


def test_it_comes_first_where_runs_are_of_several_kinds_and_alone_if_asked(made, capsys):
    one = made("raw", "mse", {"ridge": 0.05, "black": 0.2}).run.path
    other = made("words", "rouge_l", {"sip": 0.5, "random_tokens": 0.1}, fields=CAUSAL).run.path
    print_comparison([one, other], "markdown")
    assert capsys.readouterr().out.startswith("overview; leak")
    print_comparison([one], "markdown")
    assert "overview" not in capsys.readouterr().out
    print_comparison([one], "csv", table="overview")
    (header, row) = capsys.readouterr().out.strip().splitlines()
    assert "utility,bytes,leak" in header
    assert "75 %" in row
