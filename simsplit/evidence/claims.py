"""Claims of papers as data: every table and figure, with the figures that the paper prints.

A paper's `claims.yaml` lies beside its scenarios, in `scenarios/papers/<paper>/`:

    paper: LightSplit                     the name that pages show
    cites: Cihangiroglu et al., ...       authors, title, where it appeared
    tables:
      table9:                             tableN or figureN, in arabic numbers; appendix_c
        title: Table IX                   as the paper calls it
        says: ...                         what it shows, in one sentence of ours
        short: ...                        the same in a few words, for RESULTS.md's first screen
        figures:                          the table's figures: what measures each of them here
          accuracy: {is: test_accuracy, at: best_on_test, times: 100, unit: "%", better: more}
          ssim: {is: sdar_ssim, at: last, better: less, floors: [mean_image_ssim]}
        undefended: {method: raw}         where nothing is defended; see below
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
            most: true                    it must hold for more than half of them
            ours: ...                     in what it goes beyond the table's sentence or measure
            unprinted: ...                why the paper's own figures cannot decide it
            out_of_reach: ...             why nothing here can measure it, where nothing can
        gates:                            what rows must pass before a statement is judged by them
          - that: accuracy >= 80          figures of one row, by the means of its seeds
            at: {method: raw}             its axes, where they differ from the judged row's
            for: {data: cifar10}          the rows that it decides on; by default all
            judges: [accuracy]            the figures whose statements it decides on; all by default
            bounds: true                  it decides on those alone that name a number
            otherwise: ...                what passes it
        ungated: ...                      why there is no gate
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
for the rows alone that the tier has cells for.

A table's verdict is on its sentence: on all statements that are not `ours`, in the paper's measure.
Each of them holds on the paper's own printed figures, or says in `unprinted` why these cannot
decide it. A statement that could not be settled whatever was measured is refused.

A figure with `floors` is what an attack reads. It says something of a defence only if the attack
reads more than each of these figures, which need no attack, where nothing is defended: in the row
with the axes `undefended`. Where it does not, statements on the figure are not settled; nor are
they of a row where the attack has not begun: where a figure in `starts` is not above its value.

Of a figure that is a share of counted trials, such as the turns that a detector flags, `trials` has
their number in a run, by tier; `step` is the least difference between two values of another figure,
where `simsplit.evidence.measures` does not know it.
"""

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, ValidationError, model_validator

from simsplit.config import Config
from simsplit.errors import ScenarioError, format_list, suggest
from simsplit.evidence.claim_parts import FIGURE as FIGURE
from simsplit.evidence.claim_parts import TIERS as TIERS
from simsplit.evidence.claim_parts import Axes as Axes
from simsplit.evidence.claim_parts import Figure as Figure
from simsplit.evidence.claim_parts import Measured as Measured
from simsplit.evidence.claim_parts import RowGate as RowGate
from simsplit.evidence.claim_parts import Statement as Statement
from simsplit.evidence.claim_parts import Tier as Tier
from simsplit.evidence.claim_parts import Words
from simsplit.evidence.measures import Measure, find_flaw
from simsplit.evidence.statements import Comparison, parse_statement, read_number
from simsplit.foreign import find_yaml_loader


class Claim(Config):
    """A table or figure of a paper."""

    title: str
    """As the paper names it, such as Table IV."""
    says: str
    """What it shows, in a sentence of ours."""
    short: str = Field(default="", max_length=75)
    """The same in a few words, as they stand behind "Holds here:"; empty: nothing is judged."""
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
    gates: tuple[RowGate, ...] = ()
    """What rows must pass before they say something."""
    ungated: str = ""
    """Why rows of whatever model say something; empty: they have gates, or nothing is claimed."""
    undefended: Words = Field(default={})
    """The axes' values of rows where nothing is defended; empty: the table has none."""
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
        lines = [dict(zip(self._header, line, strict=True)) for line in self._lines[1:]]
        axes = [{name: cells[name] for name in self.axes} for cells in lines]
        figures = [{n: cells[n] for n in self.figures if cells.get(n)} for cells in lines]
        return tuple(zip(axes, figures, strict=True))

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

    def measure(self, name: str, tier: Tier | None = None) -> Measure:
        """Return what the values of a figure can be, and how many trials a run of a tier counts."""
        figure = self.figures[name]
        if figure.of:
            return figure.measure_against(self.measure(figure.of))
        return figure.measure(tier)

    def base_figure(self, name: str) -> str:
        """Return the figure that a figure puts against another row's, or the figure itself."""
        return self.figures[name].of or name

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
        for index, floor in enumerate(self.floors):
            _refuse_unknown_figure(self, floor, f"floors.{index}")
        _refuse_unknown_axes(self, self.undefended, "undefended")
        for name, figure in self.figures.items():
            _refuse_no_comparison(self, figure, f"figures.{name}")
        for index, statement in enumerate(self.holds):
            _refuse_misstated(self, statement, f"holds.{index}")
        for index, gate in enumerate(self.gates):
            _refuse_closed(self, gate, f"gates.{index}")
        _refuse_unmeasured(self)
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
    """Read a paper's claims; raise ScenarioError, by the path in the file, for what is no claim."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=find_yaml_loader())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScenarioError("", f"cannot read {path}: {error}") from None
    try:
        return Claims.model_validate(values)
    except ValidationError as error:
        raise explain_invalid(path, error) from None
    except ScenarioError as error:
        raise ScenarioError(error.field, f"{error.reason} ({path})") from None


def explain_invalid(path: Path, error: ValidationError) -> ScenarioError:
    """Return all that is wrong in a file, by the path in it."""
    return ScenarioError.of_many(
        [
            ScenarioError(".".join(map(str, each["loc"])), f"{each['msg']} ({path})")
            for each in error.errors()
        ]
    )


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
            if name in claim.figures and cell and not math.isfinite(read_number(cell)):
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
    _refuse_flawed(claim, statement.that, claim.sides(statement), statement.in_, f"{where}.that")


def _refuse_flawed(claim: Claim, that: str, sides: Collection[str], in_: str, where: str) -> None:
    """Raise ScenarioError for comparisons of rows in a figure, or of figures, that are no claim."""
    for comparison in parse_statement(that, sides, where):
        measures = {side: claim.measure(in_ or side) for side in comparison.rows}
        if flaw := find_flaw(comparison, measures):
            raise ScenarioError(where, f"{flaw}, by what the figure's values can be")


def _refuse_unmeasured(claim: Claim) -> None:
    """Raise ScenarioError for runs of a figure that nothing measures."""
    for tier, entries in claim.measured.items():
        for index, entry in enumerate(entries):
            for name in entry.figures:
                where = f"measured.{tier}.{index}.figures"
                _refuse_unknown(name, claim.measured_figures, where, "figure")


def _refuse_closed(claim: Claim, gate: RowGate, where: str) -> None:
    """Raise ScenarioError for a gate that no row could pass: on what the table lacks."""
    _refuse_flawed(claim, gate.that, claim.measured_figures, "", f"{where}.that")
    for words, part in ((gate.at, "at"), (gate.for_, "for")):
        _refuse_unknown_axes(claim, words, f"{where}.{part}")
    for name in gate.judges:
        _refuse_unknown_figure(claim, name, f"{where}.judges")


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
        _refuse_unknown(figure.of, claim.measured_figures, f"{where}.of", "figure")
    for name in figure.leaked:
        _refuse_unknown(name, claim.measured_figures, f"{where}.leaked", "figure")
    for floor in (*figure.floors, *figure.starts):
        _refuse_unknown_figure(claim, floor, f"{where}.floors")
    _refuse_unknown_axes(claim, figure.against, f"{where}.against")


def _refuse_unknown_axes(claim: Claim, axes: Axes, where: str) -> None:
    for axis, value in axes.items():
        _refuse_unknown(axis, claim.axes, where, "axis")
        _refuse_unknown(value, claim.values(axis), f"{where}.{axis}", "value")


def _share(entries: Sequence[Measured], claim: Claim) -> tuple[Measured, ...]:
    """Return another table's scenarios with those of their figures that a claim has."""
    kept = [tuple(name for name in entry.figures if name in claim.figures) for entry in entries]
    pairs = zip(entries, kept, strict=True)
    return tuple(entry.model_copy(update={"figures": figures}) for entry, figures in pairs)


def _refuse_other_figures(claim: Claim, source: Claim, where: str) -> None:
    """Raise ScenarioError where a figure is not measured as in the table that has the rows."""
    for name, figure in claim.measured_figures.items():
        _refuse_unknown(name, source.figures, where, "figure")
        other = source.figures[name]
        if (figure.is_, figure.at, figure.times) != (other.is_, other.at, other.times):
            raise ScenarioError(
                f"{where}.{name}", "must have the same is, at and times as in rows_of"
            )


def _refuse_unknown_figure(claim: Claim, name: str, where: str) -> None:
    _refuse_unknown(name, claim.figures, where, "figure")


def _refuse_unknown(name: str, known: Collection[str], where: str, what: str) -> None:
    if name not in known:
        allowed = format_list(known, 20) or "none"
        raise ScenarioError(
            where, f"unknown {what} '{name}'{suggest(name, known) or ','} allowed: {allowed}"
        )
