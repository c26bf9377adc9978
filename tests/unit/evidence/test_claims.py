"""Claims of papers: the shipped ones are read whole, and a misfit is refused by its place."""

from pathlib import Path

import pytest
import yaml

from simsplit.errors import ScenarioError
from simsplit.evidence.claims import load_claims
from simsplit.scenario.shipped import CLAIMS, list_names

TABLE = {
    "title": "Table I",
    "says": "more is more",
    "figures": {"accuracy": {"is": "test_accuracy", "times": 100}},
    "printed": "heads, method, accuracy\nshared, raw, 90\nshared, wcc-1, 80\nown, raw, 70\n",
    "measured": {"small": [{"scenario": "small/table1.yaml"}]},
    "holds": [{"that": "raw > wcc-1", "in": "accuracy", "for": {"heads": "shared"}}],
}


def test_claims_are_no_scenarios():
    assert not [name for name in list_names() if name.endswith("claims")]


def write_claims(folder: Path, **changes: object) -> Path:
    claims = {"paper": "P", "cites": "A", "tables": {"table1": {**TABLE, **changes}}}
    path = folder / CLAIMS
    path.write_text(yaml.safe_dump(claims), encoding="utf-8")
    return path


def test_rows_have_axes_and_figures(tmp_path):
    claim = load_claims(write_claims(tmp_path)).tables["table1"]
    assert claim.axes == ("heads", "method")
    assert claim.rows[1] == ({"heads": "shared", "method": "wcc-1"}, {"accuracy": 80.0})
    ((_, where, comparison),) = claim.comparisons()
    assert (dict(where), str(comparison)) == ({"heads": "shared"}, "raw > wcc-1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"printed": "heads, method, accuracy\nshared, raw\n"}, "2 cells for 3 columns"),
        ({"printed": "method, accuracy\nraw, high\n", "holds": []}, "number or empty"),
        ({"printed": "method, accuracy\nraw, 1\nraw, 2\n", "holds": []}, "twice"),
        ({"holds": [{"that": "raw > wcc-1", "in": "accurcy"}]}, "'accuracy'"),
        ({"holds": [{"that": "raw > wcc-1", "in": "accuracy"}]}, "no value of heads"),
        (
            {"holds": [{"that": "raw > wc-1", "in": "accuracy", "each": ["heads"]}]},
            "'wcc-1'",
        ),
        (
            {"holds": [{"that": "raw > 1", "in": "accuracy", "for": {"heads": "mine"}}]},
            "unknown value 'mine'",
        ),
        ({"floors": ["mean_image"]}, "unknown figure 'mean_image'"),
        ({"measured": {}}, "out_of_reach"),
        ({"figures": {"accuracy": {"of": "accuracy", "as": "ratio"}}}, "`of` and `against`"),
        (
            {"figures": {**TABLE["figures"], "c": {"of": "acc", "against": {"method": "raw"}}}},
            "unknown figure 'acc'",
        ),
        (
            {"figures": {**TABLE["figures"], "c": {"of": "accuracy", "against": {"method": "a"}}}},
            "unknown value 'a'",
        ),
        ({"measured": {}, "rows_of": "table2"}, "unknown table 'table2'"),
        (
            {"measured": {"small": [{"scenario": "a.yaml", "figures": ["acc"]}]}},
            "unknown figure 'acc'",
        ),
        ({"measure": {}}, "measure"),
    ],
)
def test_a_misfit_is_refused_by_its_place(tmp_path, changes, reason):
    with pytest.raises(ScenarioError) as refused:
        load_claims(write_claims(tmp_path, **changes))
    assert reason in str(refused.value)
    assert CLAIMS in str(refused.value)


def test_a_table_of_anothers_rows_has_its_scenarios(tmp_path):
    shared = {**TABLE, "measured": {}, "rows_of": "table1", "title": "Figure 1"}
    path = tmp_path / CLAIMS
    claims = {"paper": "P", "cites": "A", "tables": {"table1": TABLE, "figure1": shared}}
    path.write_text(yaml.safe_dump(claims), encoding="utf-8")
    read = load_claims(path)
    assert read.tables["figure1"].measured == read.tables["table1"].measured


def test_a_table_of_anothers_rows_measures_figures_as_that_does(tmp_path):
    other = {"accuracy": {"is": "test_accuracy", "at": "last", "times": 100}}
    shared = {**TABLE, "figures": other, "measured": {}, "rows_of": "table1"}
    path = tmp_path / CLAIMS
    claims = {"paper": "P", "cites": "A", "tables": {"table1": TABLE, "figure1": shared}}
    path.write_text(yaml.safe_dump(claims), encoding="utf-8")
    with pytest.raises(ScenarioError, match="as in rows_of"):
        load_claims(path)
