"""Methods, attacks, detectors and poisons together, of either modality: refused by path, or run.

And the table of what works with what says the same as scenarios do.
"""

import itertools

import pytest
from contracts.walk import EVERY_PART, TOPOLOGIES, Axes, Part, assert_no, refusal

from simsplit.catalogue import catalogue
from simsplit.needs import Given

SHARED: Axes = ("u_shaped", "shared", "round_robin", "none")
TURNS: Axes = ("u_shaped", "shared", "per_client", "none")


def plain(part: Part) -> Axes:
    needs = {need.what for need in part.config().needs}  # type: ignore[attr-defined]
    return TURNS if Given.TURNS in needs else SHARED


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_table_says_what_scenarios_are_refused_for(topology: str) -> None:
    (table,) = catalogue("compatibility")
    told = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    parts = {part.kind: part for part in EVERY_PART}
    assert told.keys() == parts.keys()
    wrong = []
    for (kind, row), texts in itertools.product(told.items(), (False, True)):
        part = Part(parts[kind].where, kind, parts[kind].config)
        promised = row["texts" if texts else "images"] == row[topology] == "yes"
        said = refusal((topology, *plain(part)[1:]), part.changes, texts=texts)
        if promised is not (said is None) and not (kind == "adaptive_online" and said):
            wrong.append(f"{kind}, texts: {texts}: the table says {promised}, the scenario {said}")
    assert_no(wrong)
