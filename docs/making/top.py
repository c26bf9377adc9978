"""Files of the top level that are pages of the site too."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_RUNS = "## The run directory\n"


def pages() -> Iterator[tuple[str, str]]:
    """Results, changes, and the README's section on run directories."""
    yield "results.md", _read("RESULTS.md")
    yield "changes.md", _read("CHANGELOG.md")
    section = _read("README.md").split(_RUNS)[1].split("\n## ")[0]
    yield "reference/run-directory.md", f"# The run directory\n{section}"


def _read(name: str) -> str:
    """A file, its links as they are from within the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](").replace("](RESULTS.md", "](results.md")
