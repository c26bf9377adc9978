"""A board as one self-contained HTML page: the verdict, the picture, tables, and each command."""

import base64
import io
import statistics
from collections.abc import Sequence

from simsplit.boards.drawing import draw_board
from simsplit.boards.entries import DEFENCE, Board
from simsplit.boards.scoring import RANKED, Strength, rank_defences, score_strengths
from simsplit.boards.tabulating import list_remarks, tabulate_standings, tabulate_strengths
from simsplit.boards.track import NONE
from simsplit.errors import format_list
from simsplit.evidence.reading_runs import write_command
from simsplit.report.html.markup import (
    Markup,
    figure,
    join,
    mark_up,
    mark_up_rows,
    section,
    tag,
    void,
)
from simsplit.report.page import fill_page
from simsplit.report.tables import Table

_WORTH, _BEATEN = 0.5, 0.9
"""Shares of what is read undefended: up to the first a defence is worth something, from the second
on it is beaten."""


def write_board_page(board: Board) -> str:
    """Write the page of a board."""
    standings, strengths = tabulate_standings(board), tabulate_strengths(board)
    leak = board.track.leak.called.capitalize()
    complete = any(each.is_complete for each in score_strengths(board))
    sections = [
        section("Defences in order", mark_up(standings)),
        section(f"{leak} against utility", _show_picture(board)) if complete else Markup(),
        section("Every strength", _link_commands(strengths)),
        section("What to know", tag("ul", *(tag("li", line) for line in list_remarks(board)))),
        section("Commands", _list_commands(board)),
    ]
    title = f"{board.track.title}, tier {board.tier}"
    return fill_page(title, judge(board), [each for each in sections if each])


def judge(board: Board) -> str:
    """Judge a board in words: which defences are worth anything, and which are beaten by what."""
    strengths = score_strengths(board)
    ranked = [each for each in rank_defences(strengths) if each.defence != NONE]
    scored = {each.defence: each.best[RANKED] for each in ranked if RANKED in each.best}
    plain = next((each for each in strengths if each.defence == NONE), None)
    if plain is None or not scored or not plain.leak:
        return f"{board.track.says} Nothing is measured against every attack yet."
    budget = f"{RANKED:g} {board.track.utility.unit}"
    shares = {name: _average(each) / _average(plain) for name, each in scored.items()}
    words = [board.track.says]
    if min(each.seeds for each in scored.values()) == 1:
        words.append("With one seed no order is settled.")
    if not board.track.has_attacks:
        least = min(shares, key=lambda name: shares[name])
        words.append(f"{least} sends least at a cost of at most {budget}: {shares[least]:.0%}.")
        return " ".join(words)
    good = [name for name, share in shares.items() if share <= _WORTH]
    beaten = [f"{name} ({each.worst})" for name, each in scored.items() if shares[name] >= _BEATEN]
    # what poisons training reads nothing
    worst, does, what = (
        ("backdoor", "has", "its success")
        if board.track.threats
        else ("attack", "reads", "what it reads")
    )
    undefended = f"{what} undefended ({_average(plain):.2f})"
    words.append(
        f"At a cost of at most {budget} the worst {worst} {does} at most half of "
        f"{undefended} behind "
        f"{format_list([f'{name} ({_average(scored[name]):.2f})' for name in good], 8)}."
        if good
        else f"No defence that costs at most {budget} keeps the worst {worst} below half of "
        f"{undefended}."
    )
    if beaten:
        words.append(f"It {does} {_BEATEN:.0%} of that or more behind {format_list(beaten, 12)}.")
    if bounds := sorted({each.worst for each in scored.values()} & set(board.bounds)):
        words.append(f"{format_list(bounds)} bounds what is left: no server knows so much.")
    broken = [each.defence for each in ranked if RANKED not in each.best and not each.lacking]
    if broken:
        words.append(f"Every strength of these costs more: {format_list(broken, 12)}.")
    return " ".join(words)


def _average(strength: Strength) -> float:
    return statistics.fmean(strength.leak.values())


def _show_picture(board: Board) -> Markup:
    content = io.BytesIO()
    draw_board(board).savefig(content, format="svg", bbox_inches="tight")
    address = "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()
    shown = void("img", src=address, alt="Leak against utility, by defence", class_="picture")
    caption = (
        "Each point is a strength, with 95 % intervals over seeds; the dashed line is the front: "
        "no other strength has less at as much utility. Dotted lines are floor and ceiling."
    )
    return figure(shown, caption)


def _link_commands(table: Table) -> Markup:
    """Mark up the table of strengths, each with a link to its command."""
    place = table.columns.index("strength")
    rows: list[Sequence[object]] = []
    for row in table.rows:
        cells: list[object] = [*row]
        cells[place] = tag("a", row[place], href=f"#{_anchor(row[place])}")
        rows.append(cells)
    return mark_up_rows(table.columns, rows, table.align)


def _list_commands(board: Board) -> Markup:
    """List the command that measures each strength, by which its row is found."""
    lines: dict[str, str] = {}
    for cell in board.table.cells:
        words = write_command(cell, board.table.table, board.tier)
        lines.setdefault(cell.axes[DEFENCE], words)
    return join(tag("p", tag("code", words), id=_anchor(name)) for name, words in lines.items())


def _anchor(strength: str) -> str:
    return f"command-{strength}"
