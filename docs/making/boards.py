"""A page for each track of the board: made from the rows that ship."""

from collections.abc import Iterator
from functools import cache
from io import BytesIO

from making.markup import fence, plain, table
from simsplit.boards.drawing import draw_board
from simsplit.boards.entries import Board, build_board
from simsplit.boards.judging import judge
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import list_remarks, tabulate_standings, tabulate_strengths
from simsplit.boards.track import list_tracks
from simsplit.evidence.claims import Tier

FOLDER = "boards"
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


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield the picture of each board of which a strength is measured."""
    for name, board in _boards():
        if _is_measured(board):
            content = BytesIO()
            draw_board(board).savefig(content, format="png", dpi=100, bbox_inches="tight")
            yield f"{FOLDER}/{name}.png", content.getvalue()


def find(name: str) -> Board:
    """Return a track's board at the largest tier of which anything is measured."""
    return dict(_boards())[name]


@cache
def _boards() -> tuple[tuple[str, Board], ...]:
    """Return each track's board at the largest tier of which anything is measured."""
    made = []
    for name in list_tracks():
        built = [build_board(name, tier) for tier in _ORDER]
        made.append((name, next(filter(_is_measured, built), built[-1])))
    return tuple(made)


def _is_measured(board: Board) -> bool:
    return any(each.is_complete for each in score_strengths(board))


def _write_page(board: Board) -> Iterator[str]:
    yield f"# {board.track.title}"
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
    yield tabulate_standings(board).markdown()
    yield "## Every strength"
    yield tabulate_strengths(board).markdown()
    yield "One strength alone, with one seed:"
    strength = next(name for names in list(board.defences.values())[1:] for name in names)
    only = f"simsplit board {board.name} --tier {board.tier} --seeds 0 --only defence={strength}"
    yield fence(only, "sh")
    yield "\n".join(f"- {plain(line)}" for line in list_remarks(board))
