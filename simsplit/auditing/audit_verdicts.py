"""A verdict is one sentence on what was read, with an interval and a guess beside it.

Without a reference no sentence says that a defence works: it says what was read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simsplit.errors import format_count
from simsplit.metrics.intervals import bootstrap_interval
from simsplit.results.leak_table import ATTACK, CEILING, FLOOR
from simsplit.results.recovered_kinds import BEST_AUC, BOTH, KINDS
from simsplit.results.worst_views import find_worst_of_attacks

if TYPE_CHECKING:
    import pandas as pd


class VerdictMeasure(NamedTuple):
    """How the verdict of one kind is measured and said."""

    metric: str
    """The figure; empty for a kind whose attacks have figures of their own."""
    said: str
    """The sentence, with `reading`, `by` and `guess`."""
    is_share: bool = False
    """Whether it is written in per cent."""
    less_is_read: bool = False
    """Whether a smaller figure means that more was read."""


_BY_ERROR = VerdictMeasure(
    "mse",
    "{kind} are read with a mean squared error of {reading} {by}; a guess has {guess}.",
    less_is_read=True,
)
"""How inputs are measured that have no figure of their own, such as images too small for SSIM."""
MEASURES: Mapping[str, VerdictMeasure] = {
    "texts": VerdictMeasure(
        "token_accuracy", "{reading} of tokens are read {by}; a guess reads {guess}.", is_share=True
    ),
    "images": VerdictMeasure(
        "ssim", "Images are read with an SSIM of {reading} {by}; a guess has {guess}."
    ),
    "rows": _BY_ERROR,
    "labels": VerdictMeasure(
        "", "Labels are read with {metric} {reading} {by}; a guess has {guess}."
    ),
    "sessions": VerdictMeasure(
        "ap", "Sessions are read with an AP of {reading} {by}; a guess has {guess}."
    ),
}
"""Kind -> how its verdict is measured."""


@dataclass(frozen=True)
class AuditFinding:
    """What one attack has read, beside the best guess."""

    attack: str
    kind: str
    role: str
    """`attack`, or `ceiling` for one that knows what no attacker of this wire could."""
    metric: str
    value: float
    low: float
    high: float
    floor: float
    guess: str
    """The name of the best guess that needs no attack."""
    samples: int
    known: float = 0.0
    """Share of the targets' labels that it knew."""

    @property
    def measure(self) -> VerdictMeasure:
        """How its kind is measured."""
        measure = MEASURES[self.kind]
        return measure if self.metric != _BY_ERROR.metric else _BY_ERROR

    @property
    def share(self) -> float:
        """How much was read, from 0 to 1: the figure, or how much of a guess's error is gone."""
        if not self.measure.less_is_read:
            return self.value
        return max(0.0, 1 - self.value / self.floor) if self.floor else 0.0

    @property
    def gain(self) -> float:
        """How much of what a guess misses was read, from 0 to 1."""
        guess = 0.0 if self.measure.less_is_read else self.floor
        return max(0.0, (self.share - guess) / (1 - guess)) if guess < 1 else 0.0

    @property
    def is_above_guess(self) -> bool:
        """Whether the whole interval is better than the best guess."""
        return self.high < self.floor if self.measure.less_is_read else self.low > self.floor

    @property
    def sentence(self) -> str:
        """The sentence on it."""
        return self.measure.said.format(
            reading=self.reading,
            kind="Images" if self.kind == "images" else "Values",
            by=f"by {self.attack}",
            guess=self.write(self.floor),
            metric="an AUC of" if "auc" in self.metric else f"an {self.metric} of",
        )

    @property
    def words(self) -> str:
        """Its figure beside the guess's, in a few words."""
        return f"{self.reading}, a guess {self.write(self.floor)}"

    @property
    def reading(self) -> str:
        """Return what it has read, in words: the figure with its interval."""
        low, high = (self.write(each).removesuffix(" %") for each in (self.low, self.high))
        return f"{self.write(self.value)} ({low} to {high})"

    def write(self, value: float) -> str:
        """Write a value of its figure."""
        if self.measure.is_share:
            return f"{100 * value:.0f} %"
        return f"{value:.3g}" if self.measure.less_is_read else f"{value:.2f}"

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values."""
        return {**asdict(self), "share": self.share, "sentence": self.sentence}


def measure_findings(leaks: "pd.DataFrame", bounds: Sequence[str]) -> list[AuditFinding]:
    """Measure what each attack of a table of leaks has read, with an interval over samples.

    `bounds` are attacks that know what no attacker of this wire could.
    """
    found = []
    for kind in MEASURES:
        own = leaks[leaks["kind"] == kind] if len(leaks) else leaks
        if len(own):
            found += _measure_labels(own) if kind == "labels" else _measure_kind(own, kind)
    return [replace(each, role=CEILING) if each.attack in bounds else each for each in found]


def _measure_kind(own: "pd.DataFrame", kind: str) -> list[AuditFinding]:
    """Measure the attacks of a kind that has a figure for each target."""
    measure = MEASURES[kind]
    if measure.metric not in set(own["metric"]):
        measure = _BY_ERROR
    own = own[own["metric"] == measure.metric]
    if kind == "sessions":
        own = own[own["view"] == BOTH]
    grouped = own.groupby(["attack", "role"], sort=False)["value"].mean()
    means: list[tuple[str, str, float]] = [*grouped.reset_index().itertuples(index=False)]
    floors = {name: float(value) for name, role, value in means if role == FLOOR}
    best = min if measure.less_is_read else max
    guess = best(floors, key=floors.__getitem__)
    found = []
    for name, role, value in means:
        if role not in (ATTACK, CEILING):
            continue
        values = own.loc[own["attack"] == name, "value"].to_numpy(dtype=np.float64)
        low, high = bootstrap_interval([values], 1) or (float(value), float(value))
        place = (str(name), kind, str(role), measure.metric, float(value), low, high)
        words = KINDS[kind].guesses.get(guess, guess).strip("()")
        found.append(AuditFinding(*place, floors[guess], words, len(values)))
    return found


def _measure_labels(own: "pd.DataFrame") -> list[AuditFinding]:
    """Measure attacks on labels by their worst views, whose intervals the judge has computed."""
    own = own[own["metric"] != BEST_AUC]
    found = []
    for name, row in find_worst_of_attacks(own):
        guesses = {n: float(row[n]) for n in ("chance", "majority") if n in row}
        guess = max(guesses, key=guesses.__getitem__)
        place = (name, "labels", ATTACK, str(row["metric"]), float(row["leak"]))
        ends = float(row["low"]), float(row["high"])
        known = float(row.get("known", 0.0))
        found.append(AuditFinding(*place, *ends, guesses[guess], guess, int(row["samples"]), known))
    return found


def find_worst(findings: Sequence[AuditFinding]) -> AuditFinding | None:
    """Find the attack that has read most beside a guess, or of all; upper bounds do not count."""
    own = [each for each in findings if each.role == ATTACK]
    # Of equal ones, the one that knows no labels.
    rank = lambda each: (each.is_above_guess, each.gain, -each.known)  # noqa: E731
    return max(own, key=rank, default=None)


def write_verdict(
    findings: Sequence[AuditFinding], pairs: int = 0, plain: Sequence[AuditFinding] = ()
) -> str:
    """Write the verdict on the attack that has read most; `pairs` inputs are known to bounds.

    `plain` are the findings on the same samples without the defence, of which the best is named.
    """
    said = _write_own_verdict(findings, pairs)
    worst = find_worst(plain) or max(plain, key=lambda each: each.gain, default=None)
    if worst is None:
        return said
    return f"{said} Without the defence, {worst.sentence[0].lower()}{worst.sentence[1:]}"


def _write_own_verdict(findings: Sequence[AuditFinding], pairs: int) -> str:
    worst = find_worst(findings)
    if worst is not None and worst.is_above_guess:
        return worst.sentence
    bounds = [each for each in findings if each.role == CEILING and each.is_above_guess]
    top = max(bounds, key=lambda each: each.gain, default=None)
    if top is not None:
        knowing = f"With {format_count(pairs, 'known input')}" if pairs else "As an upper bound"
        said = top.sentence[0].lower() + top.sentence[1:]
        less = "without them nothing was read" if worst else "no attack that needs less was tried"
        return f"{knowing}, {said.removesuffix('.')}; {less}."
    if not findings:
        return "No attack came to its end: see what attackers would need."
    best = worst or max(findings, key=lambda each: each.gain)
    return (
        f"Nothing was read by {format_count(len(findings), 'attack')} (the best: {best.attack} "
        f"{best.words}); this says nothing about attacks that were not tried."
    )
