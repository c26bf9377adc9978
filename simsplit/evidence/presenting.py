"""Tables of papers beside ours, as text tables: for the terminal and for pages."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simsplit.errors import format_count
from simsplit.evidence.claims import FIGURE, Claim, Statement
from simsplit.evidence.code_sources import DIRTY
from simsplit.evidence.evidence_rows import EvidenceRow, Known
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.judging_claims import JudgedStatement
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.refused_rows import RefusedRow, describe_refused, write_refused
from simsplit.evidence.selecting import estimate, write_minutes
from simsplit.evidence.settling import Prospect, find_prospects
from simsplit.evidence.verdicts import LOOKS, ClaimVerdict, Judged, VerdictCounts
from simsplit.report.tables import Table

JudgedTable = tuple[PaperTable, ClaimVerdict, EvidenceTable | None]
"""A table, the verdict on it, and its measurements at the tier that was judged."""

OURS = "beyond it, ours"
"""The word for comparisons that go beyond a table's sentence, or its measure."""
_WITHOUT_COUNTS = (ClaimVerdict.OUT_OF_REACH, ClaimVerdict.NO_CLAIM)
_LEFT_MINUS_RIGHT = "left minus right"
_ALWAYS = (2, 4, 5, 6)
"""Places of columns of statements that stand there even if they are empty."""
_OVERVIEW = ("table", "what it shows", "tiers", "rows", "seeds", "stale", "time", "verdict")


def tabulate_overview(tables: Sequence[JudgedTable], title: str = "") -> Table:
    """Tabulate tables of papers, a line each: what it shows, what is measured, the verdict."""
    rows = [_describe_line(*each) for each in tables]
    return Table(title, _OVERVIEW, rows, "lllrrrrl")


def count_verdicts(tables: Iterable[JudgedTable]) -> str:
    """Count tables by verdict, in words."""
    counts = Counter(verdict for _, verdict, _ in tables)
    return ", ".join(
        verdict.write_count(counts[verdict]) for verdict in ClaimVerdict if counts[verdict]
    )


def write_verdict(verdict: ClaimVerdict, built: EvidenceTable | None) -> str:
    """Write the verdict on a table's sentence, with how many comparisons hold, fail and are open.

    What goes beyond the sentence is counted by itself, and has no part in the verdict.
    """
    if built is None or verdict in _WITHOUT_COUNTS:
        return verdict.value
    counts = [str(built.counts)] if built.counts.any else []
    counts += [f"{OURS}: {built.counts_ours}"] if built.counts_ours.any else []
    return f"{verdict.value} ({'; '.join(counts) or 'no statement'})"


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
    said = write_verdict(verdict, built)
    return (*start, tiers, f"{measured}/{len(reachable)}", seeds, stale, time, said)


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
    columns = {axis: [claim.name(row.axes[axis]) for row in shown] for axis in varied}
    for name, figure in claim.figures.items():
        title = f"{write_words(name)} {figure.unit}".strip()
        if any(name in each for each in printed):
            columns[f"{title}, paper"] = [each.get(name, "") for each in printed]
        if any(name in row.known for row in shown) or (figure.is_ and built.stale):
            columns[f"{title}, here"] = [_write_ours(claim, name, row) for row in shown]
    columns["seeds"] = [str(row.seeds or "") for row in shown]
    align = "l" * len(varied) + "r" * (len(columns) - len(varied))
    return Table("", tuple(columns), [*zip(*columns.values(), strict=True)], align)


def _write_ours(claim: Claim, name: str, row: EvidenceRow) -> str:
    if name in row.known and not claim.is_own(name, row.axes):
        return write_known(row.known[name], claim.decimals(name))
    return "stale" if row.stale else ""


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
    """Yield what would hold, each with its verdict and what was measured of it.

    What goes beyond the table's sentence comes last, under a word of its own.
    """
    for each in sorted(built.judgements, key=lambda each: bool(each.statement.ours)):
        word = f"{OURS}, " if each.statement.ours else ""
        yield f"{word}{each.judged.verdict.value}: {_write_statement(built, each)}"


def _write_statement(built: EvidenceTable, each: JudgedStatement) -> str:
    """Write a statement with what was measured of it."""
    start = _write_start(built, each)
    start = f"{start}, in most of them" if each.statement.most else start
    start = f"{start}, {each.statement.ours}" if each.statement.ours else start
    over = f" over {format_count(each.judged.seeds, 'seed')}"
    return f"{start}; {_describe_measured(each, str, bounded='measured ', over=over)}"


def tabulate_statements(built: EvidenceTable, *, ours: bool = False) -> Table:
    """Tabulate what the sentence says, by the paper's names: what was measured, and the verdict.

    `ours`: tabulate what goes beyond the table's sentence.
    """
    claim, rows = built.claim, []
    for each in (each for each in built.judgements if bool(each.statement.ours) == ours):
        where = ", ".join(write_value(claim, axis, value) for axis, value in each.where.items())
        figure = write_words(_write_figure(built, each))
        name = write_words if each.statement.along == FIGURE else claim.name
        what = each.judged.comparison.write(name) + (", in most" if each.statement.most else "")
        measured = _describe_measured(each, name)
        seeds = str(each.judged.seeds or "")
        beyond = each.statement.ours
        rows.append((where, figure, what, beyond, measured, seeds, each.judged.verdict.value))
    columns = ("where", "figure", "what would hold", "ours", "measured", "seeds", "verdict")
    kept = [n for n in range(len(columns)) if n in _ALWAYS or any(row[n] for row in rows)]
    cells = [tuple(row[n] for n in kept) for row in rows]
    return Table("", tuple(columns[n] for n in kept), cells, "".join("lllllrl"[n] for n in kept))


def _describe_measured(
    each: JudgedStatement, name: Callable[[str], str], bounded: str = "", over: str = ""
) -> str:
    judged = each.judged
    if judged.verdict is ClaimVerdict.OUT_OF_REACH:
        return each.statement.out_of_reach
    if judged.missing:
        return f"lacks {', '.join(map(name, judged.missing))}"
    what = f"{_LEFT_MINUS_RIGHT} " if judged.comparison.bound is None else bounded
    why = f"; {judged.why_open}" if judged.why_open else ""
    return f"{what}{_write_measured(judged)}{over}{why}"


def _write_start(built: EvidenceTable, each: JudgedStatement) -> str:
    figure = _write_figure(built, each)
    return f"{figure}: {each}" if figure else str(each)


def _write_figure(built: EvidenceTable, each: JudgedStatement) -> str:
    return each.statement.in_ if len(built.claim.figures) > 1 else ""


def _write_claimed(built: EvidenceTable, statement: Statement) -> str:
    """Write a statement that is not judged, with where it would be made."""
    claim = built.claim
    where = ", ".join(write_value(claim, axis, value) for axis, value in statement.for_.items())
    figure = f"{write_words(statement.in_)}: " if statement.in_ else ""
    return f"{figure}{statement.that}{f' ({where})' if where else ''}"


def _write_measured(judged: Judged) -> str:
    """Write the first side where it is held against a number, else how far apart both are."""
    shift, digits = judged.comparison.bound or 0.0, 3 if judged.comparison.bound is None else 4
    mean = f"{judged.mean + shift:.{digits}g}"
    if judged.interval is None:
        return mean
    low, high = judged.interval
    below, above = judged.mean - low, high - judged.mean
    if math.isclose(below, above, rel_tol=1e-3, abs_tol=1e-12):
        return f"{mean} ± {above:.3g}"
    return f"{mean} [{low + shift:.3g}, {high + shift:.3g}]"


def describe_built(built: EvidenceTable) -> dict[str, Any]:
    """Describe a table as plain values: rows, statements, and what would settle open ones."""
    return {
        **built.to_dict(),
        "prospects": [each.to_dict() for each in find_prospects(built, LOOKS[-1])],
    }


def list_prospects(prospects: Iterable[Prospect]) -> Iterator[str]:
    """Yield for each open statement what would settle it, and at what price."""
    for each in prospects:
        start = _write_start(each.table, each.each)
        if each.why_not:
            yield f"{start}: more seeds would not settle it: {each.why_not}"
        else:
            yield (
                f"{start}: {each.seeds} seeds settle it with a chance of {each.chance:.0%}, about "
                f"{write_minutes(each.minutes)} in {format_count(len(each.cells), 'cell')}"
            )


def write_card(built: EvidenceTable, options: Sequence[str] = ()) -> list[str]:
    """Write how the rows were measured: machines, time, versions, the command with its options."""
    command = shlex.join([*built.table.command, *options, "--tier", built.tier])
    lines = [f"measure it: {command}"]
    if not built.fresh:
        return lines
    runs = {(row.setting, row.seed): row.minutes for row in built.fresh}
    machines = sorted(
        {f"{row.machine}, {format_count(row.threads, 'thread')}" for row in built.fresh}
    )
    named = {row.commit for row in built.fresh if row.commit}
    commits = sorted(each[:12] + (DIRTY if each.endswith(DIRTY) else "") for each in named)
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
    if built.beyond:
        parts = dict.fromkeys(_write_claimed(built, each) for each in built.beyond)
        lines.append(
            f"of the sentence tier {built.tier} does not measure at all: {'; '.join(parts)}"
        )
    lines += write_refused(built.refused)
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
    table: PaperTable,
    verdict: ClaimVerdict,
    built: EvidenceTable | None,
    refused: Sequence[RefusedRow] = (),
) -> dict[str, Any]:
    """Describe a line of the overview, and rows of any tier that count for nothing."""
    claim = table.claim
    return {
        "table": table.full_name,
        "title": claim.title,
        "says": claim.says,
        "tiers": list(table.tiers),
        "tier": built.tier if built else None,
        "verdict": verdict.value,
        "counts": asdict(built.counts if built else VerdictCounts()),
        "counts_ours": asdict(built.counts_ours if built else VerdictCounts()),
        "seeds": built.seeds if built else 0,
        "stale": len(built.stale) if built else 0,
        "refused": describe_refused(refused),
        "missing": len(built.lacking) if built else 0,
        "minutes": sum(estimate(built).values()) if built else None,
        "why": claim.out_of_reach or claim.describes,
    }
