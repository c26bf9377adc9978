"""Defences are scored by the least that the worst attack reads, at what they cost in utility.

A leak is placed between its track's floor (0) and ceiling (1), seed by seed, and the worst attack
counts: the one that reads most on the mean over seeds, the same one for all seeds. A defence's
score at a budget of utility is the least leak of its strengths whose mean loss is within it. So a
defence that breaks the model has no score. Two scores are apart where the 95 % interval of their
differences, seed by seed, leaves out nought; all else is a tie, and one seed tells none apart.
"""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simsplit.boards.entries import Board
from simsplit.boards.figure_names import (
    AUDITED,
    BESIDE,
    BYTES,
    CHOSEN,
    DEFENCE,
    EPSILON,
    FLOOR,
    HALF,
    LEAKS,
    THREAT,
    TUNING,
    UTILITY,
)
from simsplit.boards.track import NONE, UNDEFENDED
from simsplit.evidence.evidence_rows import EvidenceRow
from simsplit.evidence.verdicts import BySeed
from simsplit.metrics.intervals import compute_half_width

BUDGETS = (1.0, 3.0, 5.0)
"""Points of utility that a defence may cost."""
RANKED = 3.0
"""The budget by which defences are ranked."""
CONVERGED = 0.05
"""The most that an attack's second half may add to what it reads, if it has converged."""
RawLeaks = Mapping[str, BySeed]
"""Attack -> seed -> what it reads, in its own unit."""


@dataclass(frozen=True)
class Strength:
    """One strength of a defence, as measured; shares and losses by seed."""

    name: str
    defence: str
    loss: BySeed
    """Points of utility below the undefended run's."""
    utility: BySeed
    leaks: Mapping[str, BySeed]
    """Attack -> how much it reads, between floor and ceiling."""
    bytes_ratio: BySeed
    """Bytes on the wire over those of the undefended run."""
    lacking: Sequence[str] = ()
    """Attacks that are not measured against it."""
    chosen: Mapping[str, BySeed] = field(default_factory=dict)
    """Attack and field -> the value that the attacker chose on clients that it simulated."""
    halves: Mapping[str, BySeed] = field(default_factory=dict)
    """Attack -> how much it reads with half of its iterations, where that is measured."""
    tuning_s: BySeed = field(default_factory=dict)
    """The seconds that the choice took."""
    beside: Mapping[str, Mapping[str, BySeed]] = field(default_factory=dict)
    """View that places no defence -> attack -> how much it reads by that view."""

    bounds: Mapping[str, BySeed] = field(default_factory=dict)
    """Epsilon of its guarantee, and an audit's lower bound, where a run with an audit has them."""

    @property
    def seeds(self) -> int:
        """The fewest seeds of what it is scored by."""
        return min((len(each) for each in (self.loss, *self.leaks.values())), default=0)

    @cached_property
    def worst(self) -> str:
        """The attack that reads most on the mean; empty where none is measured."""
        return _find_worst(self.leaks)

    @property
    def leak(self) -> BySeed:
        """The share that the worst attack reads, by seed."""
        return self.leaks.get(self.worst, {})

    def read_beside(self, view: str) -> tuple[str, BySeed]:
        """Return the attack that reads most by another view, and the share that it reads."""
        worst = _find_worst(self.beside[view])
        return worst, self.beside[view].get(worst, {})

    @property
    def is_complete(self) -> bool:
        """Whether its loss and every attack against it are measured."""
        return bool(self.loss) and bool(self.leak) and not self.lacking


@dataclass(frozen=True)
class Standing:
    """A defence on the board: its best strength at each budget, and its place."""

    defence: str
    best: Mapping[float, Strength]
    """Budget -> the strength that leaks least within it."""
    place: int | None
    """See `_find_places`; None without a score."""
    lacking: Sequence[str]
    """Its strengths that are not measured against every attack."""


def score_strengths(board: Board) -> list[Strength]:
    """Score each strength of a board, in the board's order."""
    rows, made = board.table.rows, []
    plain = [row for row in rows if row.axes[DEFENCE] == NONE]
    plain_utility, plain_bytes = _average(plain, UTILITY), _average(plain, BYTES)
    raw = {name: _read_raw(board, name) for each in board.defences.values() for name in each}
    ceilings = _find_ceilings(board, raw.get(NONE, {}))
    for defence, names in board.defences.items():
        for name in names:
            own = [row for row in rows if row.axes[DEFENCE] == name]
            leaks = {
                attack: _place(by_seed, _find_floor(board, own, attack), ceilings)
                for attack, by_seed in raw[name].items()
            }
            beside = {view: _score_beside(board, own, view, ceilings) for view in board.beside}
            lacking = [attack for attack in board.attacks if not leaks.get(attack)]
            lacking += [f"{n} by {view}" for view, of in beside.items() for n in of if not of[n]]
            utility = _average(own, UTILITY)
            halves = {
                attack: _place(by_seed, _find_floor(board, own, attack), ceilings)
                for attack, by_seed in _read_named(own, HALF).items()
            }
            bounds = {name: _average(own, name) for name in (EPSILON, AUDITED)}
            made.append(
                Strength(
                    name,
                    defence,
                    loss=_combine(plain_utility, utility, operator.sub),
                    utility=utility,
                    leaks=leaks,
                    bytes_ratio=_combine(
                        _average(own, BYTES), plain_bytes, lambda a, b: a / b if b else math.nan
                    ),
                    lacking=lacking,
                    chosen=_read_named(own, CHOSEN),
                    halves=halves,
                    tuning_s=_average(own, TUNING),
                    beside=beside,
                    bounds={name: by_seed for name, by_seed in bounds.items() if by_seed},
                )
            )
    return made


def _score_beside(
    board: Board, rows: Sequence[EvidenceRow], view: str, ceiling: BySeed | float
) -> dict[str, BySeed]:
    """Score what attacks read by a view that places no defence."""
    names = {attack: f"{view}_{attack}" for attack in board.beside[view]}
    return {
        attack: _place(_average(rows, BESIDE + name), _find_floor(board, rows, name), ceiling)
        for attack, name in names.items()
    }


def _find_worst(leaks: Mapping[str, BySeed]) -> str:
    """Return the attack that reads most on the mean; empty where none is measured."""
    known = {name: mean_of(each) for name, each in leaks.items() if each}
    return max(known, key=lambda name: known[name], default="")


def rank_defences(strengths: Sequence[Strength]) -> list[Standing]:
    """Rank defences by their leak at RANKED points of utility, ties as ties; the best first."""
    best: dict[str, dict[float, Strength]] = {each.defence: {} for each in strengths}
    complete = [each for each in strengths if each.is_complete]
    complete.sort(key=lambda each: mean_of(each.leak))
    for budget in BUDGETS:
        for each in complete:
            if mean_of(each.loss) <= budget:
                best[each.defence].setdefault(budget, each)
    ranked = [of[RANKED] for of in best.values() if RANKED in of]
    places = {} if find_silent(strengths) else _find_places(ranked)
    standings = [
        Standing(
            defence,
            of,
            places.get(defence),
            [each.name for each in strengths if each.defence == defence and not each.is_complete],
        )
        for defence, of in best.items()
    ]
    return sorted(
        standings,
        key=lambda each: (
            RANKED not in each.best,
            each.place or 0,
            mean_of(each.best[RANKED].leak) if RANKED in each.best else 0.0,
        ),
    )


def find_silent(strengths: Sequence[Strength]) -> Strength | None:
    """Return the undefended run if attacks read no more of it than a guess, as far as seeds tell.

    Then no defence hides anything that could be seen.
    """
    plain = next((each for each in strengths if each.defence == NONE and each.leak), None)
    if plain is None or mean_of(plain.leak) > (half_of(plain.leak) or 0.0):
        return None
    return plain


def list_below_floor(strengths: Sequence[Strength]) -> list[str]:
    """List the attacks that read less of undefended clients than what needs no attack."""
    plain = next((each for each in strengths if each.defence == NONE), None)
    return [name for name, each in (plain.leaks if plain else {}).items() if mean_of(each) < 0]


def list_unconverged(strengths: Sequence[Strength]) -> list[tuple[str, str, float]]:
    """List attacks that read more in their second half than CONVERGED: strength, attack, growth."""
    made = []
    for each in strengths:
        for name, half in each.halves.items():
            grown = mean_of(_combine(each.leaks.get(name, {}), half, operator.sub))
            if grown > CONVERGED:
                made.append((each.name, name, grown))
    return made


def _read_raw(board: Board, strength: str) -> RawLeaks:
    """Return what each attack reads behind a strength, in its own unit."""
    rows = [row for row in board.table.rows if row.axes[DEFENCE] == strength]
    if board.track.threats:
        return {row.axes[THREAT]: _worst_of(row) for row in rows}
    return _read_named(rows, LEAKS)


def _read_named(rows: Sequence[EvidenceRow], prefix: str) -> dict[str, BySeed]:
    """Return the figures whose names begin with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): known.by_seed
        for row in rows
        for name, known in row.known.items()
        if name.startswith(prefix)
    }


def _worst_of(row: EvidenceRow) -> BySeed:
    """Return the largest of a row's leaking figures on each seed that has all of them."""
    every = [*_read_named([row], LEAKS).values()]
    return {seed: max(each[seed] for each in every) for seed in _list_shared(every)}


def _find_floor(board: Board, rows: Sequence[EvidenceRow], attack: str) -> BySeed | float:
    """Return the floor of an attack on a strength: a number, or by seed."""
    floor = board.track.leak.floor
    if not isinstance(floor, str):
        return floor
    row = next((row for row in rows if row.axes.get(THREAT, attack) == attack), None)
    if row is None:
        return {}
    return _get_seeds(row, f"{FLOOR}_{attack}") or _get_seeds(row, FLOOR)


def _find_ceilings(board: Board, plain: RawLeaks) -> BySeed | float:
    """Return the ceiling: a number, or by seed what the best attack reads undefended."""
    ceiling = board.track.leak.ceiling
    if ceiling != UNDEFENDED:
        return float(ceiling)
    return plain.get(_find_worst(plain), {})


def _place(raw: BySeed, floor: BySeed | float, ceiling: BySeed | float) -> BySeed:
    """Place what an attack reads between floor and ceiling, on the seeds that have all three."""
    made = {}
    for seed, value in raw.items():
        low = floor if isinstance(floor, float | int) else floor.get(seed)
        high = ceiling if isinstance(ceiling, float | int) else ceiling.get(seed)
        if low is not None and high is not None and high > low:
            made[seed] = (value - low) / (high - low)
    return made


def _find_places(ranked: Sequence[Strength]) -> dict[str, int]:
    """Find each defence's place: one more than the number of those that leak less beyond doubt.

    A defence whose seeds agree may be told from the first where one that leaks more is not: both
    have the better place then.
    """
    places: dict[str, int] = {}
    best = len(ranked)
    for mine in sorted(ranked, key=lambda each: mean_of(each.leak), reverse=True):
        best = min(best, 1 + sum(_leaks_less(other, mine) for other in ranked))
        places[mine.defence] = best
    return places


def _leaks_less(one: Strength, other: Strength) -> bool:
    """Return whether one strength leaks less than another beyond doubt."""
    differences = _combine(one.leak, other.leak, operator.sub)
    half = half_of(differences)
    return half is not None and mean_of(differences) + half < 0


def _get_seeds(row: EvidenceRow, name: str) -> BySeed:
    return row.known[name].by_seed if name in row.known else {}


def _average(rows: Sequence[EvidenceRow], name: str) -> BySeed:
    """Average a figure over rows, on the seeds that all of them have."""
    every = [_get_seeds(row, name) for row in rows]
    return {seed: statistics.fmean(each[seed] for each in every) for seed in _list_shared(every)}


def _list_shared(every: Sequence[BySeed]) -> list[int]:
    return sorted(set.intersection(*map(set, every))) if every else []


def _combine(first: BySeed, second: BySeed, how: Callable[[float, float], float]) -> BySeed:
    return {seed: how(first[seed], second[seed]) for seed in first if seed in second}


def mean_of(by_seed: BySeed) -> float:
    """Return the mean over seeds; nan where nothing is known."""
    return statistics.fmean(by_seed.values()) if by_seed else math.nan


def half_of(by_seed: BySeed) -> float | None:
    """Return half of the 95 % interval of the mean over seeds; None with fewer than two."""
    return compute_half_width([*by_seed.values()])
