"""A page for each track of the board: made from the rows that ship."""

import shlex
from collections.abc import Iterator
from functools import cache
from io import BytesIO

from making.markup import fence, fold, plain, table
from simsplit.boards.board_drawing import draw_board
from simsplit.boards.board_verdict import judge
from simsplit.boards.entries import Board, build_board
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import list_remarks, tabulate_standings, tabulate_strengths
from simsplit.boards.track import list_tracks, load_track
from simsplit.evidence.claims import Tier

FOLDER = "boards"
_WIDE = "---\nhide: [toc]   # for the width of the tables\n---\n\n"
_ORDER: tuple[Tier, ...] = ("full", "small", "quick")
"""The tier that a page shows: the first of which anything is measured."""
_HEAD = """\
# Boards

A board holds the shipped defences of one track against the track's attacks. The attack that reads most counts; what it reads lies between
0, what needs no attack, and 1, the ceiling. A defence is scored by the least leak of its strengths that cost at most 3 points. Put
[your own among them](../howto/board.md) by one command.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the overview and a page per track."""
    yield f"{FOLDER}/index.md", "\n\n".join([_HEAD, *_list_verdicts()])
    for name, board in _boards():
        yield f"{FOLDER}/{name}.md", "\n\n".join(_write_page(board))


def _list_verdicts() -> Iterator[str]:
    """Yield each board's question and answer, under a link to its page."""
    for name, board in _boards():
        verdict = judge(board)
        yield f"## [{board.track.title}]({name}.md)"
        yield f"{plain(verdict.question)} **{plain(verdict.answer)}** Tier `{board.tier}`."


def verdicts() -> str:
    """Tabulate each board's answer."""
    lines = [(f"`{name}`", board.tier, plain(judge(board).answer)) for name, board in _boards()]
    return table(("track", "tier", "verdict"), lines)


def show_labels() -> str:
    """Write the question and answer of the board of labels, for the first page."""
    verdict = judge(dict(_boards())["labels"])
    return f"{plain(verdict.question)} **{plain(verdict.answer)}**"


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield the picture of each board of which a strength is measured."""
    for path, board in list_pictures():
        content = BytesIO()
        draw_board(board).savefig(content, format="png", dpi=100, bbox_inches="tight")
        yield path, content.getvalue()


def list_pictures() -> Iterator[tuple[str, Board]]:
    """Yield each picture's path, with the board that it draws."""
    for name, board in _boards():
        if _is_measured(board):
            yield f"{FOLDER}/{name}.png", board


def find(name: str) -> Board:
    """Return a track's board at the largest tier of which anything is measured.

    Single figures are of that tier, even while a new attack makes each of its strengths incomplete.
    """
    built = _build_tiers(name)
    return next((board for board in built if board.table.fresh), built[-1])


@cache
def _boards() -> tuple[tuple[str, Board], ...]:
    """Return each track's board at the largest tier of which a strength is measured whole."""
    made = []
    for name in list_tracks():
        built = _build_tiers(name)
        made.append((name, next(filter(_is_measured, built), built[-1])))
    return tuple(made)


@cache
def _build_tiers(name: str) -> tuple[Board, ...]:
    """Build a track's board at each tier, the largest first."""
    known = load_track(name).tiers
    return tuple(build_board(name, tier) for tier in _ORDER if tier in known)


def _is_measured(board: Board) -> bool:
    return any(each.is_complete for each in score_strengths(board))


def _write_page(board: Board) -> Iterator[str]:
    yield f"{_WIDE}# {board.track.title}"
    verdict = judge(board)
    yield f"{plain(verdict.question)} **{plain(verdict.answer)}**"
    if verdict.rest:
        yield "\n".join(f"- {plain(line)}" for line in verdict.rest)
    if not _is_measured(board):
        yield fence(f"simsplit board {board.name} --tier {board.tier}", "sh")
        return
    yield f"Tier `{board.tier}`. Measure it again, with yours among them:"
    yield fence(
        f"simsplit board {board.name} --tier {board.tier} --plugin mine.py --method mine", "sh"
    )
    yield f"![Leak against utility: each strength of each defence, and the front]({board.name}.png)"
    yield "## Defences in order"
    yield _offer_commands(board, tabulate_standings(board).markdown())
    yield "## Every strength"
    yield "A click on a cell shows the command that measures it."
    yield _offer_commands(board, tabulate_strengths(board).markdown())
    yield fold("The command of each strength, with one seed", _list_commands(board))
    yield "\n".join(f"- {plain(line)}" for line in list_remarks(board))


def _offer_commands(board: Board, made: str) -> str:
    """Mark a table of strengths for `styles/commands.js`, which shows the command of a cell."""
    marks = {"command": _write_command(board), "threats": ",".join(board.track.threats)}
    data = " ".join(f'data-{name}="{text}"' for name, text in marks.items())
    return f'<div class="commands" {data} markdown>\n\n{made}\n\n</div>'


def _write_command(board: Board) -> str:
    return f"simsplit board {board.name} --tier {board.tier} --seeds 0 --only"


def _list_commands(board: Board) -> str:
    """List the command that measures each strength alone."""
    names = [name for strengths in board.defences.values() for name in strengths]
    lines = [f"{_write_command(board)} {shlex.quote(f'defence={name}')}" for name in names]
    return fence("\n".join(lines), "sh")
