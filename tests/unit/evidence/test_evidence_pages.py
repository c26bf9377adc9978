"""Pages on papers' tables are made from the data, and committed parts of pages agree with them."""

import sys
from importlib import import_module
from io import BytesIO
from pathlib import Path

import pytest

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
        assert text.count("<!-- made: ") == text.count("<!-- end: ") > 0


def test_every_shipped_row_was_measured_with_the_scenario_that_ships():
    """A scenario or a figure's recipe that changes makes rows stale: measure them again."""
    from simsplit.evidence.papers import list_tables
    from simsplit.evidence.tables import build_table, read_known_rows

    known = read_known_rows()
    tiers = {(t.paper, t.name, tier): t for t in list_tables() for tier in t.tiers}
    assert set(known.by_file) <= set(tiers), "rows of a table that there is not"
    stale = {}
    for (paper, name, tier), table in tiers.items():
        if (paper, name, tier) in known.by_file:
            built = build_table(table, tier, known)
            stale |= {f"{paper}/{name}.{tier}": len(built.stale)} if built.stale else {}
    assert not stale, "simsplit papers --stale; simsplit reproduce measures them again"


def test_every_table_is_on_its_papers_page(made):
    papers = made("papers")
    pages = dict(papers.pages())
    for table, verdict, built in papers.judge_all():
        page = pages[f"{papers.FOLDER}/{table.paper}.md"]
        assert table.claim.title in page
        if built is not None and built.fresh:
            assert f"**{verdict.value}**" in page
            assert f"simsplit reproduce {table.full_name}" in page


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
    from simsplit.evidence.drawing import draw_table, list_drawn
    from simsplit.evidence.papers import find_table
    from simsplit.evidence.tables import build_table

    built = build_table(find_table("lightsplit/table9"), "small")
    assert list_drawn(built) == ["accuracy"]
    (axes,) = draw_table(built, "accuracy").axes
    measured = [row for row in built.rows if row.known]
    assert len(axes.get_yticks()) == len(measured) > 0
    paper, *_ = axes.get_lines()
    assert list(paper.get_xdata()) == [row.printed["accuracy"] for row in measured]
    draw_table(built, "accuracy").savefig(BytesIO(), format="png")
