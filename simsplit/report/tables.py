"""Results are shown as small tables of text, in a terminal or in forms that people paste.

They are made here because the forms must agree on alignment, escapes and what is best.
"""

import csv
import io
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from simsplit.metrics import Better, find_decimals
from simsplit.metrics.intervals import compute_deviation, compute_half_width

if TYPE_CHECKING:
    import rich.console

Format = Literal["table", "markdown", "csv", "latex"]
BOLD = (
    "in bold the best of its column, ties included (less of costs, errors and of what leaks, more "
    "of the rest), where it is ahead of the others by more than the spread over seeds"
)

_T = TypeVar("_T")
_MOST_DIGITS = 8
"""Decimals of a small figure, at most."""
_GAP = 3
"""Characters between two columns on a terminal."""
_HEADING_LINES = 3
"""Lines that the heading of a column of numbers should not exceed."""
_WORD = 24
"""The longest word that is never broken."""


def write_mean(figure: str, values: Sequence[float]) -> str:
    """Write a figure's mean, and the standard deviation if there are several values."""
    if not values:
        return ""
    scale, digits = choose_form(figure)
    scaled = [scale * value for value in values]
    least = min(map(abs, scaled))
    if 0 < least < 10**-digits:  # or a small error would be written as none
        digits = min(2 - math.floor(math.log10(least)), _MOST_DIGITS)
    return format_mean(scaled, digits)


def choose_form(figure: str) -> tuple[int, int]:
    """Return the factor and the decimals with which a figure is written; shares are in per cent."""
    own = find_decimals(figure)
    return (100, 2) if own is None else (1, own)


def format_change(change: float, interval: tuple[float, float] | None, digits: int) -> str:
    """Format a difference with its sign, and its interval if it has one."""
    if interval is None:
        return f"{change:+.{digits}f}"
    low, high = interval
    return f"{change:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def thin(values: Sequence[_T], most: int) -> list[_T]:
    """Return at most so many values, evenly spaced, with both ends."""
    last = len(values) - 1
    if last < most:
        return list(values)
    return [values[round(place * last / (most - 1))] for place in range(most)]


def format_mean(values: Sequence[float], digits: int) -> str:
    """Format a mean, and the standard deviation if there are several values."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {compute_deviation(values):.{digits}f}" if len(values) > 1 else mean


@dataclass(frozen=True)
class Table:
    """A title, column names, and rows of cells.

    `align` has one letter per column, as in LaTeX: `l` for text, `r` for numbers. By default the
    first column is text and the others are numbers. `bold` has the (row, column) of the best values
    in columns with different values; a terminal does not show it.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    align: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()

    @property
    def heading(self) -> str:
        """Its title, and the meaning of bold if any cell is bold."""
        return f"{self.title}; {BOLD}" if self.bold else self.title

    def __post_init__(self) -> None:
        if not self.align:
            object.__setattr__(self, "align", "l" + "r" * (len(self.columns) - 1))
        assert len(self.align) == len(self.columns), "a letter a column"

    def split_to_fit(self, width: int) -> list["Table"]:
        """Split the table into parts if it is too wide, so that no word of it is cut.

        Texts come first if all of them fit. Each part has enough of them to distinguish rows.
        """
        numbers = [index for index, side in enumerate(self.align) if side == "r"]
        texts = [index for index, side in enumerate(self.align) if side == "l"]
        does_fit = self._measure_width(texts, width) <= width
        parts = [[*self._distinguishing]]
        for index in (*texts, *numbers) if does_fit else range(len(self.columns)):
            if self._measure_width([*parts[-1], index], width) > width and set(parts[-1]) - set(
                self._distinguishing
            ):
                parts.append([*self._distinguishing])
            if index not in parts[-1]:
                parts[-1].append(index)
        return [self._select_columns(sorted(part), first=part is parts[0]) for part in parts]

    @cached_property
    def _distinguishing(self) -> tuple[int, ...]:
        """The fewest columns of text, with the first, that distinguish rows; all if two do not."""
        texts = tuple(index for index, side in enumerate(self.align) if side == "l")
        for few in [texts[:1], *((texts[0], other) for other in texts[1:])]:
            if len({tuple(row[index] for index in few) for row in self.rows}) == len(self.rows):
                return few
        return texts

    def _measure_width(self, columns: Sequence[int], width: int) -> int:
        first = min(columns, default=0)
        whole = self._holds_first_whole(width)
        return sum(self._find_least_width(at, whole=at == first and whole) + _GAP for at in columns)

    def _holds_first_whole(self, width: int) -> bool:
        """Return whether the first column and any other one fit a width, neither of them folded.

        Else the first one folds: a number without its last digits would be another number.
        """
        places = range(1, len(self.columns))
        widest = max((self._find_least_width(at, whole=False) for at in places), default=0)
        return self._find_least_width(0, whole=True) + widest + 2 * _GAP <= width

    def _select_columns(self, wanted: Sequence[int], *, first: bool) -> "Table":
        columns = tuple(self.columns[index] for index in wanted)
        rows = [tuple(row[index] for index in wanted) for row in self.rows]
        align = "".join(self.align[index] for index in wanted)
        return Table(self.title if first else "", columns, rows, align)

    def _find_least_width(self, column: int, *, whole: bool) -> int:
        """Return a column's least width: numbers, `whole` columns and most words stay unbroken."""
        cells = [row[column] for row in self.rows]
        words = [word for text in (self.columns[column], *cells) for word in text.split()]
        if whole or self.align[column] == "r":
            return max([_find_heading_width(self.columns[column]), *map(len, cells)])
        return min(_WORD, max(map(len, words), default=1))

    def _fit_widths(self, width: int) -> list[int]:
        """Return the columns' widths: the least ones, and what is left for the narrowest texts."""
        places, whole = range(len(self.columns)), self._holds_first_whole(width)
        fitted = [self._find_least_width(place, whole=place == 0 and whole) for place in places]
        texts = {  # the width at which no cell of the column folds
            place: max(len(text) for text in (self.columns[place], *(r[place] for r in self.rows)))
            for place in places
            if self.align[place] == "l"
        }
        for _ in range(width + 1 - sum(fitted) - _GAP * len(fitted)):
            narrow = [place for place, most in texts.items() if fitted[place] < most]
            if narrow:
                fitted[min(narrow, key=fitted.__getitem__)] += 1
        return fitted

    def rich(self, width: int = 80) -> "rich.console.RenderableType":
        """Make the table for a terminal of this width."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        # Text, because rich would read brackets in cells as markup
        table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        # rich by itself narrows the widest columns below what their words need, and cuts the last
        fitted = zip(self.columns, self.align, self._fit_widths(width), strict=True)
        for index, (column, side, least) in enumerate(fitted):
            justify: Literal["left", "right"] = "left" if side == "l" else "right"
            whole = side == "r" or (index == 0 and self._holds_first_whole(width))
            # without this, a column that is not wrapped would not wrap its heading either
            name = textwrap.fill(column, least, break_long_words=False) if whole else column
            table.add_column(
                Text(name),
                justify=justify,
                overflow="fold",
                no_wrap=whole,
                min_width=least,
                width=None if whole else least,
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        # A table's own title would be wrapped at the width of its columns.
        return Group(Text(self.title, style="italic"), table) if self.title else table

    def markdown(self, *, links: bool = False) -> str:
        """Write the table in Markdown, with pipes; `links`: whether cells may have links."""

        def escape(cell: str) -> str:
            """Return a cell that is no HTML and no link: names of runs may come from anyone."""
            text = _TAG.sub("&lt;", _join_lines(cell)).replace("|", r"\|")
            return text if links else text.replace("](", r"\](")

        rule = ["---" if side == "l" else "---:" for side in self.align]
        cells = self._write_cells(escape, "**{}**")
        lines = [[*map(escape, self.columns)], rule, *cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def csv(self) -> str:
        """Write the table as comma-separated values."""
        text = io.StringIO()
        cells = ([*map(escape_formula, line)] for line in (self.columns, *self.rows))
        csv.writer(text, lineterminator="\n").writerows(cells)
        return text.getvalue().rstrip("\n")

    def latex(self) -> str:
        """Write the table in LaTeX, for booktabs."""

        def escape(cell: str) -> str:
            return _join_lines(cell).translate(_LATEX)

        cells = [list(map(escape, self.columns)), *self._write_cells(escape, r"\textbf{{{}}}")]
        header, *rows = [" & ".join(line) + r" \\" for line in cells]
        lines = [rf"\begin{{tabular}}{{{self.align}}}", r"\toprule", header, r"\midrule", *rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def _write_cells(self, escape: Callable[[str], str], strong: str) -> list[list[str]]:
        """Write the cells in a markup; `strong` is its format for the best ones."""
        written = [list(map(escape, row)) for row in self.rows]
        for i, j in self.bold:
            written[i][j] = strong.format(written[i][j])
        return written

    def text(self, form: Format) -> str:
        """Write the table in a form other than a terminal's."""
        forms: dict[str, Callable[[], str]] = {
            "markdown": self.markdown,
            "csv": self.csv,
            "latex": self.latex,
        }
        return forms[form]()


def find_best(
    columns: Sequence[str],
    values: Sequence[Mapping[str, Mapping[int, float]]],
    ways: Mapping[str, Better],
    exact: Collection[str] = (),
) -> frozenset[tuple[int, int]]:
    """Return the (row, column) of the best values that are ahead by more than seeds' spread.

    `values` are the rows' numbers by column and seed, `ways` the better way of columns that have a
    best. Numbers of `exact` columns do not depend on chance, so one seed decides.
    """
    places = set()
    for place, name in enumerate(columns):
        known = {
            row: known
            for row, each in enumerate(values)
            if name in ways
            if (known := {s: v for s, v in each.get(name, {}).items() if not math.isnan(v)})
        }
        means = {row: statistics.fmean(each.values()) for row, each in known.items()}
        if len(set(means.values())) < 2:
            continue
        most = (max if ways[name] == "more" else min)(means.values())
        best = {row for row, value in means.items() if math.isclose(value, most)}
        others = [known[row] for row in known if row not in best]
        places |= {
            (row, place)
            for row in best
            if all(
                _is_ahead(known[row], other, ways[name], exact=name in exact) for other in others
            )
        }
    return frozenset(places)


def _is_ahead(
    one: Mapping[int, float], other: Mapping[int, float], way: Better, *, exact: bool
) -> bool:
    """Return whether one is better, seed by seed, with the whole 95 % interval."""
    changes = [value - other[seed] for seed, value in one.items() if seed in other]
    half = compute_half_width(changes) if changes else None
    if half is None:
        return exact
    ahead = statistics.fmean(changes)
    return (ahead if way == "more" else -ahead) > half


def _find_heading_width(heading: str) -> int:
    """Return the least width at which a heading's words stay whole on few lines."""
    width = max(map(len, heading.split()), default=1)
    while len(textwrap.wrap(heading, width, break_long_words=False)) > _HEADING_LINES:
        width += 1
    return width


_LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    # without the font encoding T1, <, > and | are printed as other characters
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$"}
)


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""What begins a tag in Markdown; in `a < b` nothing does."""
_FORMULA = re.compile(r"[=+\-@\t]")
"""What begins a formula in a spreadsheet."""
_NUMBER = re.compile(r"[-+][\d.,eE ±%+\-\[\]]*")


def _join_lines(cell: str) -> str:
    """Return a cell on one line: a line's end would end the row, or the table."""
    return " ".join(cell.splitlines())


def escape_formula(cell: str) -> str:
    """Return a cell that a spreadsheet takes for text, unless it is a number."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell
