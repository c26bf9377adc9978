"""Which part works with which data and topology, as a page."""

from making.markup import plain, table
from simsplit.catalogue import tabulate_catalogue

_HEAD = """\
# Which part works with what

What a part needs is written beside its code. A scenario that lacks it is refused before anything is trained: the message names the
field, and what would do. The table is of default options; "with" names an option that would do.

```
simsplit list compatibility
simsplit list compatibility --format markdown
```
"""


def page() -> str:
    """Return the table that `simsplit list compatibility` prints, with its head."""
    (part,) = tabulate_catalogue("compatibility")
    rows = [[plain(cell) for cell in row] for row in part.rows]
    return f"{_HEAD}\n{table(part.columns, rows)}\n"
