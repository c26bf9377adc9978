"""A page for each paper with all of its tables beside ours: made from claims and measurements."""

from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

from making.markup import code, fence, fold, plain, table
from simsplit.evidence.drawing import draw_table, list_drawn
from simsplit.evidence.papers import PaperTable, list_tables, load_papers
from simsplit.evidence.presenting import (
    JudgedTable,
    count_statements,
    count_verdicts,
    list_statements,
    tabulate_printed,
    tabulate_rows,
    write_card,
    write_gaps,
)
from simsplit.evidence.tables import EvidenceTable, judge_table, read_known_rows
from simsplit.evidence.verdicts import ClaimVerdict

REMARKS = Path(__file__).parents[1] / "results" / "remarks"
"""The folder of remarks by hand: `<paper>/<table>.md`."""
FOLDER = "results/tables"
_SETTLED = (ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.NOT_SETTLED)

_HEAD = """\
# Tables of the papers

Every table and figure of the papers below is listed with what it claims. A claim is judged from seeds and 95 % intervals: it **holds**
where the whole interval says so, **fails** where the whole interval denies it, and is **not settled** in between, or with one seed.
Tier `small` is made for two processors: smaller networks, thousands of samples. A verdict is on the claim at that size.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the overview and a page per paper."""
    yield f"{FOLDER}/index.md", "\n\n".join([_HEAD, verdicts()])
    for paper in load_papers():
        yield f"{FOLDER}/{paper}.md", "\n\n".join(_write_page(paper))


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield the pictures of all tables that are measured."""
    for _, _, built in judge_all():
        for name in list_drawn(built) if built is not None else ():
            content = BytesIO()
            draw_table(built, name).savefig(content, format="png", dpi=100, bbox_inches="tight")
            yield f"{FOLDER}/{_picture_of(built, name)}", content.getvalue()


@cache
def judge_all() -> Sequence[JudgedTable]:
    """Judge all tables once."""
    known = read_known_rows()
    return [(each, *judge_table(each, known)) for each in list_tables()]


def verdicts() -> str:
    """Write the counts by paper, and the tables that have a verdict."""
    rows = []
    for paper, claims in load_papers().items():
        of_paper = [each for each in judge_all() if each[0].paper == paper]
        rows.append((claims.paper, str(len(of_paper)), count_verdicts(of_paper)))
    lines = [
        (
            code(each.full_name),
            plain(each.claim.says),
            str(built.seeds if built is not None else ""),
            count_statements(built) if built is not None else "",
            f"**{verdict.value}**",
        )
        for each, verdict, built in judge_all()
        if verdict in _SETTLED
    ]
    counts = table(("paper", "tables and figures", "verdicts"), rows)
    columns = (
        "table",
        "what it claims",
        "seeds at least",
        "its statements",
        "verdict at tier small",
    )
    return f"{counts}\n\n{table(columns, lines)}"


def _write_page(paper: str) -> Iterator[str]:
    claims = load_papers()[paper]
    of_paper = [each for each in judge_all() if each[0].paper == paper]
    yield f"# Tables of {claims.paper}"
    yield f"{plain(claims.cites)}."
    yield f"{len(of_paper)} tables and figures: {count_verdicts(of_paper)}."
    measurable = [each for each in of_paper if each[0].tiers]
    rows = [
        (f"[{each.claim.title}](#{each.name})", plain(each.claim.says), verdict.value)
        for each, verdict, _ in measurable
    ]
    yield table(("table", "what it claims", "verdict"), rows)
    for each in measurable:
        yield from _write_table(*each)
    others = [each for each, _, _ in of_paper if not each.tiers]
    if others:
        yield "## Not measured"
        rows = [(each.claim.title, plain(each.claim.says), _write_why(each)) for each in others]
        yield table(("table", "what it shows", "why"), rows)


def _write_why(each: PaperTable) -> str:
    claim = each.claim
    return (
        plain(claim.out_of_reach) if claim.out_of_reach else f"describes {plain(claim.describes)}"
    )


def _write_table(
    each: PaperTable, verdict: ClaimVerdict, built: EvidenceTable | None
) -> Iterator[str]:
    assert built is not None, "a table with tiers is built"
    claim = each.claim
    yield f"## {claim.title} {{ #{each.name} }}"
    yield plain(claim.says)
    yield f"ClaimVerdict at tier {built.tier}: **{verdict.value}**."
    if built.fresh:
        yield f"Ours are means over seeds ± half of the 95 % interval.\n\n{tabulate_rows(built).markdown()}"
        yield "\n\n".join(
            f"![{claim.title}: {name}, paper and here]({_picture_of(built, name)})"
            for name in list_drawn(built)
        )
        yield "\n".join(f"- {plain(line)}" for line in list_statements(built))
    else:
        printed = tabulate_printed(each).markdown()
        yield fold("What the paper prints", printed)
    if (remark := REMARKS / each.paper / f"{each.name}.md").is_file():
        yield remark.read_text(encoding="utf-8").strip()
    notes = [f"The paper leaves open: {line}" for line in claim.silent]
    notes += [*([claim.out_of_reach] if claim.out_of_reach else []), *write_gaps(built)]
    command, *card = write_card(built)
    yield "\n".join(f"- {plain(note)}" for note in [*notes, *card])
    yield fence(command.removeprefix("measure it: "))


def _picture_of(built: EvidenceTable, name: str) -> str:
    return f"{built.table.paper}-{built.table.name}-{name}.png"
