"""Runs beside each other by what attacks recovered: by hand, from tables written by hand."""

import numpy as np
import pytest
from gists import gist, says
from written_leaks import write_leaks

from simsplit.errors import RunError
from simsplit.metrics.intervals import bootstrap_interval
from simsplit.report.comparison import compare
from simsplit.report.grouping import Entry
from simsplit.report.input_tables import compare_recoveries, tabulate_recoveries
from simsplit.report.short_names import distinguish_methods
from simsplit.results import Run
from simsplit.terminal.printing import print_comparison

MIX = {"kind": "mixguard", "tokens": 8, "calibrate": True, "noise": "adaptive"}


@pytest.fixture
def attacked(variant):
    """A run in which attacks made this of two targets: (figure, a value each)."""

    def make(
        name, scores, *, method=None, seed=0, columns=("mse", "ssim"), targets=None, **summary
    ):
        fields = {"method": method or [], "seed": seed} | ({"targets": targets} if targets else {})
        made = variant(name, fields, **summary)
        rows = [
            {"round": 1, "attack": attack, "target": number, **dict(zip(columns, row, strict=True))}
            for attack, values in scores.items()
            for number, row in enumerate(values)
        ]
        write_leaks(made.path, "images" if columns[0] == "mse" else "texts", rows)
        return Entry(Run.load(made.path))

    return make


LIGHT = [{"kind": "lightsplit", "ratio": 8.0, "lift": "fixed"}]


def cells(table):
    """Return row's first cell -> column -> cell."""
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_a_table_per_figure_with_a_row_per_cell_and_a_column_per_attack(attacked):
    black = [(0.4, 0.0), (0.2, 0.0)]
    plain = [{"unsplit": [(0.1, 0.8), (0.3, 0.6)], "black": black}] * 2
    hidden = {"unsplit": [(0.3, 0.1), (0.5, 0.1)], "pcat": [(1, 0), (1, 0)], "black": black}
    entries = [attacked(f"raw{seed}", results, seed=seed) for seed, results in enumerate(plain)]
    entries.append(attacked("light", hidden, method=LIGHT))
    mse, ssim = compare_recoveries(entries)
    assert says(mse.title, "MSE ... 2 ... images ... 0.3000")
    assert mse.columns == ("run", "method", "unsplit", "pcat")
    assert mse.rows[0][1:] == ("raw", "0.2000 ± 0.0000", "")
    assert mse.rows[1] == ("light", "lightsplit 8 fixed", "0.4000", "1.0000")
    assert [row[2:] for row in ssim.rows] == [("0.700 ± 0.000", ""), ("0.100", "0.000")]
    assert compare_recoveries([]) == []


def test_foregrounds_without_ssim_are_counted(attacked):
    columns = ("mse", "ssim", "fg_mse", "fg_ssim")
    results = {"unsplit": [(0.1, 0.8, 0.1, 0.5), (0.1, 0.8, 0.1, ""), (0.1, 0.8, 0.1, 0.7)]}
    entry = attacked("raw", results, columns=columns)
    note = "foreground SSIM: ... 2 of 3 ... 11 pixels"
    assert says(tabulate_recoveries(entry.run).title, f"3 images; {note}")
    noted = {table.title for table in compare_recoveries([entry]) if says(table.title, note)}
    assert len(noted) == 1
    assert says(noted.pop(), "foreground SSIM ... 3 ... images; ")
    whole = attacked("whole", {"unsplit": [(0.1, 0.8, 0.1, 0.5)]}, columns=columns)
    assert says(tabulate_recoveries(whole.run).title, "1 images")


def test_images_and_texts_side_by_side_are_each_counted(attacked):
    images = attacked("images", {"unsplit": [(0.1, 0.8)] * 5})
    texts = attacked("texts", {"sip": [(0.5,)] * 2}, columns=("rouge_l",), seed=1, method=LIGHT)
    titles = [table.title for table in compare_recoveries([images, texts])]
    assert "MSE of 5 recovered images" in titles
    assert any(title.startswith("ROUGE-L of 2 recovered texts") for title in titles)


def test_guesses_that_differ_between_cells_are_columns(attacked):
    one = attacked("one", {"sip": [(0.5,)], "random_tokens": [(0.1,)]}, columns=("rouge_l",))
    other = attacked(
        "other",
        {"sip": [(0.4,)], "random_tokens": [(0.2,)]},
        columns=("rouge_l",),
        method=[{"kind": "noise", "sigma": 0.5}],
    )
    (table,) = compare_recoveries([one, other])
    assert table.title == "ROUGE-L of 1 recovered text"
    assert table.columns[2:] == ("sip", "(random tokens)")
    assert [row[2:] for row in table.rows] == [("0.500", "0.100"), ("0.400", "0.200")]


def test_texts_have_intervals_over_batches_and_seeds(attacked):
    """As wide as batches differ; alike within a batch, as texts of one draw of secrets are."""
    columns = ("rouge_l", "best_rouge_l")

    def tabulate(*seeds, size=2):
        entries = [
            attacked(
                f"s{seed}-{size}-{values}",
                {"sip": [(value, value) for value in values]},
                columns=columns,
                seed=seed,
                targets={"batch_size": size},
            )
            for seed, values in enumerate(seeds)
        ]
        table = compare_recoveries(entries)[0]
        return cells(table)[table.rows[0][0]]["sip"], table.title

    alike, title = tabulate([0.2, 0.2, 0.2, 0.2])
    assert alike == "0.200 (0.200 to 0.200)"
    assert says(title, "ROUGE-L ... 4 ... 95 % ... texts and seeds")
    two = [0.1, 0.1, 0.3, 0.3]
    assert tabulate(two)[0] == "0.200 (0.100 to 0.300)", "two batches, drawn whole"
    assert tabulate(two, size=4) == ("0.200", "ROUGE-L of 4 recovered texts"), (
        "one draw says nothing"
    )
    apart, _ = tabulate([0.1] * 8, [0.3] * 8)
    assert apart == "0.200 (0.100 to 0.300)", "seeds that differ widen it"


@pytest.mark.slow
def test_an_interval_covers_the_truth_as_often_as_it_says():
    """Against runs and batches whose mean is known."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(100):
        of_runs = rng.normal(0.5, 0.05, 8)
        of_batches = of_runs[:, None] + rng.normal(0, 0.1, (8, 16))
        runs = list(np.repeat(of_batches, 2, axis=1))
        low, high = bootstrap_interval(runs, 2)
        held += low <= 0.5 <= high
    assert 85 < held < 100


@pytest.mark.parametrize(("best", "tables"), [(0.5, 1), (0.7, 2)])
def test_the_best_of_messages_is_shown_where_there_are_several(attacked, best, tables):
    columns = ("rouge_l", "best_rouge_l")
    made = compare_recoveries([attacked("one", {"sip": [(0.5, best)]}, columns=columns)])
    assert [table.title.split(" of ")[0] for table in made] == ["ROUGE-L", "best ROUGE-L"][:tables]


@pytest.mark.parametrize("name", ["recovered", "labels", "sessions"])
def test_a_run_with_a_table_for_each_kind_is_refused_by_name(variant, name):
    run = variant("old")
    (run.path / f"{name}.csv").write_text("round,attack\n")
    with pytest.raises(RunError, match=gist(f"{run.path} ... {name}.csv ... leaks.csv")):
        _ = run.leaks


def test_methods_alike_but_for_a_field_are_distinguished_by_it():
    def name_methods(*methods):
        return distinguish_methods([{"method": each} for each in methods])

    assert name_methods([MIX], [{**MIX, "tokens": 0}]) == ["mixguard tokens=8", "mixguard tokens=0"]
    several = name_methods([MIX], [MIX], [{**MIX, "calibrate": False}], [{**MIX, "tokens": 0}])
    assert several == ["mixguard", "mixguard", "mixguard calibrate=false", "mixguard tokens=0"]
    wcc = {"kind": "wcc", "weight": 0.1, "norm": 1}
    second = name_methods([MIX, wcc], [MIX, {**wcc, "norm": 2}], [])
    assert second == ["mixguard + wcc 0.1 norm=1", "mixguard + wcc 0.1 norm=2", "raw"]


def test_what_was_evaluated_beside_accuracy_is_compared_too(variant):
    figures = {"test_accuracy": 0.5, "test_perplexity": 14.16, "test_exact_answers": 0.25}
    runs = [variant(f"run{i}", {"seed": i}, last=figures) for i in range(2)]
    rows = cells(compare(runs, "last"))
    (row,) = rows.values()
    assert (row["perplexity"], row["exact_answers"]) == ("14.2 ± 0.0", "25.00 ± 0.00")
    assert "rouge_l" not in row


def test_the_inference_stands_in_the_title_or_where_it_differs_in_the_rows(variant):
    def table(*inferences):
        methods = [[{**MIX, "inference": each}] for each in inferences]
        names = [f"{'-'.join(inferences)}{number}" for number, _ in enumerate(methods)]
        pairs = zip(names, methods, strict=True)
        return compare([variant(name, {"method": method}) for name, method in pairs])

    assert "; plain inference" in table("plain").title
    both = table("plain", "mixed")
    assert "inference" not in both.title
    assert [row[both.columns.index("method")] for row in both.rows] == [
        "mixguard inference=plain",
        "mixguard inference=mixed",
    ]
    assert "inference" not in compare([variant("raw", {"method": []})]).title


@pytest.mark.parametrize(("form", "sign"), [("markdown", ""), ("latex", "% ")])
def test_tables_that_are_alike_are_named_in_every_form(attacked, capsys, form, sign):
    results = {"unsplit": [(0.1, 0.8)]}
    paths = [attacked(name, results).run.path for name in ("one", "other")]
    print_comparison(paths, form)
    lines = capsys.readouterr().out.splitlines()
    for figure in ("MSE", "SSIM"):
        title = lines.index(f"{sign}{figure} of 1 recovered image")
        assert "unsplit" in "".join(lines[title + 1 : title + 4])
