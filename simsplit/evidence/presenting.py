"""Tables of papers beside ours, as text tables: for the terminal and for pages."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from simsplit.errors import format_count
from simsplit.evidence.claims import FIGURE, Claim
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.selecting import estimate, write_minutes
from simsplit.evidence.tables import EvidenceRow, EvidenceTable, JudgedStatement, Known
from simsplit.evidence.verdicts import ClaimVerdict
from simsplit.report.tables import Table

JudgedTable = tuple[PaperTable, ClaimVerdict, EvidenceTable | None]
"""A table, the verdict on it, and its measurements at the tier that was judged."""

_LEFT_MINUS_RIGHT = "left minus right"
_OVERVIEW = ("table", "what it shows", "tiers", "rows", "seeds", "stale", "time", "verdict")


def tabulate_overview(tables: Sequence[JudgedTable], title: str = "") -> Table:
    """Tabulate tables of papers, a line each: what it shows, what is measured, the verdict."""
    rows = [_describe_line(*each) for each in tables]
    return Table(title, _OVERVIEW, rows, "lllrrrrl")


def count_verdicts(tables: Iterable[JudgedTable]) -> str:
    """Count tables by verdict, in words."""
    counts = Counter(verdict for _, verdict, _ in tables)
    return ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in ClaimVerdict if counts[verdict]
    )


def count_statements(built: EvidenceTable) -> str:
    """Count a table's statements by verdict, in words."""
    counts = Counter(each.judged.verdict for each in built.judgements)
    return ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in ClaimVerdict if counts[verdict]
    )


def _describe_line(
    table: PaperTable, verdict: ClaimVerdict, built: EvidenceTable | None
) -> tuple[str, ...]:
    start = (table.full_name, table.claim.says)
    if built is None:
        return (*start, "", "", "", "", "", verdict.value)
    reachable = [row for row in built.rows if row.reachable]
    measured = sum(1 for row in reachable if row.known)
    minutes = estimate(built)
    time = write_minutes(sum(minutes[cell.name] for cell in built.cells))
    stale = str(len(built.stale)) if built.stale else ""
    tiers = ", ".join(table.tiers)
    seeds = str(built.seeds or "")
    return (*start, tiers, f"{measured}/{len(reachable)}", seeds, stale, time, verdict.value)


def tabulate_rows(built: EvidenceTable) -> Table:
    """Tabulate the printed rows that the tier measures: the paper's figures beside ours.

    What all rows share is not repeated in each: `describe_shared` has it. A figure that none of
    them has is left out.
    """
    claim = built.claim
    shown = [row for row in built.rows if row.reachable]
    varied = list_varied_axes(built)
    texts = {tuple(axes.values()): printed for axes, printed in claim.texts}
    # a silent model's row, which DCS tables have, is printed by nobody
    printed = [texts.get(tuple(row.axes.values()), {}) for row in shown]
    columns, cells = [*varied], [[claim.name(row.axes[axis]) for axis in varied] for row in shown]
    for name, figure in claim.figures.items():
        title = f"{write_words(name)} {figure.unit}".strip()
        if any(name in each for each in printed):
            columns.append(f"{title}, paper")
            _extend(cells, [each.get(name, "") for each in printed])
        if any(name in row.known for row in shown) or (figure.is_ and built.stale):
            columns.append(f"{title}, here")
            decimals = claim.decimals(name)
            ours = [None if claim.is_own(name, row.axes) else row.known.get(name) for row in shown]
            _extend(cells, map(_write_ours, ours, repeat(decimals), shown))
    _extend(cells, [str(row.seeds or "") for row in shown])
    align = "l" * len(varied) + "r" * (len(columns) + 1 - len(varied))
    return Table("", (*columns, "seeds"), [tuple(row) for row in cells], align)


def _extend(rows: Sequence[list[str]], column: Iterable[str]) -> None:
    for row, cell in zip(rows, column, strict=True):
        row.append(cell)


def write_words(name: str) -> str:
    """Write a figure's or an axis' name as words."""
    return name.replace("_", " ")


def list_varied_axes(built: EvidenceTable) -> list[str]:
    """List the axes on which the rows differ that the tier measures; all where none do."""
    shown = [row for row in built.rows if row.reachable]
    axes = built.claim.axes
    return [axis for axis in axes if len({row.axes[axis] for row in shown}) > 1] or [*axes]


def describe_shared(built: EvidenceTable) -> str:
    """Describe what all rows share that the tier measures, such as `CIFAR-10, iid`."""
    claim, varied = built.claim, list_varied_axes(built)
    first = next((row for row in built.rows if row.reachable), None)
    shared = [axis for axis in claim.axes if axis not in varied]
    return ", ".join(write_value(claim, axis, first.axes[axis]) for axis in shared) if first else ""


def write_value(claim: Claim, axis: str, value: str) -> str:
    """Write an axis' value by the paper's name; a bare number has the axis before it."""
    name = claim.name(value)
    return f"{write_words(axis)} {name}" if name.replace(".", "").isdecimal() else name


def _write_ours(known: Known | None, decimals: int, row: EvidenceRow) -> str:
    if known is None:
        return "stale" if row.stale else ""
    return write_known(known, decimals)


def write_known(known: Known, decimals: int) -> str:
    """Write a figure's mean over seeds, and half of its interval where there are several."""
    half = known.half
    digits = choose_decimals(known.mean, decimals)
    if half:  # digits that the interval does not leave certain say nothing
        digits = min(digits, max(decimals, 1 - math.floor(math.log10(half))))
    interval = f" ± {half:.{digits}f}" if half else ""
    return f"{known.mean:.{digits}f}{interval}"


def choose_decimals(value: float, decimals: int) -> int:
    """Return the paper's decimals, or as many as show three digits of a smaller value."""
    if not value:
        return decimals
    return max(decimals, min(6, 2 - math.floor(math.log10(abs(value)))))


def list_statements(built: EvidenceTable) -> Iterator[str]:
    """Yield what would hold, each with its verdict and what was measured of it."""
    for each in built.judgements:
        yield f"{each.judged.verdict.value}: {write_statement(built, each)}"


def write_statement(built: EvidenceTable, each: JudgedStatement) -> str:
    """Write a statement with what was measured of it."""
    figure = _write_figure(built, each)
    start = f"{figure}: {each}" if figure else str(each)
    if each.judged.verdict is ClaimVerdict.OUT_OF_REACH:
        return f"{start}; {each.statement.out_of_reach}"
    if each.judged.missing:
        return f"{start}; lacks {', '.join(each.judged.missing)}"
    what = _LEFT_MINUS_RIGHT if each.judged.comparison.bound is None else "measured"
    return f"{start}; {what} {_write_measured(each)} over {format_count(each.judged.seeds, 'seed')}"


def tabulate_statements(built: EvidenceTable) -> Table:
    """Tabulate what would hold, by the paper's names: what was measured of it, and the verdict."""
    claim, rows = built.claim, []
    for each in built.judgements:
        where = ", ".join(write_value(claim, axis, value) for axis, value in each.where.items())
        figure = write_words(_write_figure(built, each))
        name = write_words if each.statement.along == FIGURE else claim.name
        what = each.judged.comparison.write(name)
        missing = ", ".join(map(name, each.judged.missing))
        what_of = f"{_LEFT_MINUS_RIGHT} " if each.judged.comparison.bound is None else ""
        measured = f"lacks {missing}" if missing else what_of + _write_measured(each)
        if each.judged.verdict is ClaimVerdict.OUT_OF_REACH:
            measured = each.statement.out_of_reach
        seeds = str(each.judged.seeds or "")
        rows.append((where, figure, what, measured, seeds, each.judged.verdict.value))
    columns = ("where", "figure", "what would hold", "measured", "seeds", "verdict")
    kept = [n for n, column in enumerate(columns) if n > 1 or any(row[n] for row in rows)]
    cells = [tuple(row[n] for n in kept) for row in rows]
    return Table("", tuple(columns[n] for n in kept), cells, "".join("llllrl"[n] for n in kept))


def _write_figure(built: EvidenceTable, each: JudgedStatement) -> str:
    return each.statement.in_ if len(built.claim.figures) > 1 else ""


def _write_measured(each: JudgedStatement) -> str:
    """Write the first side where it is held against a number, else how far apart both are."""
    judged = each.judged
    bound = judged.comparison.bound
    half = "" if judged.half is None else f" ± {judged.half:.3g}"
    return f"{judged.mean:.3g}{half}" if bound is None else f"{judged.mean + bound:.4g}{half}"


def write_card(built: EvidenceTable) -> list[str]:
    """Write how the rows were measured: machines, time, versions, the command."""
    table = built.table
    lines = [f"measure it: {' '.join(table.command)} --tier {built.tier}"]
    if not built.fresh:
        return lines
    runs = {(row.setting, row.seed): row.minutes for row in built.fresh}
    machines = sorted(
        {f"{row.machine}, {format_count(row.threads, 'thread')}" for row in built.fresh}
    )
    commits = sorted({row.commit[:12] for row in built.fresh if row.commit})
    dates = sorted({row.date[:10] for row in built.fresh})
    versions = sorted({row.version for row in built.fresh})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    took = write_minutes(sum(runs.values()))
    lines.append(
        f"measured: {format_count(len(runs), 'run')}, {took} in all, {span}, on "
        f"{'; '.join(machines)}; simsplit {', '.join(versions)}"
        + (f" at {', '.join(commits)}" if commits else "")
    )
    return lines


def write_gaps(built: EvidenceTable) -> list[str]:
    """Write what the tier leaves out, what is stale, and what is missing."""
    lines = []
    beyond = sum(1 for row in built.rows if not row.reachable)
    if beyond:
        lines.append(
            f"not measured at tier {built.tier}: {format_count(beyond, 'row')} of the paper's"
        )
    if built.stale:
        lines.append(
            f"{format_count(len(built.stale), 'measurement')} stale: made with a scenario that has "
            "changed since, or with a figure that is read otherwise"
        )
    if built.lacking:
        minutes = estimate(built)
        takes = write_minutes(sum(minutes[cell.name] for cell in built.lacking))
        lacking = format_count(len(built.lacking), "cell")
        lines.append(f"{lacking} of {len(built.cells)} missing, about {takes}")
    return lines


def tabulate_printed(table: PaperTable) -> Table:
    """Tabulate what the paper prints, for a table that is not measured."""
    claim = table.claim
    texts = [printed for _, printed in claim.texts]
    figures = [name for name in claim.figures if any(name in printed for printed in texts)]
    rows = [
        (*map(claim.name, axes.values()), *(printed.get(name, "") for name in figures))
        for axes, printed in claim.texts
    ]
    align = "l" * len(claim.axes) + "r" * len(figures)
    return Table("", tuple(map(write_words, (*claim.axes, *figures))), rows, align)


def describe_printed(table: PaperTable) -> dict[str, Any]:
    """Describe a table that is not measured, as plain values."""
    claim = table.claim
    verdict = ClaimVerdict.NO_CLAIM if claim.describes else ClaimVerdict.OUT_OF_REACH
    return {
        "table": table.full_name,
        "title": claim.title,
        "says": claim.says,
        "verdict": verdict.value,
        "why": claim.out_of_reach or claim.describes,
        "rows": [{**axes, "printed": printed} for axes, printed in claim.rows],
    }


def describe_judged(
    table: PaperTable, verdict: ClaimVerdict, built: EvidenceTable | None
) -> dict[str, Any]:
    """Describe a line of the overview as plain values."""
    claim = table.claim
    return {
        "table": table.full_name,
        "title": claim.title,
        "says": claim.says,
        "tiers": list(table.tiers),
        "tier": built.tier if built else None,
        "verdict": verdict.value,
        "seeds": built.seeds if built else 0,
        "stale": len(built.stale) if built else 0,
        "missing": len(built.lacking) if built else 0,
        "minutes": sum(estimate(built)[cell.name] for cell in built.cells) if built else None,
        "why": claim.out_of_reach or claim.describes,
    }
