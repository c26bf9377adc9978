"""Small tables of text, and the four forms that people paste them in."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import rich.table

Format = Literal["table", "markdown", "csv", "latex"]


@dataclass(frozen=True)
class Table:
    """A title, column names, and rows of cells; the first column is text, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def rich(self) -> "rich.table.Table":
        """For a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        table = RichTable(title=self.title or None, box=SIMPLE_HEAD, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """A pipe table."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, rule, *self.rows]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def csv(self) -> str:
        """Comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().rstrip("\n")

    def latex(self) -> str:
        """A booktabs tabular."""
        columns = "l" + "r" * (len(self.columns) - 1)
        header, *rows = [
            " & ".join(_escaped(cell) for cell in cells) + r" \\"
            for cells in (self.columns, *self.rows)
        ]
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def text(self, form: Format) -> str:
        """In a form other than a terminal's."""
        forms: dict[str, Callable[[], str]] = {
            "markdown": self.markdown,
            "csv": self.csv,
            "latex": self.latex,
        }
        return forms[form]()


def _escaped(cell: str) -> str:
    cell = cell.replace("\\", r"\textbackslash{}")
    for character in "&%$#_{}":
        if character not in "{}" or "textbackslash" not in cell:
            cell = cell.replace(character, "\\" + character)
    return cell.replace("±", r"$\pm$").replace("×", r"$\times$").replace("−", "-")
