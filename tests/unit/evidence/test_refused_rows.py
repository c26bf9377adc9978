"""Rows that no rule accepts are named with their reason, and none is dropped in silence."""

import json
from dataclasses import replace

import pytest
from gists import says
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.evidence.evidence_tables import build_table, read_known_rows
from simsplit.evidence.measurements import Measurement, add
from simsplit.evidence.papers import find_table
from simsplit.evidence.row_code import write_code

runner = CliRunner()


@pytest.fixture
def good(paper) -> Measurement:
    """A row that counts, written to the table's file."""
    (cell, *_) = build_table(find_table("tiny/table1"), "small").cells
    row = Measurement(
        setting=cell.setting,
        seed=0,
        figure="accuracy",
        value=80.0,
        digest=cell.digests["accuracy"],
        code=write_code(cell.uses.code),
        version="1",
        commit="c",
        command="x",
        machine="m",
        threads=1,
        minutes=1.0,
        date="2026-01-01",
    )
    add(paper.rows, [row])
    return row


PLANTED = {
    "another scenario": ({"digest": "0" * 16, "seed": 7}, "stale"),
    "beside one that counts": ({"digest": "0" * 16}, None),
    "unknown column": ({"figure": "acuracy", "digest": "1" * 16}, "accuracy"),
    "unknown cell": ({"setting": "method=other", "digest": "2" * 16}, "method=other"),
    "unknown axis": ({"setting": "metod=raw", "digest": "3" * 16}, "metod"),
}


def list_reasons(paper) -> list[str]:
    return [each.reason for each in build_table(find_table("tiny/table1"), "small").refused]


def test_a_row_that_counts_is_not_refused(paper, good):
    assert list_reasons(paper) == []


@pytest.mark.parametrize(("changes", "word"), PLANTED.values(), ids=PLANTED)
def test_a_row_that_no_rule_accepts_is_named_with_its_reason(paper, good, changes, word):
    planted = replace(good, **changes)
    if planted.key == good.key:  # a file of ours beside the shipped one, which counts
        known = read_known_rows()
        rows = {**known.by_file, ("tiny", "table1", "small"): [good, planted]}
        (refused,) = build_table(
            find_table("tiny/table1"), "small", replace(known, by_file=rows)
        ).refused
        assert refused.row == planted
        return
    add(paper.rows, [planted])
    (reason,) = list_reasons(paper)
    assert word in reason
    listed = runner.invoke(app, ["papers"])
    assert listed.exit_code == 0
    assert says(" ".join(listed.output.split()), f"tiny/table1.small ... {word}")
    assert word in " ".join(runner.invoke(app, ["papers", "tiny/table1"]).output.split())
    described = json.loads(runner.invoke(app, ["papers", "--json"]).stdout)
    (entry,) = (each for each in described if each["table"] == "tiny/table1")
    assert [row["reason"] for row in entry["refused"]] == [reason]


def test_rows_of_a_table_or_a_tier_that_there_is_not_are_named(paper, good):
    for name in ("table9.small.csv", "table1.full.csv"):
        add(paper.rows.with_name(name), [good])
    listed = runner.invoke(app, ["papers"])
    for name in ("tiny/table9.small", "tiny/table1.full"):
        assert says(" ".join(listed.output.split()), f"{name} ... table")
    described = json.loads(runner.invoke(app, ["papers", "--json"]).stdout)
    files = {each["table"]: each["refused"] for each in described if each["verdict"] is None}
    assert {name: len(rows) for name, rows in files.items()} == {
        "tiny/table9.small": 1,
        "tiny/table1.full": 1,
    }


def test_a_verdict_has_its_counts_everywhere(paper, good):
    entry = json.loads(runner.invoke(app, ["papers", "--json"]).stdout)[0]
    assert entry["counts"] == {
        "holds": 0,
        "fails": 0,
        "open": 1,
        "out_of_reach": 0,
        "beyond_tier": 0,
    }
    (shown,) = json.loads(runner.invoke(app, ["papers", "tiny/table1", "--json"]).stdout)
    assert shown["counts"] == entry["counts"]
    for words in (["papers"], ["papers", "tiny/table1"]):
        output = " ".join(runner.invoke(app, words, env={"COLUMNS": "200"}).output.split())
        assert says(output, "0 hold, 0 fail, 1 open")
