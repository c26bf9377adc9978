"""Parts of hand-written pages are made from data; `python docs/made_blocks.py` writes them anew."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from making import boards, figures, papers

ROOT = Path(__file__).parents[2]
BLOCKS: Mapping[str, Callable[[], str]] = {
    "verdicts": papers.verdicts,
    "lightsplit": papers.tabulate_lightsplit,
    "boards": boards.verdicts,
}
"""The name in a block's marks -> what makes its text."""
FILES = (
    "README.md",
    "RESULTS.md",
    "docs/threats.md",
    *(f"docs/results/{file.name}" for file in sorted((ROOT / "docs" / "results").glob("*.md"))),
)
"""The pages that may have blocks, or figures between marks."""


def fill(text: str) -> str:
    """Return a page with the text of every block and figure as the data have it."""
    for name, make in BLOCKS.items():
        start, end = f"<!-- made: {name} -->", f"<!-- end: {name} -->"
        block = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        text = block.sub(lambda _, a=start, b=end, make=make: f"{a}\n{make()}\n{b}", text)
    return figures.fill(text)


def fill_files() -> list[str]:
    """Write the blocks of all pages anew, and return the names of changed ones."""
    changed = []
    for name in FILES:
        before = (ROOT / name).read_text(encoding="utf-8")
        if (now := fill(before)) != before:
            (ROOT / name).write_text(now, encoding="utf-8")
            changed.append(name)
    return changed
