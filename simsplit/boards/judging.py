"""A board's verdict in words: which defences are worth anything, and which are beaten by what.

A defence is judged by its least leak within the budget that ranks. It is worth something if the
whole interval lies below a share of what is read undefended; where the interval reaches across that
share, the seeds do not settle it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simsplit.boards.entries import Board
from simsplit.boards.scoring import RANKED, Strength, rank_defences, score_strengths
from simsplit.boards.tabulating import read_controls, write_by_seed
from simsplit.boards.track import NONE
from simsplit.errors import format_list
from simsplit.metrics.intervals import compute_half_width

_WORTH, _BEATEN = 0.5, 0.9
"""Shares of what is read undefended: up to the first a defence is worth something, from the second
on it is beaten."""


class BoardVerdict(NamedTuple):
    """What a board says first: one sentence, and lines of what it rests on."""

    question: str
    answer: str
    """One sentence."""
    rest: tuple[str, ...] = ()
    """What else is to be said of the defences, a sentence each."""


def judge(board: Board) -> BoardVerdict:
    """Judge a board in words."""
    question = board.track.says
    strengths = score_strengths(board)
    ranked = [each for each in rank_defences(strengths) if each.defence != NONE]
    scored = {each.defence: each.best[RANKED] for each in ranked if RANKED in each.best}
    plain = next((each for each in strengths if each.defence == NONE), None)
    if plain is None or not scored or not plain.leak:
        return BoardVerdict(question, "Nothing is measured against every attack yet.")
    rest = []
    if board.track.has_attacks:
        answer, *rest = _judge_leaks(board, scored, plain)
        broken = [each.defence for each in ranked if RANKED not in each.best and not each.lacking]
        if broken:
            rest.append(f"Every strength of these costs more: {format_list(broken, 12)}.")
    else:
        least = min(scored, key=lambda name: _average(scored[name]))
        share = 100 * _average(scored[least]) / _average(plain)
        answer = f"{least} sends least at a cost of at most {_budget(board)}: {share:.0f} %."
    rest += _doubt_budget(board, plain)
    seeds = min(each.seeds for each in scored.values())
    rest.append(
        "With one seed no order is settled."
        if seeds == 1
        else f"Means over {seeds} seeds ± half of the 95 % interval."
    )
    return BoardVerdict(question, answer, tuple(rest))


def _judge_leaks(board: Board, scored: Mapping[str, Strength], plain: Strength) -> Iterator[str]:
    """Yield what the worst attack reads behind the defences that have a score."""
    groups: dict[str, list[str]] = {"good": [], "open": [], "beaten": [], "between": []}
    for name, each in scored.items():
        group = _place(each, _average(plain))
        with_what = each.worst if group == "beaten" else _write(each)
        groups[group].append(f"{name} ({with_what})")
    # what poisons training reads nothing
    worst, does, what = ("attack", "reads", "what it reads")
    if board.bounds:
        worst = "attack or bound"
    if board.track.threats:
        worst, does, what = ("backdoor", "has", "its success")
    undefended = f"{what} undefended ({_write(plain)})"
    yield (
        f"At a cost of at most {_budget(board)} the worst {worst} {does} at most half of "
        f"{undefended} behind {format_list(groups['good'], 8)}."
        if groups["good"]
        else f"No defence that costs at most {_budget(board)} is sure to keep the worst {worst} "
        f"below half of {undefended}."
    )
    if groups["open"]:
        yield f"The seeds do not settle it for {format_list(groups['open'], 8)}."
    if groups["beaten"]:
        beaten = format_list(groups["beaten"], 12)
        share = f"{100 * _BEATEN:.0f} % of that or more"
        yield f"The worst {worst} {does} {share} behind {beaten}."
    if bounds := sorted({each.worst for each in scored.values()} & set(board.bounds)):
        yield f"{format_list(bounds)} bounds what is left: no server knows so much."


def _doubt_budget(board: Board, undefended: Strength) -> Iterator[str]:
    """Yield a doubt for each control that loses no more than the budget that ranks."""
    for name, utility in read_controls(board).items():
        values = [utility] if isinstance(utility, float | int) else [*utility.values()]
        if not values:
            continue
        apart = abs(statistics.fmean(undefended.utility.values()) - statistics.fmean(values))
        if apart <= RANKED:
            yield (
                f"What learned nothing of the task ({name}) has only {apart:.1f} "
                f"{board.track.utility.unit} less: within the budget a defence may cost all that "
                "was learned."
            )


def _place(strength: Strength, undefended: float) -> str:
    """Return in which group of the verdict a defence is."""
    mean, half = _average(strength), _half(strength)
    if mean + half <= _WORTH * undefended:
        return "good"
    if mean - half <= _WORTH * undefended:
        return "open"
    return "beaten" if mean >= _BEATEN * undefended else "between"


def _budget(board: Board) -> str:
    return f"{RANKED:g} {board.track.utility.unit}"


def _write(strength: Strength) -> str:
    return write_by_seed(strength.leak, 2)


def _average(strength: Strength) -> float:
    return statistics.fmean(strength.leak.values())


def _half(strength: Strength) -> float:
    """Return half of the interval over seeds; 0 of one seed, of which the verdict says so."""
    values: Sequence[float] = [*strength.leak.values()]
    return (compute_half_width(values) or 0.0) if len(values) > 1 else 0.0
