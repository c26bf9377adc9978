"""A board as one self-contained HTML page: the verdict, the picture, tables, and each command."""

import base64
import io
from collections.abc import Sequence

from simsplit.boards.drawing import draw_board
from simsplit.boards.entries import DEFENCE, Board
from simsplit.boards.scoring import RANKED, rank_defences, score_strengths
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
"""Shares of what can be read: at most this is worth something, from this on a defence is beaten."""


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
    ranked = [each for each in rank_defences(score_strengths(board)) if each.defence != NONE]
    scored = [(each, each.best[RANKED]) for each in ranked if RANKED in each.best]
    if not scored:
        return f"{board.track.says} Nothing is measured against every attack yet."
    unit = board.track.utility.unit
    means = {each.defence: sum(of.leak.values()) / len(of.leak) for each, of in scored}
    if not board.track.has_attacks:
        least = min(means, key=lambda name: means[name])
        return (
            f"{board.track.says} {least} sends least within {RANKED:g} {unit}: "
            f"{100 * means[least]:.0f} % of the undefended run's."
        )
    good = [f"{name} ({means[name]:.2f})" for name in means if means[name] <= _WORTH]
    beaten = [
        f"{each.defence} ({of.worst})" for each, of in scored if means[each.defence] >= _BEATEN
    ]
    words = [board.track.says]
    budget = f"{RANKED:g} {unit}"
    words.append(
        f"Within {budget} the worst attack reads at most half of what can be read behind "
        f"{format_list(good, 8)}."
        if good
        else f"No defence that costs at most {budget} keeps the worst attack below half of what "
        "can be read."
    )
    if beaten:
        words.append(f"Beaten, {_BEATEN:g} or more being read: {format_list(beaten, 12)}.")
    broken = [each.defence for each in ranked if RANKED not in each.best and not each.lacking]
    if broken:
        words.append(f"No strength of theirs costs so little: {format_list(broken, 12)}.")
    return " ".join(words)


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
