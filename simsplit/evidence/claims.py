"""Claims of papers as data: every table and figure, with the figures that the paper prints.

A paper's `claims.yaml` lies beside its scenarios, in `scenarios/papers/<paper>/`:

    paper: LightSplit                     the name that pages show
    cites: Cihangiroglu et al., ...       authors, title, where it appeared
    tables:
      table9:                             tableN or figureN, in arabic numbers; appendix_c
        title: Table IX                   as the paper calls it
        says: ...                         what it shows, in one sentence of ours
        figures:                          the table's figures: what measures each of them here
          accuracy: {is: test_accuracy, at: best_on_test, times: 100, unit: "%", better: more}
        printed: |                        CSV: axes that tell rows apart, then figures; to the digit
          data, partition, cut, heads, method, accuracy
          cifar10, iid, l2h, shared, raw, 87.24
          cifar10, iid, l2h, shared, lightsplit-8, 83.50
        names: {lightsplit-8: LightSplit-F 8x}         the paper's names of axes' values
        measured:                         tier -> scenarios, as paths below the paper's folder
          small:
            - scenario: small/table9.yaml
              with: {data: cifar10}       axes that all of its cells share
              rename: {source: data}      short name of a swept field -> axis
              words:                      axis -> the cell's value -> the table's
                method: {lightsplit-8-learned-512: lightsplit-l-8}
              figures: [accuracy]         figures that its runs have; all by default
              takes_min: 0.4              minutes of a cell, until one has been measured
        holds:                            what would hold; see `simsplit.evidence.statements`
          - that: raw > lightsplit-8 > lightsplit-32
            in: accuracy                  the figure that is compared
            along: method                 the axis whose values `that` names; method by default
            for: {data: cifar10, cut: l2h, heads: shared}         other axes' values
            each: [partition]             axes for each of whose values it must hold
            out_of_reach: ...             why nothing here can measure it, where nothing can
        floors: [mean_image]              figures of this table that need no attack
        silent: ["which half ..."]        what the paper leaves open, and what was taken
        out_of_reach: ...                 why two processors cannot measure it, where they cannot
        describes: ...                    what it lists, for a table that claims nothing measurable

Rows of the paper and cells of a sweep meet by their axes. A cell's axes are its swept fields by the
short names that `compare` and cells' folders have (`cut`, `heads`, `method`, `partition`), with
values in words joined by dashes (`lightsplit-8`, `dirichlet-0.1`, `raw` for no method), and what
`with` adds; the `name` of an entry of `sweep.list` is the axis `cell`. A scenario without a sweep
is one cell. Axes that the printed table lacks are ignored; a cell that fits no printed row is left
out. Seeds are no axis: three are measured where a sweep names none.

A figure may be printed by nobody (a floor, an attack of ours): it is then no column of `printed`.
A figure that nothing here measures has an empty `is`. A figure that the paper prints against
another row has `of`, a figure of the table, `against`, that row's values of axes, and `as` (ratio,
percent, points, or dcs, PIDI's score of a defence by its utility and by what attacks read):

    change: {of: accuracy, against: {method: raw}, as: percent, unit: "%"}
    dcs: {of: mp, against: {method: none}, as: dcs, leaked: {prompt: .25, response: .75}}
    spread: {of: accuracy, as: variation, unit: "%"}          over seeds, against its own mean

A plot without readable values has rows with empty figures. A table or plot of runs that another
table has already names that one in `rows_of`: it has the same axes and figures, and is not measured
a second time. A statement with `along: figure`
compares figures of one row instead of rows in one figure (`sdar > mean_image`), and has no `in`.
Every axis with several values must be in `along`, `for` or `each`. Statements are judged at a tier
for those rows alone that the tier has cells for.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from simsplit.config import Config
from simsplit.errors import ScenarioError, format_list, suggest
from simsplit.evidence.statements import Comparison, parse_statement
from simsplit.foreign import find_yaml_loader
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


def _in_words(values: object) -> object:
    """Turn plain values into words, so that `ratio: 8` in YAML is the axis value '8'."""
    if isinstance(values, Mapping):
        return {str(name): str(value) for name, value in values.items()}
    return values


Words = Annotated[dict[str, str], BeforeValidator(_in_words)]


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

    def compare(self, value: float, other: float, leak: float = 0.0) -> float:
        """Return a row's value against that of the other row; nan where it divides by zero."""
        if self.as_ == "dcs":
            return compute_defence_score(leak, value, other)
        if self.as_ == "points":
            return value - other
        if not other:
            return math.nan
        return value / other if self.as_ == "ratio" else 100 * (value / other - 1)

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
    out_of_reach: str = ""
    """Why nothing here can measure it; empty: something can. The table is judged by the others."""


class Claim(Config):
    """A table or figure of a paper."""

    title: str
    """As the paper names it, such as Table IV."""
    says: str
    """What it shows, in a sentence of ours."""
    figures: Mapping[str, Figure] = {}
    """Figure -> what measures it."""
    printed: str = ""
    """CSV: a header of axes and figures, and a line for each row that the paper prints."""
    names: Mapping[str, str] = {}
    """Value of an axis -> the paper's own name for it."""
    measured: Mapping[Tier, tuple[Measured, ...]] = {}
    """Tier -> the scenarios that measure it."""
    rows_of: str = ""
    """The table whose scenarios and measurements it shares; empty: it has its own."""
    holds: tuple[Statement, ...] = ()
    """What would hold."""
    floors: tuple[str, ...] = ()
    """Figures that need no attack, such as mean_image_ssim."""
    silent: tuple[str, ...] = ()
    """What the paper leaves open, and what was taken."""
    out_of_reach: str = ""
    """Why two processors cannot measure it; empty: they can."""
    describes: str = ""
    """What it lists, where it claims nothing that could be measured."""

    @property
    def measured_figures(self) -> Mapping[str, Figure]:
        """The figures that are read from runs."""
        return {name: figure for name, figure in self.figures.items() if figure.is_}

    @property
    def axes(self) -> tuple[str, ...]:
        """The columns of the printed table that tell its rows apart."""
        return tuple(name for name in self._header if name not in self.figures)

    @cached_property
    def rows(self) -> tuple[tuple[dict[str, str], dict[str, float]], ...]:
        """The printed rows: the axes of each, and the figures that are not empty."""
        return tuple(
            (axes, {name: float(text) for name, text in texts.items()})
            for axes, texts in self.texts
        )

    @cached_property
    def texts(self) -> tuple[tuple[dict[str, str], dict[str, str]], ...]:
        """The printed rows with figures as the paper prints them, to the digit."""
        made = []
        for line in self._lines[1:]:
            cells = dict(zip(self._header, line, strict=True))
            axes = {name: cells[name] for name in self.axes}
            made.append((axes, {n: cells[n] for n in self.figures if cells.get(n, "")}))
        return tuple(made)

    def decimals(self, figure: str) -> int:
        """Return how many decimals the paper prints of a figure; 0 where it prints none at all."""
        printed = [texts[figure] for _, texts in self.texts if figure in texts]
        return max((len(text.partition(".")[2]) for text in printed), default=0)

    def values(self, axis: str) -> tuple[str, ...]:
        """Return the values of an axis, in the order in which the paper prints them."""
        return tuple(dict.fromkeys(axes[axis] for axes, _ in self.rows))

    def name(self, value: str) -> str:
        """Return the paper's name for the value of an axis."""
        return self.names.get(value, value)

    def is_own(self, figure: str, axes: Axes) -> bool:
        """Return whether a figure puts the row with these axes against the row itself."""
        against = self.figures[figure].against
        return bool(against) and all(axes.get(axis) == value for axis, value in against.items())

    def sides(self, statement: Statement) -> tuple[str, ...]:
        """Return what a statement may name: the values of its axis, or the table's figures."""
        return tuple(self.figures) if statement.along == FIGURE else self.values(statement.along)

    def comparisons(self) -> Iterator[tuple[Statement, Axes, Comparison]]:
        """Yield each comparison of each statement, with the axes that it is made at."""
        for statement in self.holds:
            for each in product(*(self.values(axis) for axis in statement.each)):
                where = {**statement.for_, **dict(zip(statement.each, each, strict=True))}
                for comparison in parse_statement(statement.that, self.sides(statement), ""):
                    yield statement, where, comparison

    @property
    def _header(self) -> list[str]:
        return self._lines[0] if self._lines else []

    @cached_property
    def _lines(self) -> list[list[str]]:
        reader = csv.reader(self.printed.strip().splitlines(), skipinitialspace=True)
        return [[cell.strip() for cell in line] for line in reader if line]

    @model_validator(mode="after")
    def _refuse_misfits(self) -> Self:
        _refuse_ragged(self)
        for index, statement in enumerate(self.holds):
            _refuse_misstated(self, statement, f"holds.{index}")
        for index, floor in enumerate(self.floors):
            _refuse_unknown_figure(self, floor, f"floors.{index}")
        for name, figure in self.figures.items():
            _refuse_no_comparison(self, figure, f"figures.{name}")
        for tier, entries in self.measured.items():
            for index, entry in enumerate(entries):
                for name in entry.figures:
                    where = f"measured.{tier}.{index}.figures"
                    _refuse_unknown(name, _list_measured(self), where, "figure")
        if not (self.measured or self.rows_of or self.out_of_reach or self.describes):
            raise ScenarioError(
                "measured",
                "is empty; name a scenario, or write in out_of_reach why two processors cannot "
                "measure it, or in describes what it lists",
            )
        return self


class Claims(Config):
    """A paper: its tables and figures, in its own order."""

    paper: str
    """Its short name, such as LightSplit."""
    cites: str
    """Authors, title, where it appeared."""
    models: dict[str, str] = Field(default_factory=dict)
    """Folder of a model that its scenarios name -> the command that makes it."""
    tables: dict[str, Claim]
    """Name, such as table4 or figure7 -> the claim; `rows_of` gives it that table's scenarios."""

    @model_validator(mode="after")
    def _share_scenarios(self) -> Self:
        for name, claim in self.tables.items():
            if claim.rows_of:
                own = [each for each in self.tables if not self.tables[each].rows_of]
                _refuse_unknown(claim.rows_of, own, f"tables.{name}.rows_of", "table")
                source = self.tables[claim.rows_of]
                _refuse_other_figures(claim, source, f"tables.{name}.figures")
                shared = {tier: _share(rows, claim) for tier, rows in source.measured.items()}
                self.tables[name] = claim.model_copy(update={"measured": shared})
        return self


def load_claims(path: Path) -> Claims:
    """Read a paper's claims.

    Raises:
        ScenarioError: by the path in the file, for what is no claim.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=find_yaml_loader())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScenarioError("", f"cannot read {path}: {error}") from None
    try:
        return Claims.model_validate(values)
    except ValidationError as error:
        problems = [_problem(path, each) for each in error.errors()]
        raise ScenarioError.of_many(problems) from None
    except ScenarioError as error:
        raise ScenarioError(error.field, f"{error.reason} ({path})") from None


def _problem(path: Path, error: Any) -> ScenarioError:  # noqa: ANN401 - pydantic's details
    field = ".".join(map(str, error["loc"]))
    return ScenarioError(field, f"{error['msg']} ({path})")


def _refuse_ragged(claim: Claim) -> None:
    """Raise ScenarioError for a printed table whose lines do not fit its header."""
    if not claim._lines:
        return
    header, *lines = claim._lines
    for index, line in enumerate(lines, 2):
        where = f"printed, line {index}"
        if len(line) != len(header):
            raise ScenarioError(where, f"has {len(line)} cells for {len(header)} columns: {line}")
        for name, cell in zip(header, line, strict=True):
            if name in claim.figures and cell and not _is_number(cell):
                raise ScenarioError(where, f"{name} must be a number or empty, got '{cell}'")
    keys = [tuple(line[header.index(axis)] for axis in claim.axes) for line in lines]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ScenarioError("printed", f"has the row {format_list(twice)} twice")


def _refuse_misstated(claim: Claim, statement: Statement, where: str) -> None:
    """Raise ScenarioError for a statement on figures, axes or rows that the table lacks."""
    of_figures = statement.along == FIGURE
    if of_figures and statement.in_:
        raise ScenarioError(f"{where}.in", "must be left out with along: figure")
    if not of_figures:
        _refuse_unknown_figure(claim, statement.in_, f"{where}.in")
    named = [*statement.for_, *statement.each, *([] if of_figures else [statement.along])]
    for axis in named:
        _refuse_unknown(axis, claim.axes, where, "axis")
    if left := [axis for axis in claim.axes if axis not in named and len(claim.values(axis)) > 1]:
        raise ScenarioError(where, f"fixes no value of {format_list(left)}; name it in for or each")
    for axis, value in statement.for_.items():
        _refuse_unknown(value, claim.values(axis), f"{where}.for.{axis}", "value")
    parse_statement(statement.that, claim.sides(statement), f"{where}.that")


def _list_measured(claim: Claim) -> list[str]:
    return [name for name, figure in claim.figures.items() if figure.is_]


def _refuse_no_comparison(claim: Claim, figure: Figure, where: str) -> None:
    """Raise ScenarioError for a figure against another row that lacks the figure or the row."""
    varies = figure.as_ == "variation"
    if bool(figure.of) != bool(figure.against or varies) or (figure.of and figure.is_):
        raise ScenarioError(where, "takes `is`, or `of` and `against` together")
    if varies and figure.against:
        raise ScenarioError(f"{where}.against", "must be left out with as: variation")
    if bool(figure.leaked) != (figure.as_ == "dcs"):
        raise ScenarioError(f"{where}.leaked", "is what as: dcs takes, and nothing else")
    if figure.of:
        _refuse_unknown(figure.of, _list_measured(claim), f"{where}.of", "figure")
    for name in figure.leaked:
        _refuse_unknown(name, _list_measured(claim), f"{where}.leaked", "figure")
    for axis, value in figure.against.items():
        _refuse_unknown(axis, claim.axes, f"{where}.against", "axis")
        _refuse_unknown(value, claim.values(axis), f"{where}.against.{axis}", "value")


def _share(entries: Sequence[Measured], claim: Claim) -> tuple[Measured, ...]:
    """Return another table's scenarios with those of their figures that a claim has."""
    shared = []
    for entry in entries:
        figures = tuple(name for name in entry.figures if name in claim.figures)
        shared.append(entry.model_copy(update={"figures": figures}))
    return tuple(shared)


def _refuse_other_figures(claim: Claim, source: Claim, where: str) -> None:
    """Raise ScenarioError where a figure is not measured as in the table that has the rows."""
    for name, figure in claim.figures.items():
        if not figure.is_:
            continue
        _refuse_unknown(name, tuple(source.figures), where, "figure")
        other = source.figures[name]
        if (figure.is_, figure.at, figure.times) != (other.is_, other.at, other.times):
            raise ScenarioError(
                f"{where}.{name}", "must have the same is, at and times as in rows_of"
            )


def _refuse_unknown_figure(claim: Claim, name: str, where: str) -> None:
    _refuse_unknown(name, tuple(claim.figures), where, "figure")


def _refuse_unknown(name: str, known: Sequence[str], where: str, what: str) -> None:
    if name not in known:
        allowed = format_list(known, 20) or "none"
        raise ScenarioError(
            where, f"unknown {what} '{name}'{suggest(name, known) or ','} allowed: {allowed}"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
