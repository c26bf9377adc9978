"""The page of errors, from the table that `simsplit explain` reads."""

from simsplit.terminal.error_kinds import KINDS

_HEAD = """\
# Errors

A command that ends with an error prints its name, such as `E-DATA-03`. The same text without this page:

```
simsplit explain E-DATA-03
```

Exit codes: 2 for what you can mend, 1 for a run that had started and failed, 130 after Ctrl-C.
"""


def page() -> str:
    """Return each kind of error with its cause and cure."""
    entries = (f"\n## {kind.name}: {kind.about}\n\n{kind.cause}\n\n{kind.cure}\n" for kind in KINDS)
    return _HEAD + "".join(entries)
