"""Rows may say nothing of a claim: their gate is missed, or an attack reads no more than its floor.

A small model may learn too little for what a sentence says, and an attack that reads nothing where
nothing is defended says nothing of a defence. Such a statement stays open, whatever its interval.
"""

from collections.abc import Iterator, Mapping, Sequence

from simsplit.evidence.claim_parts import FIGURE, RowGate, Statement, Tier
from simsplit.evidence.claims import Claim
from simsplit.evidence.evidence_rows import EvidenceRow
from simsplit.evidence.measures import Measure
from simsplit.evidence.statements import Comparison, Side, parse_statement
from simsplit.evidence.verdicts import ClaimVerdict, judge

SILENT = "says nothing"


def explain_silence(
    claim: Claim,
    tier: Tier,
    statement: Statement,
    named: Sequence[EvidenceRow],
    rows: Sequence[EvidenceRow],
) -> str:
    """Return why rows settle nothing of a statement that names them; empty: they may settle it."""
    reasons = (
        *_list_missed(claim, statement, named, rows),
        *_list_unread(claim, tier, statement, named, rows),
    )
    return f"{SILENT}: {reasons[0]}" if reasons else ""


def list_gates(claim: Claim, statement: Statement) -> list[RowGate]:
    """List the gates that decide whether a statement is judged."""
    parsed = parse_statement(statement.that, claim.sides(statement), "")
    names = [statement.in_] if statement.in_ else [name for each in parsed for name in each.rows]
    figures = {*names, *map(claim.base_figure, names)}
    numbers = any(comparison.names_number for comparison in parsed)
    return [
        gate
        for gate in claim.gates
        if (not gate.judges or figures & set(gate.judges)) and (numbers or not gate.bounds)
    ]


def _list_missed(
    claim: Claim,
    statement: Statement,
    named: Sequence[EvidenceRow],
    rows: Sequence[EvidenceRow],
) -> Iterator[str]:
    """Yield each gate that a row misses, and what would pass it."""
    for gate in list_gates(claim, statement):
        for row in named:
            if gate.for_.items() <= row.axes.items():
                axes = {**row.axes, **gate.at}
                judged = (each for each in rows if each.axes == axes)
                yield from filter(None, (find_missed(claim, gate, each) for each in judged))


def find_missed(claim: Claim, gate: RowGate, row: EvidenceRow) -> str:
    """Return how a row misses a gate, by the means of its seeds; empty: it passes."""
    for comparison in parse_statement(gate.that, claim.figures, ""):
        lacking = [name for name in comparison.rows if name not in row.known]
        of = ", ".join(claim.name(row.axes[axis]) for axis in gate.at) or "the row"
        if lacking:
            return f"{lacking[0]} of {of} is not measured, by which it would be judged"
        means = {name: row.known[name].mean for name in comparison.rows}
        if not comparison.is_true(means):
            is_now = " and ".join(f"{name} of {of} is {mean:.3g}" for name, mean in means.items())
            return f"{is_now}, and its gate is {comparison}, which {gate.otherwise} would pass"
    return ""


def _list_unread(
    claim: Claim,
    tier: Tier,
    statement: Statement,
    named: Sequence[EvidenceRow],
    rows: Sequence[EvidenceRow],
) -> Iterator[str]:
    """Yield which attack is not above a floor where nothing is defended, or has not begun.

    A statement on figures compares attacks, not defences, and one on undefended rows alone is not
    of a defence.
    """
    if not claim.undefended or statement.along == FIGURE:
        return
    names = tuple(claim.figures[statement.in_].leaked) or (claim.base_figure(statement.in_),)
    plain = claim.undefended
    others = [{**row.axes, **plain} for row in named if not plain.items() <= row.axes.items()]
    pairs = [(name, floor) for name in names for floor in claim.figures[name].floors]
    for row in (row for row in rows if row.axes in others):
        for name, floor in pairs:
            sign = ">" if claim.figures[name].better == "less" else "<"
            beyond = Comparison(Side((name,)), sign, Side((floor,)))
            if not _holds(beyond, row, {each: claim.measure(each, tier) for each in beyond.rows}):
                of = ", ".join(map(claim.name, claim.undefended.values()))
                yield f"{name} of {of} is not beyond what needs no attack, {floor}"
    yield from _list_idle(claim, tier, names, named)


def _list_idle(
    claim: Claim, tier: Tier, names: Sequence[str], rows: Sequence[EvidenceRow]
) -> Iterator[str]:
    """Yield of which row an attack has not surely begun to read, by a figure that shows it."""
    starts = [start for name in names for start in claim.figures[name].starts.items()]
    for row in rows:
        for name, least in starts:
            known = row.known.get(name)
            # seeds that all give one value have no interval of their own
            alike = known is not None and len({*known.by_seed.values()}) == 1 and known.mean > least
            begun = Comparison(Side((name,)), ">", Side((least,)))
            if not alike and not _holds(begun, row, {name: claim.measure(name, tier)}):
                of = ", ".join(claim.name(row.axes[axis]) for axis in claim.undefended)
                now = "is not measured" if known is None else f"is {known.mean:.3g}"
                yield f"the attack has not surely begun on {of} ({name} {now}; begun: {least:g})"


def _holds(
    comparison: Comparison, row: EvidenceRow, measures: Mapping[str, Measure] | None = None
) -> bool:
    """Return whether a comparison of a row's figures surely holds."""
    known = {name: row.known[name].by_seed for name in comparison.rows if name in row.known}
    return judge(comparison, known, measures).verdict is ClaimVerdict.HOLDS
