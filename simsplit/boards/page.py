"""A board as one self-contained HTML page: the verdict, the picture, tables, and each command."""

import base64
import io
import shlex
from collections.abc import Iterable, Sequence

from simsplit.boards.board_drawing import draw_board
from simsplit.boards.board_verdict import judge
from simsplit.boards.entries import Board
from simsplit.boards.figure_names import DEFENCE
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import list_remarks, tabulate_standings, tabulate_strengths
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


def write_board_page(board: Board) -> str:
    """Write the page of a board."""
    standings, strengths = tabulate_standings(board), tabulate_strengths(board)
    leak = board.track.leak.called.capitalize()
    complete = any(each.is_complete for each in score_strengths(board))
    verdict = judge(board)
    sections = [
        section("The verdict", _list(verdict.rest)) if verdict.rest else Markup(),
        section("Defences in order", mark_up(standings)),
        section(f"{leak} against utility", _show_picture(board)) if complete else Markup(),
        section("Every strength", _link_commands(strengths)),
        section("What to know", _list(list_remarks(board))),
        section("Commands", _list_commands(board)),
    ]
    title = f"{board.track.title}, tier {board.tier}"
    said = f"{verdict.question} {verdict.answer}"
    return fill_page(title, said, [each for each in sections if each])


def _list(lines: Iterable[str]) -> Markup:
    return tag("ul", *(tag("li", line) for line in lines))


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
        only = f"{DEFENCE}={cell.axes[DEFENCE]}"
        words = [*board.table.table.command, *cell.options, "--tier", board.tier, "--only", only]
        lines.setdefault(cell.axes[DEFENCE], shlex.join(words))
    return join(tag("p", tag("code", words), id=_anchor(name)) for name, words in lines.items())


def _anchor(strength: str) -> str:
    return f"command-{strength}"
