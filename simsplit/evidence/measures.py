"""What a figure's values can be: their range, and the least step between two of them.

A verdict needs both. A bound outside the range is no claim, and where all seeds give one value, the
step is what is known of its spread. Figures are known by the names that `compare` has for them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.evidence.statements import Comparison, Side

Range = tuple[float, float]
"""The least and the greatest value."""


@dataclass(frozen=True)
class Measure:
    """What the values of a figure can be, and how they are counted."""

    low: float = -math.inf
    high: float = math.inf
    step: float = 0.0
    """The least difference between two values; 0: not known."""
    trials: int = 0
    """Independent trials of a seed whose share the figure is; 0: it is no counted share."""
    whole: float = 1.0
    """The value at which all trials succeed, such as 100 for per cent."""

    def scale(self, times: float) -> "Measure":
        """Return the measure of the figure's values times a positive number."""
        low, high = self.low * times, self.high * times
        return Measure(low, high, self.step * times, self.trials, self.whole * times)


_MEASURES: Sequence[tuple[str, Measure]] = (
    # one more flag turns an F1 of 1 into 2/3, where one client is malicious
    (r"_f1$", Measure(0, 1, 1 / 3)),
    # texts of a dozen tokens and more, eight and more a seed: one token more or less
    (r"_(ap|mp)(_\w+)?$|_(rouge_l|meteor)$", Measure(0, 1, 0.01)),
    # at least 100 targets a seed
    (r"_(leak|chance)$", Measure(0, 1, 0.01)),
    (r"accuracy|_answers|_(recall|fpr|precision|auroc)$|^attack_success", Measure(0, 1)),
    (r"_(ssim|correlation)$", Measure(-1, 1)),
    (r"^bytes_", Measure(0, math.inf, 1)),
    (r"(^|_)(mse|lpips|seconds|perplexity)$|^seconds_", Measure(0)),
)
"""Names of figures -> their values, the first that fits."""


def find_measure(name: str) -> Measure:
    """Return what a figure's values can be, by its name among `compare`'s figures."""
    fits = (measure for pattern, measure in _MEASURES if re.search(pattern, name))
    return next(fits, Measure())


def find_flaw(comparison: Comparison, measures: Mapping[str, Measure]) -> str:
    """Return why no measurement could settle a comparison, or why each would; empty: neither is so.

    What holds at the edge of the range alone cannot be settled: an interval has a width.
    """
    ranges = {row: (measures[row].low, measures[row].high) for row in comparison.rows}
    left, right = (_find_range(side, ranges) for side in (comparison.left, comparison.right))
    low, high = _combine("-", left, right)
    if comparison.sign == "~":
        within = comparison.within
        never, always = low >= within or high <= -within, -within <= low and high <= within
    else:
        if comparison.sign in ("<", "<="):
            low, high = -high, -low
        never, always = high <= 0, low > 0 or (low == 0 and comparison.sign in (">=", "<="))
    if never:
        return f"no measurement can settle that '{comparison}' holds"
    return f"'{comparison}' holds whatever is measured" if always else ""


def _find_range(side: Side, ranges: Mapping[str, Range]) -> Range:
    first, *rest = [ranges[t] if isinstance(t, str) else (t, t) for t in side.terms]
    for sign, term in zip(side.operators, rest, strict=True):
        first = _combine(sign, first, term)
    return first


def _combine(sign: str, first: Range, second: Range) -> Range:
    """Combine two ranges by an operator, as if their values had nothing to do with each other."""
    if sign in "+-":
        low, high = second if sign == "+" else (-second[1], -second[0])
        return first[0] + low, first[1] + high
    if sign == "/":
        if second[0] < 0 < second[1]:
            return -math.inf, math.inf
        second = _invert(second)
    made = [a * b if a and b else 0.0 for a in first for b in second]
    return min(made), max(made)


def _invert(values: Range) -> Range:
    """Return the range of 1 / x, for x of one sign."""
    low, high = values
    above = math.inf if not low else 1 / low
    below = -math.inf if not high else 1 / high
    return (below, above) if low >= 0 or high <= 0 else (-math.inf, math.inf)
