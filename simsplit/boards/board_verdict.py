"""A board's verdict in words: which defences are worth anything, and which are beaten by what.

A defence is judged by its least leak within the budget that ranks. It is worth something if the
whole interval lies below a share of what is read undefended; where the interval reaches across that
share, the seeds do not settle it.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simsplit.boards.entries import Board
from simsplit.boards.scoring import (
    RANKED,
    Strength,
    find_silent,
    half_of,
    mean_of,
    rank_defences,
    score_strengths,
)
from simsplit.boards.tabulating import read_controls, write_by_seed, write_leak_aside, write_silence
from simsplit.boards.track import NONE
from simsplit.errors import format_list

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
    standings = [each for each in rank_defences(strengths) if each.defence != NONE]
    scored = {each.defence: each.best[RANKED] for each in standings if RANKED in each.best}
    plain = next((each for each in strengths if each.defence == NONE), None)
    if plain is None or not scored or not plain.leak:
        return BoardVerdict(question, "Nothing is measured against every attack yet.")
    if (silent := find_silent(strengths)) is not None:
        return BoardVerdict(question, write_silence(silent))
    rest = []
    if board.track.has_attacks:
        answer, *rest = _judge_leaks(board, scored, plain)
        if board.beside and not plain.lacking:
            answer = f"{answer} {_judge_other_views(board, scored, plain)}"
        broken = [
            each.defence for each in standings if RANKED not in each.best and not each.lacking
        ]
        if broken:
            rest.append(f"Every strength of these costs more: {format_list(broken, 12)}.")
    else:
        least = min(scored, key=lambda name: mean_of(scored[name].leak))
        share = 100 * mean_of(scored[least].leak) / mean_of(plain.leak)
        answer = f"{least} sends least at a cost of at most {_budget(board)}: {share:.0f} %."
    rest += [line for view in board.beside for line in _judge_beside(view, scored, plain)]
    rest += (*_warn_of_costs(board, scored), *_warn_of_budget(board, plain))
    seeds = min(each.seeds for each in scored.values())
    rest.append(
        "With one seed no order is settled."
        if seeds == 1
        else f"Means over {seeds} seeds ± half of the 95 % interval, or the seeds' range where "
        "that leaves the scale."
    )
    # the answer leaves out defences that have no strength that is measured
    if count := sum(1 for each in standings if not each.best and each.lacking):
        answer += f" Not measured yet: {count} of {len(standings)} defences."
    return BoardVerdict(question, answer, tuple(rest))


def _judge_leaks(board: Board, scored: Mapping[str, Strength], plain: Strength) -> Iterator[str]:
    """Yield what the worst attack reads behind the defences that have a score."""
    groups: dict[str, list[str]] = {"good": [], "open": [], "beaten": [], "between": []}
    for name, each in scored.items():
        group = _find_group(each, mean_of(plain.leak))
        with_what = board.label_attack(each.worst) if group == "beaten" else _write(each)
        groups[group].append(f"{name} ({with_what})")
    # what poisons training reads nothing
    worst, does, what = ("attack", "reads", "what it reads")
    if board.bounds:
        worst = "attack or bound"
    if board.track.threats:
        worst, does, what = ("backdoor", "has", "its success")
    if board.beside:
        does = f"{does} by {board.track.leak.views[0]}"
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
        bound = "bounds" if len(bounds) == 1 else "bound"
        yield f"{format_list(bounds)} {bound} what is left: no server knows so much."


def _judge_other_views(board: Board, scored: Mapping[str, Strength], plain: Strength) -> str:
    """Say behind which defences another view than the one that places tells most of it."""
    most = {view: _BEATEN * mean_of(plain.read_beside(view)[1]) for view in board.beside}
    hides = [
        name
        for name, each in scored.items()
        if not any(mean_of(each.read_beside(view)[1]) >= least for view, least in most.items())
    ]
    behind = f"each but {format_list(hides, 8)}" if hides else "all defences that cost so little"
    share = f"{100 * _BEATEN:.0f} %"
    views = " or by ".join(board.beside)
    most_of = ", whichever reads more," if len(board.beside) > 1 else ""
    return f"By {views}{most_of} {share} or more is read behind {behind}."


def _judge_beside(view: str, scored: Mapping[str, Strength], plain: Strength) -> Iterator[str]:
    """Yield what the worst attack reads by a view that places no defence."""
    undefended = plain.read_beside(view)[1]
    leaks = {name: each.read_beside(view)[1] for name, each in scored.items()}
    if not undefended or not all(leaks.values()):
        return
    most = _BEATEN * mean_of(undefended)
    beaten = [name for name, of in leaks.items() if mean_of(of) >= most]
    less = [f"{name} ({write_leak_aside(of)})" for name, of in leaks.items() if name not in beaten]
    share = f"{100 * _BEATEN:.0f} % of what is read undefended ({write_leak_aside(undefended)})"
    if beaten:
        yield f"By {view} the worst attack reads {share} or more behind {format_list(beaten, 12)}."
    if less:
        yield f"By {view} it reads less than {share} behind {format_list(less, 12)}."


def _warn_of_costs(board: Board, scored: Mapping[str, Strength]) -> Iterator[str]:
    """Yield which defences may cost more than the budget that ranks, for all that seeds show."""
    unsure = [
        f"{name} ({write_by_seed(each.loss, 1)})"
        for name, each in scored.items()
        if mean_of(each.loss) + (half_of(each.loss) or 0.0) > RANKED
    ]
    if unsure:
        yield (
            f"The cost is a mean: that it is at most {_budget(board)}, seeds do not settle for "
            f"{format_list(unsure, 12)}."
        )


def _warn_of_budget(board: Board, undefended: Strength) -> Iterator[str]:
    """Yield a warning for each control that loses no more than the budget that ranks."""
    for name, utility in read_controls(board).items():
        values = [utility] if isinstance(utility, float | int) else [*utility.values()]
        if not values:
            continue
        apart = abs(mean_of(undefended.utility) - statistics.fmean(values))
        if apart <= RANKED:
            yield (
                f"What learned nothing of the task ({name}) has only {apart:.1f} "
                f"{board.track.utility.unit} less: within the budget a defence may cost all that "
                "was learned."
            )


def _find_group(strength: Strength, undefended: float) -> str:
    """Return in which group of the verdict a defence is."""
    mean, half = mean_of(strength.leak), half_of(strength.leak) or 0.0  # one seed has none
    if mean + half <= _WORTH * undefended:
        return "good"
    if mean - half <= _WORTH * undefended:
        return "open"
    return "beaten" if mean >= _BEATEN * undefended else "between"


def _budget(board: Board) -> str:
    return f"{RANKED:g} {board.track.utility.unit}"


def _write(strength: Strength) -> str:
    return write_leak_aside(strength.leak)
