"""Gists of messages: what a message must name (a field, values, a file), not its prose.

A gist such as `train.lr: ... 0` holds the parts that count, in their order; ` ... ` stands for any
words between them. The sentences themselves stand in `golden/sentences.txt`.
"""

import re


def gist(parts: str) -> str:
    """Return the pattern of a gist, for `pytest.raises(match=...)`."""
    return ".*".join(map(re.escape, parts.split(" ... ")))


def says(text: str, parts: str) -> bool:
    """Return whether a line of `text` holds a gist."""
    return re.search(gist(parts), text) is not None
