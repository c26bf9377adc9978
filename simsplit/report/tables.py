"""Small tables of text, and the four forms that people paste them in."""

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import rich.table

Format = Literal["table", "markdown", "csv", "latex"]

DECIMALS = {
    "loss": 4,
    "perplexity": 1,
    "bleu": 2,
    **dict.fromkeys(("rouge_l", "meteor", "code_bleu", "ssim", "lpips"), 3),
    "mse": 4,
}
"""Of the figures that are no shares; those are told in per cent, with two."""


def decimals(figure: str) -> int | None:
    """Decimals of a figure that is no share, whatever control it is of; None of a share."""
    return next((n for name, n in DECIMALS.items() if f"{figure}_".startswith(f"{name}_")), None)


def mean_of(figure: str, values: Sequence[float]) -> str:
    """A figure's mean, and the standard deviation where there are several values."""
    if not values:
        return ""
    own = decimals(figure)
    scale, digits = (100, 2) if own is None else (1, own)
    scaled = [scale * value for value in values]
    mean = f"{statistics.fmean(scaled):.{digits}f}"
    return f"{mean} ± {statistics.stdev(scaled):.{digits}f}" if len(scaled) > 1 else mean


@dataclass(frozen=True)
class Table:
    """A title, column names, and rows of cells.

    `align` has a letter a column, as LaTeX has it: `l` for text, `r` for numbers. Without it the
    first column is text and the others are numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    align: str = ""

    def __post_init__(self) -> None:
        if not self.align:
            object.__setattr__(self, "align", "l" + "r" * (len(self.columns) - 1))
        assert len(self.align) == len(self.columns), "a letter a column"

    def rich(self) -> "rich.table.Table":
        """The table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        # as Text: cells hold brackets of their own, which rich would take for its markup
        title = Text(self.title) if self.title else None
        table = RichTable(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for index, (column, side) in enumerate(zip(self.columns, self.align, strict=True)):
            justify: Literal["left", "right"] = "left" if side == "l" else "right"
            table.add_column(Text(column), justify=justify, overflow="fold", no_wrap=index == 0)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        """The table in Markdown, with pipes."""
        rule = ["---" if side == "l" else "---:" for side in self.align]
        cells = [[cell.replace("|", r"\|") for cell in row] for row in (self.columns, *self.rows)]
        lines = [cells[0], rule, *cells[1:]]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().rstrip("\n")

    def latex(self) -> str:
        """The table in LaTeX, for booktabs."""
        header, *rows = [
            " & ".join(_escaped(cell) for cell in cells) + r" \\"
            for cells in (self.columns, *self.rows)
        ]
        lines = [rf"\begin{{tabular}}{{{self.align}}}", r"\toprule", header, r"\midrule", *rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def text(self, form: Format) -> str:
        """In a form other than a terminal's."""
        forms: dict[str, Callable[[], str]] = {
            "markdown": self.markdown,
            "csv": self.csv,
            "latex": self.latex,
        }
        return forms[form]()


_LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}"}
)


def _escaped(cell: str) -> str:
    return cell.translate(_LATEX)
