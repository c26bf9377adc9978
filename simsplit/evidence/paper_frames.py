"""Tables of papers as DataFrames: `simsplit.papers`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simsplit.evidence.claims import Tier
from simsplit.evidence.evidence_tables import (
    EvidenceTable,
    build_table,
    judge_table,
    read_known_rows,
)
from simsplit.evidence.papers import find_table, list_tables

if TYPE_CHECKING:
    import pandas as pd


def papers(table: str | None = None, tier: Tier | None = None) -> "pd.DataFrame":
    """Return a paper's table with its figures beside ours, or a list of all tables.

    With a table, a row per printed row and tier: its axes, and for each figure what the paper
    prints (`accuracy_paper`), our mean over seeds (`accuracy`), the 95 % interval (`accuracy_low`,
    `accuracy_high`), and the number of seeds. Without one, a row per table, with its verdict.

    >>> papers("lightsplit/table9")[["method", "accuracy_paper", "accuracy"]]  # doctest: +SKIP
    """
    import pandas as pd

    if table is None:
        return pd.DataFrame(list(_list_all()))
    entry = find_table(table)
    if not entry.tiers and tier is None:
        return pd.DataFrame(
            [
                axes | {f"{name}_paper": value for name, value in printed.items()}
                for axes, printed in entry.claim.rows
            ]
        )
    tiers = (entry.choose_tier(tier),) if tier is not None else entry.tiers
    known = read_known_rows()
    rows = [row for each in tiers for row in _list_rows(build_table(entry, each, known))]
    return pd.DataFrame(rows)


def _list_all() -> Iterator[dict[str, Any]]:
    known = read_known_rows()
    for table in list_tables():
        verdict, built = judge_table(table, known)
        yield {
            "paper": table.paper,
            "table": table.name,
            "title": table.claim.title,
            "says": table.claim.says,
            "verdict": verdict.value,
            "holds": built.counts.holds if built else 0,
            "fails": built.counts.fails if built else 0,
            "open": built.counts.open if built else 0,
            "tier": built.tier if built else None,
            "seeds": built.seeds if built else 0,
            "missing": len(built.lacking) if built else 0,
            "stale": len(built.stale) if built else 0,
        }


def _list_rows(built: EvidenceTable) -> Iterator[dict[str, Any]]:
    for row in built.rows:
        if not row.reachable:
            continue
        values: dict[str, Any] = {**row.axes, "tier": built.tier}
        for name in built.claim.figures:
            known = row.known.get(name)
            half = known.half if known is not None else None
            values[f"{name}_paper"] = row.printed.get(name)
            values[name] = known.mean if known is not None else None
            values[f"{name}_low"] = known.mean - half if known and half is not None else None
            values[f"{name}_high"] = known.mean + half if known and half is not None else None
        yield {**values, "seeds": row.seeds, "stale": row.stale}
