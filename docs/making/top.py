"""Files of the top level that are pages of the site too."""

from collections.abc import Iterator
from pathlib import Path

from making.links import TOP, rewrite

ROOT = Path(__file__).parents[2]


def pages() -> Iterator[tuple[str, str]]:
    """Yield results, changes and the guide for contributors: the path in the site, and the text."""
    for file in ("RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        yield TOP[file], rewrite((ROOT / file).read_text(encoding="utf-8"), file)
