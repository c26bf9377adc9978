"""Figures in the text of hand-written pages, made from measurements where there are any.

    <!-- figure: lightsplit/table4 ridge_ssim method=lightsplit-8 -->...<!-- end -->
    <!-- figure: boards/labels worst strength=max_norm -->...<!-- end -->

Of a board the figure is an attack, `worst`, for the one that reads most, or a view that places no
defence, for the one that reads most by it; the scale is the
board's, from what needs no attack (0) to the ceiling (1). `loss` is what it costs in utility.
The text between the marks is the mean over seeds ± half of its 95 % interval, or the seeds' range
where that interval leaves a board's scale. No figure stands there without its row.
"""

import re
from collections.abc import Mapping

from making import boards, papers
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import write_by_seed, write_leak
from simsplit.errors import SimsplitError
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.papers import find_table
from simsplit.evidence.presenting import write_known

_MARK = re.compile(r"<!-- figure: (\S+) (\S+)((?: \w+=\S+)*) -->.*?<!-- end -->", re.DOTALL)
_NOTHING = "not measured"
_LOSS = "loss"


def fill(text: str) -> str:
    """Return a text with every figure as the data have it."""
    return _MARK.sub(_write_marked, text)


def _write_marked(mark: re.Match[str]) -> str:
    table, figure, axes = mark.groups()
    start = mark[0].partition("-->")[0]
    chosen = dict(pair.split("=", 1) for pair in axes.split())
    return f"{start}-->{_write(table, figure, chosen) or _NOTHING}<!-- end -->"


def _write(table: str, figure: str, axes: Mapping[str, str]) -> str:
    """Write a figure of the one row that has these axes; empty where it is not measured."""
    folder, _, name = table.partition("/")
    if folder == boards.FOLDER:
        return _write_of_board(name, figure, axes["strength"])
    find_table(table)
    built = next((b for each, _, b in papers.judge_all() if each.full_name == table), None)
    if built is None or figure not in built.claim.figures:
        raise SimsplitError(f"{table} has no measured figure '{figure}'")
    return _write_row(built, figure, axes)


def _write_of_board(track: str, attack: str, name: str) -> str:
    """Write what an attack reads behind a strength of a defence on a board, or what that costs."""
    board = boards.find(track)
    strength = next((each for each in score_strengths(board) if each.name == name), None)
    if strength is None or attack not in ("worst", _LOSS, *board.beside, *board.attacks):
        raise SimsplitError(f"boards/{track} has no {attack} behind {name}")
    if attack == _LOSS:
        return write_by_seed(strength.loss, 1) if strength.loss else ""
    if attack in board.beside:
        by_seed = strength.read_beside(attack)[1]
    else:
        by_seed = strength.leak if attack == "worst" else strength.leaks.get(attack, {})
    alone = " (one seed)" if len(by_seed) == 1 else ""
    return write_leak(by_seed) + alone if by_seed else ""


def _write_row(built: EvidenceTable, figure: str, axes: Mapping[str, str]) -> str:
    rows = [row for row in built.rows if axes.items() <= row.axes.items()]
    if len(rows) != 1:
        why = ": code that they used has changed (CONTRIBUTING.md, the golden rule)"
        raise SimsplitError(
            f"{built.table.full_name} has {len(rows)} rows with {dict(axes)}"
            f"{why if built.stale else ''}"
        )
    (row,) = rows
    if figure not in row.known:
        return ""
    unit = built.claim.figures[figure].unit
    known = row.known[figure]
    alone = " (one seed)" if known.half is None else ""
    text = write_known(known, built.claim.decimals(figure))
    return f"{text} {unit}".strip() + alone
