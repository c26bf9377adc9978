"""A page for each paper with all of its tables beside ours: made from claims and measurements."""

from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

from making.markup import code, fence, fold, plain, table
from simsplit.evidence.claims import Axes
from simsplit.evidence.evidence_rows import EvidenceRow
from simsplit.evidence.evidence_tables import EvidenceTable, judge_table, read_known_rows
from simsplit.evidence.papers import PaperTable, list_tables, load_papers
from simsplit.evidence.presenting import (
    JudgedTable,
    count_verdicts,
    describe_shared,
    tabulate_printed,
    tabulate_rows,
    tabulate_statements,
    write_card,
    write_gaps,
    write_known,
    write_verdict,
    write_words,
)
from simsplit.evidence.silences import SILENT
from simsplit.evidence.table_drawing import draw_table, list_drawn
from simsplit.evidence.verdicts import ClaimVerdict
from simsplit.report.tables import Table

REMARKS = Path(__file__).parents[1] / "results" / "remarks"
"""The folder of remarks by hand: `<paper>/<table>.md`."""
INTRODUCTION = "introduction"
"""The remark at the head of a paper's page: its abbreviations, and what tier small is."""
FOLDER = "results/tables"
_SETTLED = (ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.NOT_SETTLED)

_HEAD = """\
# Tables of the papers

Every table and figure of the papers below is listed with what it claims, in one sentence. The verdict is on that sentence, in the paper's
measure: a comparison **holds** where its whole 95 % interval says so, **fails** where the whole interval denies it, and is open in between, or
with one seed. A table holds where all that its sentence says does (of what it says of most settings: more than half of them), fails where a
part of it fails, and is **not settled** otherwise. How many comparisons hold, fail and are open stands beside each verdict. What goes beyond the
sentence, such as stricter measures of ours, is counted by itself.

Each statement holds on the paper's own printed figures, or says why these cannot decide it. Rows say nothing, and settle nothing, where they miss
the table's gate, such as the accuracy that the undefended network must have, or where an attack reads no more of an undefended row than what
needs no attack. Shares of counted trials have exact binomial intervals, and no interval is narrower
than a step of its measure. Tier `small` is made for two processors: smaller networks, thousands of samples. Intervals are not widened for the
number of statements, so one of many may fail by chance.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the overview and a page per paper."""
    yield f"{FOLDER}/index.md", "\n\n".join([_HEAD, verdicts(linked=True)])
    for paper in load_papers():
        yield f"{FOLDER}/{paper}.md", "\n\n".join(_write_page(paper))


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield the pictures of all tables that are measured."""
    for path, built, name in list_pictures():
        content = BytesIO()
        draw_table(built, name).savefig(content, format="png", dpi=100, bbox_inches="tight")
        yield path, content.getvalue()


def list_pictures() -> Iterator[tuple[str, EvidenceTable, str]]:
    """Yield each picture's path, with the table and the figure that it draws."""
    for _, _, built in judge_all():
        for name in list_drawn(built) if built is not None else ():
            yield f"{FOLDER}/{_picture_of(built, name)}", built, name


@cache
def judge_all() -> Sequence[JudgedTable]:
    """Judge all tables once."""
    known = read_known_rows()
    return [(each, *judge_table(each, known)) for each in list_tables()]


def verdicts(*, linked: bool = False) -> str:
    """Write the counts by paper, and the tables that have a verdict.

    Names are links where the papers' pages lie beside the text.
    """
    rows = []
    for paper, claims in load_papers().items():
        of_paper = [each for each in judge_all() if each[0].paper == paper]
        name = f"[{claims.paper}]({paper}.md)" if linked else claims.paper
        rows.append((name, str(len(of_paper)), count_verdicts(of_paper)))
    lines = [
        (
            f"[{each.full_name}]({each.paper}.md#{each.name})" if linked else code(each.full_name),
            plain(each.claim.says),
            str(built.seeds if built is not None else ""),
            str(built.counts) if built is not None else "",
            str(built.counts_ours) if built is not None and built.counts_ours.any else "",
            f"**{_keep_together(verdict.value)}**",
        )
        for each, verdict, built in judge_all()
        if verdict in _SETTLED
    ]
    counts = Table("", ("paper", "tables and figures", "verdicts"), rows, "lrl")
    columns = (
        "table",
        "what it claims",
        "seeds at least",
        "what its sentence says",
        "beyond it, ours",
        "verdict on its sentence, tier small",
    )
    judged = Table("", columns, lines, "llrlll")
    written = [table.markdown(links=True) for table in (counts, judged)]
    return "\n\n".join([written[0], *_write_stale(), written[1]])


_SAID = {
    ClaimVerdict.HOLDS.value: "Holds here",
    ClaimVerdict.FAILS.value: "Fails here",
    ClaimVerdict.NOT_SETTLED.value: "Open",
    SILENT: "Too small here to say",
    ClaimVerdict.NOT_MEASURED.value: "Not measured",
}
_NAMED = 4
"""How many claims of one verdict are named; the others are counted."""


def summarise() -> str:
    """Write a few lines for each paper: which of its claims hold here, fail, or are open."""
    return "\n\n".join(
        f"**{claims.paper}.** {' '.join(_summarise_verdicts(paper))}"
        for paper, claims in load_papers().items()
    )


def _summarise_verdicts(paper: str) -> Iterator[str]:
    of_paper = [(each, _find_word(*found)) for each, *found in judge_all() if each.paper == paper]
    for word, words in _SAID.items():
        if judged := [each for each, of in of_paper if of == word]:
            named = [f"{each.claim.short} ({each.claim.title})" for each in judged[:_NAMED]]
            more = len(judged) - len(named)
            named += [f"and {more} more"] if more else []
            yield f"*{words}:* {'; '.join(named)}."


def _find_word(verdict: ClaimVerdict, built: EvidenceTable | None) -> str:
    """Return a table's verdict, or that its rows say nothing of all that its sentence says."""
    sides = [each for each in built.judgements if not each.statement.ours] if built else []
    silent = sides and all(each.judged.why_open.startswith(SILENT) for each in sides)
    return SILENT if silent else verdict.value


def tabulate_lightsplit() -> str:
    """Tabulate what README shows: LightSplit's accuracy and bytes on CIFAR-10, IID, shared heads."""
    built = {each.full_name: table for each, _, table in judge_all() if table is not None}
    cell = {"partition": "iid", "cut": "l2h", "heads": "shared"}
    rows = []
    for method in ("raw", "lightsplit-8", "lightsplit-16", "lightsplit-32"):
        axes = {"method": method, **cell}
        accuracy = _find_row(built["lightsplit/table9"], {"data": "cifar10", **axes})
        nbytes = _find_row(built["lightsplit/table1"], axes)
        rows.append(
            (
                built["lightsplit/table9"].claim.name(method),
                f"{accuracy.printed['accuracy']:.2f}",
                _write_figure(accuracy, "accuracy", 2),
                _write_figure(nbytes, "share", 3),
                _write_figure(nbytes, "share_in_all", 3),
                str(min(accuracy.seeds, nbytes.seeds)),
            )
        )
    columns = (
        "method",
        "accuracy %, paper",
        "accuracy %, here",
        "smashed data and gradients, of Raw's bytes",
        "all bytes, of Raw's",
        "seeds",
    )
    return Table("", columns, rows).markdown()


def _find_row(built: EvidenceTable, axes: Axes) -> EvidenceRow:
    return next(row for row in built.rows if axes.items() <= row.axes.items())


def _write_figure(row: EvidenceRow, name: str, decimals: int) -> str:
    known = row.known.get(name)
    return write_known(known, decimals) if known is not None else "not measured"


def _write_stale() -> Iterator[str]:
    """Name the tables that have stale measurements, if any has."""
    stale = [built for _, _, built in judge_all() if built is not None and built.stale]
    if stale:
        names = ", ".join(code(built.table.full_name) for built in stale)
        yield (
            f"**Stale:** the scenarios of {names} have changed since they were measured. What was "
            "measured does not count; `simsplit reproduce` makes it anew."
        )


def _write_page(paper: str) -> Iterator[str]:
    claims = load_papers()[paper]
    of_paper = [each for each in judge_all() if each[0].paper == paper]
    yield f"# Tables of {claims.paper}"
    yield f"{plain(claims.cites)}."
    yield f"{len(of_paper)} tables and figures: {count_verdicts(of_paper)}."
    yield from _read_remark(paper, INTRODUCTION)
    measured = {built.tier for _, _, built in of_paper if built is not None and built.fresh}
    if "full" not in measured:
        where = " at tier full" if measured else " with today's scenarios"
        yield f"**Nothing of this paper has been measured{where}.**"
    measurable = [each for each in of_paper if each[0].tiers]
    rows = [
        (_link(each), plain(each.claim.says), write_verdict(verdict, built))
        for each, verdict, built in measurable
    ]
    yield table(("table", "what it claims", "verdict"), rows)
    for each in measurable:
        yield from _write_table(*each)
    others = [each for each, _, _ in of_paper if not each.tiers]
    if others:
        yield "## Not measured"
        rows = [(each.claim.title, plain(each.claim.says), _write_why(each)) for each in others]
        yield table(("table", "what it shows", "why"), rows)


def _read_remark(paper: str, name: str) -> Iterator[str]:
    """Read a remark, if there is one, with links as they hold one folder further up."""
    if (file := REMARKS / paper / f"{name}.md").is_file():
        yield file.read_text(encoding="utf-8").strip().replace("](../", "](")


def _link(each: PaperTable) -> str:
    return f"[{_keep_together(each.claim.title)}](#{each.name})"


def _keep_together(words: str) -> str:
    return words.replace(" ", "&nbsp;")


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
    counts = write_verdict(verdict, built).removeprefix(verdict.value)
    yield f"Verdict at tier {built.tier}: **{verdict.value}**{counts}."
    if built.stale:
        yield "**Stale:** its scenario has changed since it was measured, so old rows do not count."
    if built.fresh:
        yield from _write_measured(built)
    else:
        yield fold("What the paper prints", _write_plain(tabulate_printed(each)))
    yield from _read_remark(each.paper, each.name)
    if claim.silent:
        yield "What the paper leaves open, and what was taken:"
        yield "\n".join(f"- {plain(line)}" for line in claim.silent)
    command, *card = write_card(built)
    notes = [*([claim.out_of_reach] if claim.out_of_reach else []), *write_gaps(built), *card]
    yield "How it was measured, and what is missing:"
    yield "\n".join(f"- {plain(note)}" for note in notes)
    yield fence(command.removeprefix("measure it: "))


def _write_measured(built: EvidenceTable) -> Iterator[str]:
    """Write the paper's figures beside ours, pictures of both, and each statement's verdict."""
    shared = describe_shared(built)
    what = "Ours are means over seeds ± half of the 95 % interval."
    yield f"{plain(shared)}. {what}" if shared else what
    yield f'<div class="rows" markdown>\n\n{_write_plain(tabulate_rows(built))}\n\n</div>'
    yield "\n\n".join(
        f"![{built.claim.title}: {write_words(name)}, paper and here]({_picture_of(built, name)})"
        for name in list_drawn(built)
    )
    yield _write_plain(tabulate_statements(built))
    if built.counts_ours.any:
        yield "Beyond the table's sentence, or in measures of ours, without a part in the verdict:"
        yield _write_plain(tabulate_statements(built, ours=True))


def _write_plain(table: Table) -> str:
    """Write a table whose cells know nothing of Markdown."""
    rows = [tuple(map(plain, row)) for row in table.rows]
    return Table(table.title, tuple(map(plain, table.columns)), rows, table.align).markdown()


def _picture_of(built: EvidenceTable, name: str) -> str:
    return f"{built.table.paper}-{built.table.name}-{name}.png"
