"""The parts of a claim: its figures, what measures them, and its statements.

The schema stands in `simsplit.evidence.claims`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from simsplit.config import Config
from simsplit.evidence.measures import Measure, find_measure
from simsplit.metrics.text import compute_defence_score

Tier = Literal["quick", "small", "full"]
TIERS: tuple[Tier, ...] = ("quick", "small", "full")
"""quick: a minute on data that ship, for the board alone; small: hours on two processors; full: the
paper's size."""
Axes = Mapping[str, str]
"""Axis -> value, in words: what tells one row of a table from another."""
FIGURE = "figure"
"""The `along` of statements that compare figures of one row."""
Point = Literal["last", "best_on_validation", "best_on_test"]
As = Literal["ratio", "percent", "points", "variation", "dcs"]
"""How a figure stands against another row's: divided by it, its change in per cent, or minus it;
variation is against its own mean, the coefficient of variation over seeds in per cent. dcs is the
score of a defence: the figure is its utility, the other row's that of the undefended run."""


Word = Annotated[str, BeforeValidator(str)]
"""A plain value in words, so that `ratio: 8` in YAML is the axis value '8'."""
Words = dict[Word, Word]


class Figure(Config):
    """One figure of a table: what measures it here."""

    is_: str = Field(default="", alias="is")
    """Its name among `compare`'s figures, such as test_accuracy or sdar_ssim; empty: it is printed,
    and nothing here measures it."""
    at: Point = "best_on_validation"
    """The round that it is taken from."""
    times: float = 1.0
    """What ours is multiplied by to have the paper's unit, such as 100 for per cent."""
    unit: str = ""
    """The unit that the paper prints, for tables and pictures."""
    better: Literal["more", "less", ""] = ""
    """Which way the paper's authors want it; empty: neither."""
    of: str = ""
    """The figure of the table that it puts against another row's; empty: it is measured itself."""
    against: Words = Field(default={})
    """The other row's values of axes, such as {method: raw}."""
    as_: As = Field(default="ratio", alias="as")
    """How it stands against the other row."""
    leaked: Mapping[str, float] = {}
    """Of dcs: the figures of the same row that say what an attack reads, each with its weight."""
    floors: tuple[str, ...] = ()
    """Figures that need no attack; empty: it is not what an attack reads."""
    starts: Mapping[str, float] = {}
    """Of what an attack reads: figures of the same row that are above these values once the attack
    has begun to work there at all, such as what its simulator learned."""
    trials: Mapping[Tier, int] = {}
    """Tier -> the independent trials of a run whose share it is; empty: it is no counted share."""
    step: float = Field(default=0.0, ge=0)
    """The least difference between two of its values; 0: as its name among figures has it."""

    def compare(self, value: float, other: float, leak: float = 0.0) -> float:
        """Return a row's value against that of the other row; nan where it divides by zero."""
        if self.as_ == "dcs":
            return compute_defence_score(leak, value, other)
        if self.as_ == "points":
            return value - other
        if not other:
            return math.nan
        return value / other if self.as_ == "ratio" else 100 * (value / other - 1)

    def measure(self, tier: Tier | None = None) -> Measure:
        """Return what its values can be, and how many trials a run of a tier counts."""
        known = find_measure(self.is_).scale(self.times)
        trials = self.trials.get(tier, 0) if tier else 0
        step = self.step or (known.whole / trials if trials else known.step)
        return replace(known, trials=trials, step=step)

    def measure_against(self, source: Measure) -> Measure:
        """Return what its values against another row's can be, by what each of both can be."""
        if self.as_ == "points":
            width = source.high - source.low
            return Measure(-width, width)
        return Measure(*{"dcs": (0, 1), "percent": (-100, math.inf)}.get(self.as_, (0, math.inf)))

    @property
    def recipe(self) -> dict[str, object]:
        """The fields that its value depends on beside the run; a digest has them."""
        return {"is": self.is_, "at": self.at, "times": self.times}


class Measured(Config):
    """A scenario that measures rows of a table."""

    scenario: str
    """The file, relative to the claims' folder."""
    with_: Words = Field(default={}, alias="with")
    """Axes that all of its cells share and its sweep does not name."""
    rename: Mapping[str, str] = {}
    """The sweep's short name of a field -> the table's axis."""
    words: Mapping[str, Words] = {}
    """Axis -> the sweep's value in words -> the table's."""
    figures: tuple[str, ...] = ()
    """The figures that its runs have; empty: all that are measured."""
    takes_min: float = Field(default=1.0, gt=0)
    """Minutes that a cell takes on one processor, until one has been measured."""


class RowGate(Config):
    """What rows must pass, by the means of their seeds, before a statement is judged by them."""

    that: str
    """A comparison of figures of one row, such as `accuracy >= 80` or `sip_rf > floor_rf`."""
    at: Words = Field(default={})
    """The axes of the row that must pass where they differ from the judged row's; empty: it must
    pass itself."""
    for_: Words = Field(default={}, alias="for")
    """Axes of the rows that it decides on; empty: all."""
    judges: tuple[str, ...] = ()
    """The figures whose statements it decides on; empty: all."""
    bounds: bool = False
    """Whether it decides on statements alone that name a number, such as `lightsplit-8 >= -6`: how
    far rows lie apart may depend on how long they train, and which is higher may not."""
    otherwise: str
    """What passes it, where rows do not."""


class Statement(Config):
    """What would hold: a comparison of rows in one figure."""

    that: str
    """Such as `raw > lightsplit-8`; see `simsplit.evidence.statements`."""
    in_: str = Field(default="", alias="in")
    """The figure that is compared."""
    along: str = "method"
    """The axis whose values the statement names, or `figure`."""
    for_: Words = Field(default={}, alias="for")
    """Values of other axes."""
    each: tuple[str, ...] = ()
    """Axes for each of whose values it must hold."""
    most: bool = False
    """Whether it must hold for more than half of these values alone."""
    ours: str = ""
    """In what it goes beyond the table's sentence; empty: it is what the sentence says."""
    unprinted: str = ""
    """Why the paper's own figures cannot decide it; empty: it holds on them."""
    out_of_reach: str = ""
    """Why nothing here can measure it; empty: something can. The table is judged by the others."""
