"""Boards as tables: the defences in their order, each strength with each attack, and what to know.

A value is a mean over seeds, with half of its 95 % interval where there are two seeds or more.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from simsplit.boards.entries import Board
from simsplit.boards.figure_names import AUDITED, CONTROL, DEFENCE, EPSILON
from simsplit.boards.guarantees import describe_guarantees
from simsplit.boards.scoring import (
    BUDGETS,
    RANKED,
    Standing,
    Strength,
    find_silent,
    half_of,
    list_below_floor,
    list_unconverged,
    mean_of,
    rank_defences,
    score_strengths,
)
from simsplit.boards.track import NONE, UNDEFENDED
from simsplit.errors import format_list
from simsplit.evidence.claims import Figure
from simsplit.evidence.presenting import write_card, write_gaps
from simsplit.evidence.verdicts import BySeed
from simsplit.metrics.metric_registry import METRICS
from simsplit.report.tables import Table

_NOTHING = "-"
Column = tuple[str, str, Sequence[str]]
"""A column's name, its alignment and its cells."""


def tabulate_standings(board: Board) -> Table:
    """Tabulate the defences, the best first: what leaks within each budget of utility."""
    unit, word = board.track.utility.unit, board.track.leak.called_by
    rows = [_describe_standing(board, each) for each in rank_defences(score_strengths(board))]
    units = [unit.removesuffix("s") if budget == 1 else unit for budget in BUDGETS]
    budgets = [f"{word} within {n:g} {each}" for n, each in zip(BUDGETS, units, strict=True)]
    names = ("place", "defence", *budgets, "strength", f"lost {unit}", "bytes", "worst attack")
    if board.beside:
        names = (*names, *(f"by {view}" for view in board.beside), "worst view")
    align = "rl" + "r" * len(BUDGETS) + "lrrl" + "l" * (len(board.beside) + 1)
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return _tabulate(board, zip(names, align, cells, strict=False))


def tabulate_strengths(board: Board) -> Table:
    """Tabulate every strength: what it costs, and what each attack reads behind it."""
    every, unit = score_strengths(board), board.track.utility.unit
    columns: list[Column] = [
        ("defence", "l", [board.label_defence(each.defence) for each in every]),
        ("strength", "l", [each.name for each in every]),
        ("utility", "r", [write_by_seed(each.utility, 1) for each in every]),
        (f"lost {unit}", "r", [write_by_seed(each.loss, 1) for each in every]),
        ("bytes", "r", [write_by_seed(each.bytes_ratio, 2) for each in every]),
    ]
    for attack in board.attacks:
        leaks = [write_leak(each.leaks.get(attack, {})) for each in every]
        columns.append((board.label_attack(attack), "r", leaks))
    for view in board.beside:
        leaks = [write_leak(each.read_beside(view)[1]) for each in every]
        columns.append((f"by {view}, worst", "r", leaks))
    columns.append(("seeds", "r", [str(each.seeds or "") for each in every]))
    bounds = [_write_bounds(each) for each in every]
    seldom: list[Column] = [
        (METRICS[EPSILON].words, "r", [claimed for claimed, _ in bounds]),
        (METRICS[AUDITED].words, "r", [audited for _, audited in bounds]),
        ("chosen by the attacker", "l", [_write_chosen(each) for each in every]),
    ]
    return _tabulate(board, [*columns, *(each for each in seldom if any(each[2]))])


def _write_bounds(each: Strength) -> tuple[str, str]:
    """Write the epsilon that is claimed, and the one that an audit shows, or that it refutes."""
    claimed, audited = (each.bounds.get(name, {}) for name in (EPSILON, AUDITED))
    refuted = ": REFUTED" if claimed and mean_of(audited) > mean_of(claimed) else ""
    at_most, at_least = (write_by_seed(of, 2) if of else "" for of in (claimed, audited))
    return at_most or ("none" if audited else ""), at_least + refuted


def _write_chosen(each: Strength) -> str:
    """Write what the attacker chose, seed by seed where the choices differ."""
    written = []
    for name, by_seed in each.chosen.items():
        values = [f"{value:g}" for value in by_seed.values()]
        written.append(f"{name} {', '.join(values[:1] if len({*values}) == 1 else values)}")
    return "; ".join(written)


def _tabulate(board: Board, columns: Iterable[Column]) -> Table:
    """Tabulate the columns that say something: without attacks the score itself is a figure's."""
    left_out = () if board.track.has_attacks else ("bytes", "worst attack")
    names, aligns, cells = zip(*(each for each in columns if each[0] not in left_out), strict=True)
    return Table("", names, [*zip(*cells, strict=True)], "".join(aligns))


def list_remarks(board: Board) -> Iterator[str]:
    """Yield what a reader must know of a board: bounds, gaps, attacks below their floor, origin."""
    strengths, leak = score_strengths(board), board.track.leak
    worst = "; of several attacks the worst counts" if len(board.attacks) > 1 else ""
    if (leak.floor, leak.ceiling) == (0, 1):
        yield f"{leak.called}: a share, as it was measured{worst}"
    else:
        yield f"{leak.called}: {_describe_floor(board)}, {_describe_ceiling(board)}{worst}"
    yield from _list_conditions(board)
    if board.bounds:
        yield f"know what no server knows, so they bound what is left: {format_list(board.bounds)}"
    if board.track.controls:
        read = read_controls(board).items()
        controls = ", ".join(f"{name} {_write_control(utility)}" for name, utility in read)
        yield f"utility of what has learned nothing of the task: {controls}"
    if min((each.seeds for each in strengths if each.is_complete), default=0) == 1:
        yield "one seed tells no defences apart: all places are ties (--seeds 0-2 measures three)"
    if spent := sum(sum(each.tuning_s.values()) for each in strengths):
        yield f"attacks were tuned on clients that their attacker simulates, {spent / 60:.1f} min"
    yield from _list_weak(strengths)
    lacking = [each.name for each in strengths if not each.is_complete]
    if 0 < len(lacking) < len(strengths):
        yield f"not measured against every attack: {format_list(lacking, 6)}"
    yield from describe_guarantees(board.scenarios)
    for name, why in board.refused.items():
        yield f"{name} does not fit the track: {why}"
    yield from (*write_gaps(board.table), *write_card(board.table, board.own_options))


def write_silence(undefended: Strength) -> str:
    """Write that nothing can be told of defences, and why."""
    return (
        "No defence has a place: undefended, the worst attack reads no more than a guess "
        f"({write_leak_aside(undefended.leak)})."
    )


def _list_conditions(board: Board) -> Iterator[str]:
    """Yield what attacks read by, in how many epochs, what they know, and for how long they run."""
    if views := board.track.leak.views:
        yield (
            f"defences are placed by what attacks read by {views[0]}; beside it stands what they "
            f"read by {' and by '.join(views[1:])}, and which attack reads most there"
        )
    if board.epochs:
        seen = ", ".join(f"{name} in {epochs}" for name, epochs in board.epochs.items())
        yield f"see each target in several epochs, not one: {seen}"
    if board.known_shares:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in board.known_shares.items())
        yield f"know a part of the labels: {shares}"
    for name, length in board.shorter.items():
        yield f"{board.label_attack(name)}: it runs for less than published, {length}"
    for name, why in board.track.unreliable.items():
        yield f"{board.label_defence(name)}: {why}"


def _list_weak(strengths: Sequence[Strength]) -> Iterator[str]:
    """Yield what is known of attacks that are weaker than they could be, or tell nothing at all."""
    if (silent := find_silent(strengths)) is not None:
        yield write_silence(silent)
    for name in list_below_floor(strengths):
        yield f"{name} reads less of undefended clients than its floor: it tells nothing here"
    growing: dict[str, list[str]] = {}
    for strength, attack, _ in list_unconverged(strengths):
        growing.setdefault(attack, []).append(strength)
    for attack, names in growing.items():
        yield (
            f"{attack} has not converged behind {format_list(names, 6)}: with more iterations it "
            "would read more, so what stands there is a lower bound"
        )


def read_controls(board: Board) -> dict[str, BySeed | float]:
    """Read the utility of a track's controls: a number, or by seed of the undefended run."""
    plain = next((row for row in board.table.rows if row.axes[DEFENCE] == NONE), None)
    read: dict[str, BySeed | float] = {}
    for name, of in board.track.controls.items():
        known = plain.known.get(CONTROL + name.replace(" ", "_")) if plain else None
        read[name] = (known.by_seed if known else {}) if isinstance(of, Figure) else of
    return read


def _write_control(utility: BySeed | float) -> str:
    return f"{utility:g}" if isinstance(utility, float | int) else write_by_seed(utility, 1)


def _describe_floor(board: Board) -> str:
    floor = board.track.leak.floor
    if not isinstance(floor, str):
        return f"0 is {floor:g}"
    words = floor.rpartition("}_")[2].replace("_", " ")
    return f"0 is what needs no attack ({words})"


def _describe_ceiling(board: Board) -> str:
    leak = board.track.leak
    if leak.ceiling != UNDEFENDED:
        return f"1 is {'all of it' if leak.ceiling == 1 else f'{leak.ceiling:g}'}"
    if not board.track.has_attacks:
        return "1 is the undefended run's"
    return "1 is what the best attack reads undefended"


def describe_board(board: Board) -> dict[str, Any]:
    """Return a board as plain values: standings, strengths and remarks."""
    strengths = score_strengths(board)
    return {
        "track": board.name,
        "title": board.track.title,
        "tier": board.tier,
        "missing": len(board.table.lacking),
        "standings": [
            {
                "place": each.place,
                "defence": each.defence,
                "own": each.defence in board.own,
                "leaks": {f"{b:g}": _mean_or_none(s.leak) for b, s in each.best.items()},
                "strength": each.best[RANKED].name if RANKED in each.best else None,
            }
            for each in rank_defences(strengths)
        ],
        "shorter": dict(board.shorter),
        "strengths": [describe_strength(each) for each in strengths],
        "remarks": [*list_remarks(board)],
    }


def describe_strength(each: Strength) -> dict[str, Any]:
    """Return a strength's figures as plain values."""
    return {
        "defence": each.defence,
        "strength": each.name,
        "utility": _mean_or_none(each.utility),
        "loss": _mean_or_none(each.loss),
        "leak": _mean_or_none(each.leak),
        "leak_half_width": half_of(each.leak),
        "worst_attack": each.worst,
        "bytes_ratio": _mean_or_none(each.bytes_ratio),
        **{f"leak_{name}": _mean_or_none(of) for name, of in each.leaks.items()},
        **{
            f"leak_by_{view}_{name}": _mean_or_none(of)
            for view, leaks in each.beside.items()
            for name, of in leaks.items()
        },
        **{f"chosen_{name}": _mean_or_none(of) for name, of in each.chosen.items()},
        **{name: _mean_or_none(of) for name, of in each.bounds.items()},
        "seeds": each.seeds,
        "lacking": [*each.lacking],
    }


def _describe_standing(board: Board, each: Standing) -> tuple[str, ...]:
    name = board.label_defence(each.defence) + (" (yours)" if each.defence in board.own else "")
    leaks = [write_leak(each.best[b].leak) if b in each.best else _NOTHING for b in BUDGETS]
    chosen = each.best.get(RANKED)
    if chosen is None:
        return ("", name, *leaks, *[""] * (5 + len(board.beside)))
    return (
        "" if each.place is None or each.defence == NONE else str(each.place),
        name,
        *leaks,
        chosen.name,
        write_by_seed(chosen.loss, 1),
        write_by_seed(chosen.bytes_ratio, 2),
        board.label_attack(chosen.worst),
        *(_write_beside(board, chosen, view) for view in board.beside),
        _name_worst_view(board, chosen),
    )


def _write_beside(board: Board, each: Strength, view: str) -> str:
    """Write what the worst attack reads by another view, and which it is."""
    attack, leak = each.read_beside(view)
    return f"{write_leak(leak)} ({board.label_attack(attack)})" if leak else _NOTHING


def _name_worst_view(board: Board, each: Strength) -> str:
    """Name the view by which most is read, as figures are printed; several where they are equal."""
    leaks = {view: each.read_beside(view)[1] for view in board.beside}
    if board.beside:
        leaks[board.track.leak.views[0]] = each.leak
    means = {view: round(statistics.fmean(of.values()), 2) for view, of in leaks.items() if of}
    return " and ".join(sorted(view for view, mean in means.items() if mean == max(means.values())))


def write_leak(by_seed: BySeed) -> str:
    """Write what an attack reads, which is between nothing (0) and the ceiling (1)."""
    return write_by_seed(by_seed, 2, scale=(0, 1))


def write_leak_aside(by_seed: BySeed) -> str:
    """Write the same between parentheses, in which a range has none of its own."""
    return write_leak(by_seed).replace(" (", ", ").removesuffix(")")


def write_by_seed(by_seed: BySeed, digits: int, scale: tuple[float, float] | None = None) -> str:
    """Write the mean over seeds and half of its 95 % interval; a dash where nothing is known.

    Where the interval leaves the figure's scale, the seeds' range stands in its place.
    """
    if not by_seed:
        return _NOTHING
    half = half_of(by_seed)
    middle = statistics.fmean(by_seed.values())
    mean = f"{middle:z.{digits}f}"  # z: no -0.0
    if scale and half and not scale[0] <= middle - half <= middle + half <= scale[1]:
        ends = [f"{end(by_seed.values()):z.{digits}f}" for end in (min, max)]
        if ends != [mean, mean]:
            return f"{mean} ({' to '.join(ends)})"
    return mean if half is None else f"{mean} ± {half:.{digits}f}"


def _mean_or_none(by_seed: BySeed) -> float | None:
    return statistics.fmean(by_seed.values()) if by_seed else None
