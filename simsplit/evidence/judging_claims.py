"""A claim's statements are judged by a table's rows: each comparison, and what the sentence says.

What rows say nothing of stays open (`simsplit.evidence.silences`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from simsplit.evidence.claims import FIGURE, Axes, Claim, Statement, Tier
from simsplit.evidence.evidence_rows import EvidenceRow
from simsplit.evidence.silences import explain_silence
from simsplit.evidence.statements import COMPARISONS, Comparison
from simsplit.evidence.verdicts import (
    LOOKS,
    BySeed,
    ClaimVerdict,
    Judged,
    VerdictCounts,
    combine_most,
    combine_verdicts,
    count_verdicts,
    judge,
)


@dataclass(frozen=True)
class JudgedStatement:
    """One comparison of a claim, where it is made, and how it was judged."""

    statement: Statement
    where: Axes
    judged: Judged

    def __str__(self) -> str:
        where = ", ".join(self.where.values())
        return f"{self.judged.comparison}{f' ({where})' if where else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `--json` prints them."""
        judged = self.judged
        low, high = judged.interval or (None, None)
        return {
            "that": str(judged.comparison),
            "in": self.statement.in_,
            "where": dict(self.where),
            "verdict": judged.verdict.value,
            "ours": self.statement.ours,
            "why_open": judged.why_open,
            "seeds": judged.seeds,
            "difference": judged.mean if math.isfinite(judged.mean) else None,
            "half_width": (high - low) / 2 if low is not None and high is not None else None,
            "low": low,
            "high": high,
        }


def judge_claim(
    claim: Claim, tier: Tier, rows: Sequence[EvidenceRow], planned: int = LOOKS[0]
) -> list[JudgedStatement]:
    """Judge all comparisons that a tier can make, by the seeds that it plans, in their order."""
    made = []
    for statement, where, comparison in claim.comparisons():
        here = [row for row in rows if row.reachable and where.items() <= row.axes.items()]
        if _is_reached(claim, statement, comparison, here):
            measures = {s: claim.measure(statement.in_ or s, tier) for s in comparison.rows}
            judged = judge(comparison, _find_values(statement, here), measures, planned)
            if not judged.missing:
                judged = _silence(claim, tier, statement, judged, here, rows=rows)
            elif statement.out_of_reach:
                judged = replace(judged, verdict=ClaimVerdict.OUT_OF_REACH)
            made.append(JudgedStatement(statement, where, judged))
    return made


def judge_sentence(claim: Claim, judgements: Sequence[JudgedStatement]) -> ClaimVerdict:
    """Return the verdict on a table's sentence: the worst of those on its statements.

    It does not hold as long as a part of it is not measured at all, and is not settled where
    another part is.
    """
    verdicts = []
    of_sentence = [each for each in judgements if not each.statement.ours]
    for _, group in groupby(of_sentence, key=lambda each: id(each.statement)):
        made = list(group)
        combine = combine_most if made[0].statement.most else combine_verdicts
        verdicts.append(combine([each.judged.verdict for each in made]))
    worst = combine_verdicts(verdicts)
    measured = {ClaimVerdict.HOLDS, ClaimVerdict.NOT_SETTLED} & {*verdicts}
    partly = worst is ClaimVerdict.NOT_MEASURED and measured
    if partly or (worst is ClaimVerdict.HOLDS and list_beyond(claim, judgements)):
        return ClaimVerdict.NOT_SETTLED
    return worst


def list_beyond(claim: Claim, judgements: Sequence[JudgedStatement]) -> list[Statement]:
    """List the statements of a sentence of a kind that the tier does not measure at all.

    Of one kind are statements on one figure by one sign: small models have settings of their own.
    """
    judged = {_find_kind(each.statement) for each in judgements}
    return [
        statement
        for statement in claim.holds
        if not (statement.ours or statement.out_of_reach or _find_kind(statement) in judged)
    ]


def _find_kind(statement: Statement) -> tuple[str, str]:
    sign = next(word for word in statement.that.split() if word in COMPARISONS)
    return statement.in_, sign


def count_of(judgements: Sequence[JudgedStatement], *, ours: bool) -> VerdictCounts:
    """Count the comparisons of a table's sentence by verdict, or those that go beyond it."""
    return count_verdicts(
        each.judged.verdict for each in judgements if bool(each.statement.ours) == ours
    )


def _is_reached(
    claim: Claim, statement: Statement, comparison: Comparison, here: Sequence[EvidenceRow]
) -> bool:
    """Return whether the tier measures what a comparison names, or says why it cannot."""
    if statement.along == FIGURE:
        names, rows = comparison.rows, here[:1]
    else:
        by_name = {row.axes[statement.along]: row for row in here}
        if not by_name.keys() >= set(comparison.rows):
            return False
        names, rows = (statement.in_,), [by_name[name] for name in comparison.rows]
    bases = {claim.base_figure(name) for name in names}
    return bool(rows) and (
        bool(statement.out_of_reach) or all(bases <= row.reached for row in rows)
    )


def _silence(
    claim: Claim,
    tier: Tier,
    statement: Statement,
    judged: Judged,
    here: Sequence[EvidenceRow],
    *,
    rows: Sequence[EvidenceRow],
) -> Judged:
    """Leave open what rows say nothing of."""
    sides, along = judged.comparison.rows, statement.along
    named = [row for row in here if along == FIGURE or row.axes[along] in sides]
    why = explain_silence(claim, tier, statement, named, rows)
    return replace(judged, verdict=ClaimVerdict.NOT_SETTLED, why_open=why) if why else judged


def _find_values(statement: Statement, here: Sequence[EvidenceRow]) -> Mapping[str, BySeed]:
    """Return what is measured of each row, or of each figure, that a statement may name."""
    if statement.along == FIGURE:
        return {name: known.by_seed for row in here for name, known in row.known.items()}
    known_rows = {row.axes[statement.along]: row.known.get(statement.in_) for row in here}
    return {name: known.by_seed for name, known in known_rows.items() if known is not None}
