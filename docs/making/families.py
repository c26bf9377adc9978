"""The language models that are cut, as a page: the list that tests hold against the whole model."""

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from making.markup import plain, table

_LIST = Path(__file__).parents[2] / "tests" / "families.py"
_HEAD = """\
# Language models that are cut

Tests hold each of these families against the whole model: a small one with random weights, whose text is longer than its sliding window.
Logits are equal to the bit, in training and out of it, with padding on either side.

Other families that are built like these can be cut, too. When a model is loaded, a small copy of it with random weights is cut, and compared with
the whole copy. If the two differ, the model is refused, and the message says by how much.

"""


def page() -> str:
    """Return the table of families, with its head."""
    families: Mapping[str, Any] = runpy.run_path(str(_LIST))["FAMILIES"]
    rows = [
        [f"`{name}`", plain(family.examples), plain(family.has)]
        for name, family in sorted(families.items())
    ]
    columns = ("Family", "Models", "Besides layers like Llama's")
    return f"{_HEAD}{table(columns, rows)}\n"
