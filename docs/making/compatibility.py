"""Which part works with which data and topology, and what is refused, as pages."""

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
_RULES = """\
# What is refused

All rules that a whole scenario must keep, in the order in which they are checked. A rule to *refuse* ends `validate`, `plan`, a run or
a deployment with an error at its field, and exit code 2; a rule to *warn* prints a line. N stands for a number in a list. What one part
refuses of its own values is beside its fields.

```
simsplit list rules
```
"""


def page() -> str:
    """Return the table that `simsplit list compatibility` prints, with its head."""
    return f"{_HEAD}\n{tabulate('compatibility')}\n"


def rules() -> str:
    """Return the table that `simsplit list rules` prints, with its head."""
    return f"{_RULES}\n{tabulate('rules')}\n"


def threats() -> str:
    """Return the rows of attacks for docs/threats.md."""
    (part,) = tabulate_catalogue("threats")
    rows = [[f"`{kind}`", *map(plain, others)] for kind, *others in part.rows]
    return table(part.columns, rows)


def tabulate(what: str) -> str:
    """Return the only table of a group."""
    (part,) = tabulate_catalogue(what)
    return table(part.columns, [[plain(cell) for cell in row] for row in part.rows])
