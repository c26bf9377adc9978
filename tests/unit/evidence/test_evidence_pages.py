"""Pages on papers' tables are made from the data, and committed parts of pages agree with them."""

import math
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from statistics import fmean

import pytest

from simsplit.boards.scoring import score_strengths
from simsplit.errors import SimsplitError
from simsplit.evidence.evidence_tables import read_known_rows
from simsplit.evidence.measurements import add, read

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made():
    sys.path.insert(0, str(ROOT / "docs"))
    yield lambda name: import_module(f"making.{name}")
    sys.path.remove(str(ROOT / "docs"))


def test_parts_of_pages_are_as_the_data_have_them(made):
    blocks = made("blocks")
    for name in blocks.FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert blocks.fill(text) == text, "python docs/made_blocks.py writes it anew"
        assert text.count("<!-- made: ") == text.count("<!-- end: ")
        assert text.count("<!-- figure: ") == text.count("<!-- end -->")


def test_a_boards_figure_is_what_the_worst_attack_reads(made):
    def write(figure: str, strength: str) -> str:
        mark = f"<!-- figure: boards/labels {figure} strength={strength} -->"
        return str(made("figures").fill(f"{mark}<!-- end -->")).removeprefix(mark)

    board = made("boards").find("labels")
    (strength,) = (each for each in score_strengths(board) if each.name == "cae-10")
    mean = f"{fmean(strength.leak.values()):.2f}"
    assert write("worst", "cae-10") == write(strength.worst, "cae-10")
    assert write("worst", "cae-10").startswith(mean)
    assert mean not in write("norm", "cae-10")
    loss = fmean(strength.loss.values())
    assert write("loss", "cae-10").startswith(f"{loss:z.1f}")
    for wrong in (("none_such", "cae-10"), ("worst", "none-such")):
        with pytest.raises(SimsplitError, match="boards/labels"):
            write(*wrong)


def test_a_row_that_changes_changes_the_pages(made, tmp_path, monkeypatch):
    """Each page that shows LightSplit's accuracy differs once a shipped row has another value."""
    from simsplit.evidence import evidence_tables
    from simsplit.evidence.measurements import find_shipped_results

    results = shutil.copytree(find_shipped_results(), tmp_path / "results")
    file = results / "lightsplit" / "table9.small.csv"
    rows = read(file)
    setting = "cut=l2h; data=cifar10; heads=shared; method=raw; partition=iid"
    row = next(row for row in rows if row.setting == setting)
    file.unlink()
    add(file, [*rows, replace(row, value=row.value + 9)])
    monkeypatch.setattr(evidence_tables, "find_shipped_results", lambda: results)
    monkeypatch.setattr(evidence_tables, "OWN", tmp_path / "none")
    made("papers").judge_all.cache_clear()
    try:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        assert made("blocks").fill(text) != text
    finally:
        made("papers").judge_all.cache_clear()


def test_a_figure_is_written_where_it_is_measured_and_nothing_in_its_place(made):
    fill = made("figures").fill
    known = "<!-- figure: lightsplit/table1 share method=lightsplit-8 -->?<!-- end -->"
    assert fill(known).endswith("-->0.125<!-- end -->")
    reached = "data=gtsrb partition=iid cut=l2h heads=shared method=raw"
    unknown = f"<!-- figure: lightsplit/table9 accuracy {reached} -->?<!-- end -->"
    assert fill(unknown).endswith("-->not measured<!-- end -->")
    with pytest.raises(SimsplitError):
        fill("<!-- figure: lightsplit/table1 share --><!-- end -->")


def test_every_shipped_row_was_measured_with_the_scenario_that_ships():
    """A scenario or a figure's recipe that changes makes rows stale: measure them again."""
    from simsplit.evidence.evidence_tables import build_table, read_known_rows
    from simsplit.evidence.papers import list_tables
    from simsplit.scenario.shipped import BOARDS

    known = read_known_rows()
    tiers = {(t.paper, t.name, tier): t for t in list_tables() for tier in t.tiers}
    of_papers = {file for file in known.by_file if file[0] != BOARDS}  # boards have their own test
    assert of_papers <= set(tiers), "rows of a table that there is not"
    stale = {}
    for (paper, name, tier), table in tiers.items():
        if (paper, name, tier) in known.by_file:
            built = build_table(table, tier, known)
            stale |= {f"{paper}/{name}.{tier}": len(built.refused)} if built.refused else {}
    assert not stale, "simsplit papers names them; simsplit reproduce measures them again"


def test_every_table_is_on_its_papers_page(made):
    papers = made("papers")
    pages = dict(papers.pages())
    for table, verdict, built in papers.judge_all():
        page = pages[f"{papers.FOLDER}/{table.paper}.md"]
        assert table.claim.title in page
        if built is not None and built.fresh:
            assert f"**{verdict.value}**" in page
            assert f"simsplit reproduce {table.full_name}" in page


def test_a_scenario_that_changed_is_stale_on_the_pages(made, monkeypatch):
    """Rows whose digests no cell has any more count for nothing, and both pages say so."""
    papers = made("papers")
    known = read_known_rows()
    other = {digest[::-1]: rows for digest, rows in known.by_digest.items()}
    monkeypatch.setattr(papers, "read_known_rows", lambda: replace(known, by_digest=other))
    papers.judge_all.cache_clear()
    try:
        page = dict(papers.pages())[f"{papers.FOLDER}/lightsplit.md"]
        tables = page.split("\n## ")
        (table9,) = (part for part in tables if part.startswith("Table IX "))
        assert "**Stale:**" in table9
        assert "**not measured**" in table9
        assert "**Stale:** the scenarios of `lightsplit/table1`" in papers.verdicts()
    finally:
        papers.judge_all.cache_clear()


def test_remarks_are_of_tables_that_there_are(made):
    papers = made("papers")
    known = {table.full_name for table, _, _ in papers.judge_all()}
    known |= {f"{table.paper}/{papers.INTRODUCTION}" for table, _, _ in papers.judge_all()}
    remarks = {
        file.relative_to(papers.REMARKS).with_suffix("").as_posix()
        for file in papers.REMARKS.glob("*/*.md")
    }
    assert remarks <= known


def test_a_table_is_drawn_with_what_the_paper_prints_and_what_is_measured(made):
    from simsplit.evidence.evidence_tables import build_table
    from simsplit.evidence.papers import find_table
    from simsplit.evidence.table_drawing import draw_table, list_drawn

    built = build_table(find_table("lightsplit/table9"), "small")
    assert list_drawn(built) == ["accuracy"]
    (axes,) = draw_table(built, "accuracy").axes
    measured = [row for row in built.rows if row.known]
    assert len(axes.get_yticks()) == len(measured) > 0
    paper, *_ = axes.get_lines()
    # the paper has no figure of MNIST
    printed = [row.printed["accuracy"] for row in measured if row.printed]
    assert [x for x in paper.get_xdata() if not math.isnan(x)] == printed
    assert printed
    draw_table(built, "accuracy").savefig(BytesIO(), format="png")
