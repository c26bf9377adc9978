"""Figures that a paper prints against another row are computed seed by seed."""

import statistics
from pathlib import Path

import pytest
import yaml

from simsplit.errors import ScenarioError
from simsplit.evidence.claims import Claim, Figure, load_claims
from simsplit.evidence.evidence_tables import KnownRows, build_table
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.measuring_cells import list_cells
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.presenting import list_statements, tabulate_statements, write_gaps
from simsplit.evidence.row_code import write_code
from simsplit.evidence.verdicts import ClaimVerdict
from simsplit.results.recovered_kinds import SILENT
from simsplit.scenario.shipped import CLAIMS

SCENARIO = {
    "name": "one",
    "data": {"source": {"kind": "digits"}},
    "schedule": {"rounds": 1},
    "sweep": {"method": [[], [{"kind": "wcc", "weight": 1}]], "seed": [0, 1]},
}
MADE = {
    "version": "1",
    "commit": "c",
    "command": "x",
    "machine": "m",
    "threads": 1,
    "minutes": 1.0,
    "date": "2026-01-01",
}


def measure(cell, seed, figure, value):
    return Measurement(cell.setting, seed, figure, value, "", write_code(cell.uses.code), **MADE)


FIGURES = {
    "accuracy": {"is": "test_accuracy"},
    "ratio": {"of": "accuracy", "against": {"method": "raw"}},
    "change": {"of": "accuracy", "against": {"method": "raw"}, "as": "percent"},
    "points": {"of": "accuracy", "against": {"method": "raw"}, "as": "points"},
}
TABLE = {
    "title": "Table I",
    "says": "less is less",
    "figures": FIGURES,
    "printed": "method, accuracy, change\nraw, 80, \nwcc-1, , -25\n",
    "measured": {"small": [{"scenario": "one.yaml"}]},
    "holds": [{"that": "wcc-1 < 0", "in": "change"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small = {
        **{name: TABLE[name] for name in ("title", "says", "figures")},
        "printed": "method, change\nraw, \nwcc-1, -25\n",
        "rows_of": "table1",
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    claims = {"paper": "P", "cites": "A", "tables": {"table1": TABLE, "figure1": small}}
    (tmp_path / CLAIMS).write_text(yaml.safe_dump(claims), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["table1", "figure1"])
def test_each_seed_is_put_against_its_own(folder: Path, name: str):
    claims = load_claims(folder / CLAIMS)
    values = {("raw", 0): 80.0, ("raw", 1): 40.0, ("wcc-1", 0): 60.0, ("wcc-1", 1): 10.0}
    rows = {
        cell.digests["accuracy"]: {
            seed: [measure(cell, seed, "accuracy", value)]
            for (method, seed), value in values.items()
            if cell.axes["method"] == method
        }
        for cell in list_cells(claims.tables["table1"], "small", folder)
    }
    assert [len(seeds) for seeds in rows.values()] == [2, 2]
    paper = PaperTable("p", name, claims.tables[name], folder)
    table = build_table(paper, "small", KnownRows(rows, {}))
    raw, wcc = table.rows
    assert wcc.known["ratio"].by_seed == pytest.approx({0: 0.75, 1: 0.25})
    assert wcc.known["change"].by_seed == pytest.approx({0: -25, 1: -75})
    assert wcc.known["points"].by_seed == pytest.approx({0: -20, 1: -30})
    assert raw.known["points"].by_seed == {0: 0, 1: 0}
    assert not table.stale


def test_variation_over_seeds_has_an_interval(folder: Path):
    claims = load_claims(folder / CLAIMS)
    table1 = claims.tables["table1"]
    spread = Figure.model_validate({"of": "accuracy", "as": "variation"})
    claim = table1.model_copy(update={"figures": {**table1.figures, "spread": spread}})
    values = [80.0, 82.0, 78.0, 81.0]
    cells = list_cells(claim, "small", folder, seeds=range(4))
    rows = {
        cell.digests["accuracy"]: {
            seed: [measure(cell, seed, "accuracy", value)] for seed, value in enumerate(values)
        }
        for cell in cells
        if cell.axes["method"] == "raw"
    }
    raw, wcc = build_table(
        PaperTable("p", "table1", claim, folder), "small", KnownRows(rows, {})
    ).rows
    plain = 100 * statistics.stdev(values) / statistics.fmean(values)
    assert raw.known["spread"].mean == pytest.approx(plain, rel=0.2)
    assert 0 < (raw.known["spread"].half or 0) < 2 * plain
    assert "spread" not in wcc.known


def test_a_scenario_lacks_the_figures_that_it_does_not_name(folder: Path):
    loss = {"is": "test_loss"}
    changes = {"figures": {**FIGURES, "loss": loss}}
    changes["measured"] = {"small": [{"scenario": "one.yaml", "figures": ["loss"]}]}
    claims = {"paper": "P", "cites": "A", "tables": {"table1": {**TABLE, **changes}}}
    (folder / CLAIMS).write_text(yaml.safe_dump(claims), encoding="utf-8")
    claim = load_claims(folder / CLAIMS).tables["table1"]
    assert {tuple(cell.digests) for cell in list_cells(claim, "small", folder)} == {("loss",)}


def test_dcs_is_worked_out_by_hand_from_utility_and_what_is_read(folder: Path):
    """Two ends weigh .25 and .75: AP .25 * .8 + .75 * .4 = .5; utility is .5 of .9 undefended."""
    figures = {
        "mp": {"is": "sessions_mp"},
        "prompt": {"is": "pidi_ap_prompt"},
        "response": {"is": "pidi_ap_response"},
        "dcs": {
            "of": "mp",
            "against": {"method": "raw"},
            "as": "dcs",
            "leaked": {"prompt": 0.25, "response": 0.75},
        },
    }
    changes = {"figures": figures, "printed": "method, mp\nraw, \nwcc-1, \n", "holds": []}
    claims = {"paper": "P", "cites": "A", "tables": {"table1": {**TABLE, **changes}}}
    (folder / CLAIMS).write_text(yaml.safe_dump(claims), encoding="utf-8")
    claim = load_claims(folder / CLAIMS).tables["table1"]
    values = {
        "raw": {"mp": [0.9, 0.4], "prompt": [1, 1], "response": [1, 1]},
        "wcc-1": {"mp": [0.5, 0.6], "prompt": [0.8, 0.8], "response": [0.4, 0.4]},
    }
    rows = {
        digest: {
            seed: [measure(cell, seed, name, value)]
            for seed, value in enumerate(values[cell.axes["method"]][name])
        }
        for cell in list_cells(claim, "small", folder)
        for name, digest in cell.digests.items()
    }
    raw, wcc, silent = build_table(
        PaperTable("p", "table1", claim, folder), "small", KnownRows(rows, {})
    ).rows
    # a model that says nothing: 1 / (1 + sqrt(.5 * .9^2)), 1 / (1 + sqrt(.5 * .4^2))
    assert silent.axes == {"method": SILENT}
    assert silent.known["mp"].mean == silent.known["prompt"].mean == 0
    assert silent.known["dcs"].by_seed == pytest.approx({0: 0.611099, 1: 0.779519}, rel=1e-5)
    # seed 0: 1 / (1 + sqrt(.5 * .5^2 + .5 * .4^2)) = 1 / (1 + sqrt(.205))
    # seed 1: more utility than the undefended run's counts as none lost: 1 / (1 + sqrt(.125))
    assert wcc.known["dcs"].by_seed == pytest.approx({0: 1 / 1.452769, 1: 1 / 1.353553}, rel=1e-5)
    assert raw.known["dcs"].by_seed[0] == pytest.approx(1 / (1 + 0.5**0.5))


@pytest.mark.parametrize(
    "figure",
    [
        {"of": "accuracy", "against": {"method": "raw"}, "as": "dcs"},
        {"of": "accuracy", "against": {"method": "raw"}, "leaked": {"accuracy": 1}},
        {"of": "accuracy", "against": {"method": "raw"}, "as": "dcs", "leaked": {"read": 1}},
    ],
)
def test_dcs_says_what_was_read(folder: Path, figure: dict[str, object]):
    changes = {"figures": {**FIGURES, "dcs": figure}}
    claims = {"paper": "P", "cites": "A", "tables": {"table1": {**TABLE, **changes}}}
    (folder / CLAIMS).write_text(yaml.safe_dump(claims), encoding="utf-8")
    with pytest.raises(ScenarioError) as raised:
        load_claims(folder / CLAIMS)
    assert "figures.dcs.leaked" in str(raised.value)


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [("", ClaimVerdict.NOT_SETTLED), ("its weights are not at hand", ClaimVerdict.HOLDS)],
)
def test_a_statement_out_of_reach_leaves_the_table_to_the_others(
    folder: Path, reason: str, verdict: ClaimVerdict
):
    lacking = {"that": "wcc-1 > raw", "in": "lpips", "out_of_reach": reason}
    claim = Claim.model_validate(
        {
            **TABLE,
            "figures": {**FIGURES, "lpips": {"is": ""}},
            "holds": [*TABLE["holds"], lacking],
        }
    )
    values = {"raw": (80.0, 82.0, 81.0), "wcc-1": (60.0, 61.0, 62.0)}
    rows = {
        cell.digests["accuracy"]: {
            seed: [measure(cell, seed, "accuracy", value)]
            for seed, value in enumerate(values[cell.axes["method"]])
        }
        for cell in list_cells(claim, "small", folder, seeds=range(3))
    }
    table = build_table(PaperTable("p", "table1", claim, folder), "small", KnownRows(rows, {}))
    assert table.verdict is verdict
    if not reason:  # a part of the sentence that no scenario measures is named, and keeps it open
        assert [each.that for each in table.beyond] == ["wcc-1 > raw"]
        assert any("lpips: wcc-1 > raw" in line for line in write_gaps(table))
        return
    assert any(line.endswith(reason) for line in list_statements(table))
    assert any(reason in row for row in tabulate_statements(table).rows)
