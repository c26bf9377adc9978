"""A sweep directory is compared by what it swept."""

import pytest

from simsplit.errors import RunError
from simsplit.report.comparison import compare
from simsplit.report.grouping import load_entries, parse_baseline
from simsplit.report.numbers import make_frame
from simsplit.report.short_names import short_names, value_of
from simsplit.results import CellEntry, SweepDirectory
from simsplit.scenario.files import assign

LIGHT = {"kind": "lightsplit", "ratio": 8.0, "k": None, "lift": "fixed", "legs": ["smashed"]}


@pytest.fixture
def swept(variant, tmp_path):
    """A sweep directory: (settings, accuracy, bytes) of each cell; None for one that has not run.

    `base` are the fields that all cells share.
    """

    def make(cells, name="swept", base=None, failed=None):
        entries, fields = [], {}
        for index, (settings, accuracy, nbytes) in enumerate(cells):
            label = settings.pop("name", "")
            cell = f"cell-{index}"
            entries.append(CellEntry(cell, settings, label))
            fields |= dict.fromkeys(settings)
            if accuracy is not None:
                values = {"method": [], **(base or {})}
                for field, value in settings.items():
                    assign(values, field, value)
                scores = {"test_accuracy": accuracy, "test_balanced_accuracy": accuracy}
                variant(f"{name}/{cell}", values, scores, total=nbytes)
        directory = SweepDirectory(
            tmp_path / name, name, short_names(list(fields)), entries, failed or {}
        )
        directory.save()
        return tmp_path / name

    return make


def table_of(*paths, baseline=None):
    entries, _ = load_entries(paths)
    return compare(entries, baseline=parse_baseline(baseline, entries))


def column(table, name):
    index = table.columns.index(name)
    return [row[index] for row in table.rows]


def test_the_swept_fields_tell_the_rows_apart_and_seeds_are_one_row(swept):
    path = swept(
        [
            ({"train.batch_size": size, "seed": seed}, accuracy, size)
            for size, seed, accuracy in [
                (8, 0, 0.90), (8, 1, 0.94), (16, 0, 0.80), (16, 1, 0.80), (32, 1, 0.95)
            ]
        ]
    )  # fmt: skip
    table = table_of(path)
    assert table.columns == (
        "batch_size", "seeds", "accuracy", "balanced", "change", "bytes", "of baseline"
    )  # fmt: skip
    assert column(table, "batch_size") == ["8", "16", "32"]
    assert column(table, "seeds") == ["2", "2", "1"]
    assert column(table, "accuracy") == ["92.00 ± 2.83", "80.00 ± 0.00", "95.00"]
    # all are raw, so none is any other's; and the last is held against the first of its own seed
    assert column(table, "change") == ["baseline", "-12.00 [-37.41, +13.41]", "+1.00"]


def test_change_is_seed_by_seed_with_its_interval(swept):
    """Seeds differ by ten points, changes by two: -4, -5 and -6 points."""
    path = swept(
        [
            ({"train.batch_size": size, "seed": seed}, accuracy, size)
            for size, seed, accuracy in [
                (8, 0, 0.70), (8, 1, 0.80), (8, 2, 0.90), (8, 3, 0.10),
                (16, 0, 0.66), (16, 1, 0.75), (16, 2, 0.84), (16, 4, 0.99),
                (32, 5, 0.80), (64, 3, 0.20),
            ]
        ]
    )  # fmt: skip
    table = table_of(path)
    half = 4.302653 * 1.0 / 3**0.5  # Student's 97.5 % at two degrees of freedom, deviation 1
    assert column(table, "change") == [
        "baseline",
        f"-5.00 [{-5 - half:+.2f}, {-5 + half:+.2f}]",
        "+17.50",  # shares no seed: of the means, 0.625 for the baseline
        "+10.00",
    ]
    assert "95 % interval" in table.title
    numbers = make_frame(load_entries([path])[0]).to_dict("records")
    assert numbers[1]["accuracy_change"] == pytest.approx(-0.05)
    assert numbers[1]["accuracy_change_low"] == pytest.approx(-0.05 - half / 100)
    assert numbers[1]["accuracy_change_high"] == pytest.approx(-0.05 + half / 100)
    assert numbers[3]["accuracy_change_low"] != numbers[3]["accuracy_change_low"]


def test_without_a_raw_cell_the_first_row_is_the_baseline(swept):
    path = swept(
        [({"method.0.ratio": 16.0, "seed": seed}, 0.5, 300) for seed in (0, 1)]
        + [({"method.0.ratio": 8.0, "seed": seed}, 0.6, 600) for seed in (0, 1)],
        base={"method": [LIGHT]},
    )
    table = table_of(path)
    assert "against ratio=16.0" in table.title
    assert column(table, "change") == ["baseline", "+10.00 [+10.00, +10.00]"]
    assert column(table, "of baseline") == ["1.000", "2.000"]
    assert column(table, "method") == ["lightsplit 16 fixed", "lightsplit 8 fixed"]


def test_a_baseline_is_called_as_its_row_is(swept):
    path = swept([({"method": [LIGHT | {"ratio": ratio}]}, 0.5, 300) for ratio in (16.0, 8.0)])
    table = table_of(path)
    assert f"against method={column(table, 'method')[0]}" in table.title


def test_a_raw_cell_is_the_baseline_of_cells_that_share_the_other_fields(swept):
    path = swept(
        [
            ({"method": method, "train.batch_size": size}, accuracy, nbytes)
            for method, size, accuracy, nbytes in [
                ([], 8, 0.9, 100), ([LIGHT], 8, 0.8, 20), ([], 16, 0.7, 50), ([LIGHT], 16, 0.71, 25)
            ]
        ]
    )  # fmt: skip
    table = table_of(path)
    assert table.columns[:2] == ("batch_size", "method")
    assert "against" not in table.title
    assert column(table, "change") == ["", "-10.00", "", "+1.00"]
    assert column(table, "of Raw") == ["1.000", "0.200", "1.000", "0.500"]


def test_a_baseline_may_be_named_in_part(swept):
    path = swept(
        [
            ({"train.batch_size": size, "clients.count": count}, accuracy, 100)
            for size, count, accuracy in [(8, 2, 0.5), (8, 4, 0.6), (16, 2, 0.7), (16, 4, 0.9)]
        ]
    )
    table = table_of(path, baseline="batch_size=16")
    assert column(table, "change") == ["-20.00", "-30.00", "baseline", "baseline"]
    assert "against batch_size=16, all else equal" in table.title
    table = table_of(path, baseline="train.batch_size=8,count=4")
    assert column(table, "change") == ["-10.00", "baseline", "+10.00", "+30.00"]


def test_a_raw_cell_can_be_named_though_its_list_sets_no_method(swept):
    cells = [
        ({"name": "none"}, 0.9, 100),
        ({"name": "light", "method": [LIGHT], "train.batch_size": 4}, 0.8, 20),
    ]
    path = swept(cells)
    for named in ("method=raw", "cell=none"):
        assert column(table_of(path, baseline=named), "change") == ["baseline", "-10.00"]


def test_a_baseline_that_is_none(swept, variant):
    path = swept([({"train.batch_size": 8}, 0.5, 1), ({"train.batch_size": 16}, 0.5, 1)])
    for wrong, message in [
        ("batch_size=9", "train.batch_size=9.*train.batch_size: 8"),
        ("size=8", "--baseline takes FIELD=VALUE, got 'size=8'; fields: batch_size"),
        ("batch_size", "--baseline takes FIELD=VALUE, got 'batch_size'"),
    ]:
        with pytest.raises(RunError, match=message):
            table_of(path, baseline=wrong)
    with pytest.raises(RunError, match="no sweep"):
        table_of(variant("single").path, baseline="seed=1")


def test_a_swept_thread_count_is_no_seed(swept):
    table = table_of(swept([({"threads": 1}, 0.5, 10), ({"threads": 2}, 0.5, 10)]))
    assert column(table, "threads") == ["1", "2"]
    assert column(table, "seeds") == ["1", "1"]


def test_names_in_a_list_are_a_column(swept):
    path = swept(
        [
            ({"name": "none", "method": []}, 0.9, 100),
            ({"name": "light", "method": [LIGHT], "train.batch_size": 8}, 0.8, 50),
        ]
    )
    table = table_of(path)
    assert table.columns[:3] == ("cell", "batch_size", "method")
    assert column(table, "cell") == ["none", "light"]
    assert column(table, "change") == ["baseline", "-10.00"]
    assert "against cell=none, method=raw" in table.title
    assert column(table_of(path, baseline="cell=light"), "change") == ["+10.00", "baseline"]


def test_a_sweep_over_seeds_alone_is_one_row(swept):
    table = table_of(swept([({"seed": 0}, 0.5, 1), ({"seed": 1}, 0.6, 1)]))
    assert len(table.rows) == 1
    assert column(table, "run") == ["swept"]
    assert column(table, "accuracy") == ["55.00 ± 7.07"]
    assert "change" not in table.columns


def test_sweeps_and_runs_stand_beside_each_other(swept, variant):
    path = swept([({"method.0.ratio": r}, 0.5, 50) for r in (8.0, 16.0)], base={"method": [LIGHT]})
    raw = variant("plain", {"method": []}, {"test_accuracy": 0.7}, total=200)
    table = table_of(path, raw.path)
    assert column(table, "run") == ["swept", "swept", "plain"]
    assert column(table, "ratio") == ["8.0", "16.0", ""]
    # what was swept is the method's own, so the raw run shares everything else with the cells
    assert column(table, "change") == ["-20.00", "-20.00", ""]
    assert column(table, "of Raw") == ["0.250", "0.250", "1.000"]


def test_cells_that_have_not_finished_are_left_out_and_listed(swept, variant):
    cells = [({"seed": 0}, 0.5, 1), ({"seed": 1}, None, 0), ({"seed": 2}, None, 0)]
    path = swept(cells, failed={"cell-2": "out of memory\nat line 3"})
    entries, left_out = load_entries([path])
    assert [entry.run.path.name for entry in entries] == ["cell-0"]
    assert left_out == [
        f"left out: {path}/cell-1 has not run",
        f"left out: {path}/cell-2 failed: out of memory",
    ]
    with pytest.raises(RunError, match="no cell"):
        load_entries([swept([({"seed": 0}, None, 0)], name="empty")])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (8, "8"),
        (0.5, "0.5"),
        ("own", "own"),
        (True, "true"),
        (None, "null"),
        ([], "none"),
        ({"kind": "dirichlet", "alpha": 0.5}, "dirichlet 0.5"),
        ([{"kind": "cast", "to": "fp16"}, {"kind": "raw"}], "cast fp16 + raw"),
    ],
)
def test_values_in_words(value, words):
    assert value_of(value) == words
