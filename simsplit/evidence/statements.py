"""The little language in which a claim says what would hold: `raw > lightsplit-8 > lightsplit-32`.

A statement compares sides, each a row of the table, a number, or two of them with `+`, `-`, `*` or
`/` between; operators stand between spaces, since names of rows have dashes in them:

    raw > lightsplit-8 > lightsplit-32          an order; each step must be resolved
    raw - lightsplit-8 < 5                      a difference of at most five points
    lightsplit-8 / raw >= 0.95                  a share
    lightsplit-8 ~ learned1x1-8 within 2        no more than two apart, either way

The language is closed: there are no functions, no names but the rows', and nothing is evaluated but
these operators.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simsplit.errors import ScenarioError, suggest

COMPARISONS = (">", ">=", "<", "<=", "~")
"""The signs between two sides."""
_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_WITHIN = "within"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: rows and numbers with operators between them, left to right."""

    terms: tuple[str | float, ...]
    operators: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it names."""
        return tuple(term for term in self.terms if isinstance(term, str))

    def value(self, rows: Mapping[str, float]) -> float:
        """Compute the side from the value of each row; nan where it divides by zero."""
        first, *rest = [rows[term] if isinstance(term, str) else term for term in self.terms]
        for sign, term in zip(self.operators, rest, strict=True):
            if sign == "/" and not term:
                return math.nan
            first = _ARITHMETIC[sign](first, term)
        return first

    def write(self, name: Callable[[str], str] = str) -> str:
        """Write the side, with rows by other names where `name` gives them."""
        words = [name(term) if isinstance(term, str) else f"{term:g}" for term in self.terms]
        between = [f" {sign} " for sign in self.operators]
        return "".join(part for pair in zip(words, [*between, ""], strict=True) for part in pair)

    def __str__(self) -> str:
        return self.write()


@dataclass(frozen=True)
class Comparison:
    """Two sides, and how the first should lie to the second."""

    left: Side
    sign: str
    right: Side
    within: float = 0.0
    """Of `~`: how far apart they may be."""

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it names, each once."""
        return tuple(dict.fromkeys((*self.left.rows, *self.right.rows)))

    def difference(self, rows: Mapping[str, float]) -> float:
        """Compute left minus right from the value of each row."""
        return self.left.value(rows) - self.right.value(rows)

    def is_true(self, rows: Mapping[str, float]) -> bool:
        """Return whether it is true of these values."""
        left, right = self.left.value(rows), self.right.value(rows)
        if self.sign == "~":
            return abs(left - right) <= self.within
        return bool(_SIGNS[self.sign](left, right))

    @property
    def names_number(self) -> bool:
        """Whether it says how far apart its sides lie, by a number, and not their order alone."""
        terms = (*self.left.terms, *self.right.terms)
        return self.sign == "~" or any(not isinstance(term, str) for term in terms)

    @property
    def bound(self) -> float | None:
        """The number that the first side is held against; None where the second has a row."""
        return None if self.right.rows else self.right.value({})

    def write(self, name: Callable[[str], str] = str) -> str:
        """Write the comparison, with rows by other names where `name` gives them."""
        within = f" within {self.within:g}" if self.sign == "~" else ""
        return f"{self.left.write(name)} {self.sign} {self.right.write(name)}{within}"

    def __str__(self) -> str:
        return self.write()


def parse_statement(text: str, rows: Collection[str], where: str) -> tuple[Comparison, ...]:
    """Parse a statement over a table's rows; a chain becomes a comparison for each step.

    Raise ScenarioError, at `where`, for what is no statement, with the nearest name of a row.

    >>> [str(one) for one in parse_statement("a > b > 2", ["a", "b"], "holds")]
    ['a > b', 'b > 2']
    """
    words = text.split()
    within = 0.0
    if _WITHIN in words:
        place = words.index(_WITHIN)
        words, within = words[:place], _read_within(words[place + 1 :], where)
    signs = [word for word in words if word in COMPARISONS]
    if not signs:
        known = ", ".join(COMPARISONS)
        raise ScenarioError(
            where, f"compares nothing; write one of {known} between spaces: '{text}'"
        )
    places = [place for place, word in enumerate(words) if word in COMPARISONS]
    ends = pairwise([-1, *places, len(words)])
    parsed = [_parse_side(words[end + 1 : start], rows, where, text) for end, start in ends]
    if ("~" in signs) != (within > 0) or ("~" in signs and len(signs) > 1):
        raise ScenarioError(
            where, f"write `a ~ b within NUMBER`, one pair a statement, got '{text}'"
        )
    steps = zip(pairwise(parsed), signs, strict=True)
    made = tuple(Comparison(left, sign, right, within) for (left, right), sign in steps)
    if empty := next((one for one in made if not one.rows), None):
        raise ScenarioError(where, f"compares numbers alone: '{empty}'")
    return made


def _parse_side(words: Sequence[str], rows: Collection[str], where: str, text: str) -> Side:
    terms, signs = words[::2], words[1::2]
    if len(terms) != len(signs) + 1 or any(sign not in _ARITHMETIC for sign in signs):
        wrong = " ".join(words) or "nothing"
        known = " ".join(_ARITHMETIC)
        raise ScenarioError(
            where, f"a side is rows and numbers with {known} between, got '{wrong}' in '{text}'"
        )
    return Side(tuple(_parse_terms(terms, rows, where)), tuple(signs))


def _parse_terms(words: Sequence[str], rows: Collection[str], where: str) -> Iterator[str | float]:
    for word in words:
        if word in rows:
            yield word
            continue
        number = read_number(word)
        if not math.isfinite(number):
            known = f"allowed: numbers, and the rows {', '.join(rows)}"
            raise ScenarioError(where, f"unknown row '{word}'{suggest(word, rows) or ','} {known}")
        yield number


def _read_within(words: Sequence[str], where: str) -> float:
    number = read_number(words[0]) if len(words) == 1 else math.nan
    if not (math.isfinite(number) and number > 0):
        raise ScenarioError(where, f"within takes one number above 0, got '{' '.join(words)}'")
    return number


def read_number(word: str) -> float:
    """Read a number; nan for what is none."""
    try:
        return float(word)
    except ValueError:
        return math.nan
