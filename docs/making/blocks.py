"""Parts of hand-written pages are made from data; `python docs/made_blocks.py` writes them anew."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from making import boards, compatibility, figures, papers

ROOT = Path(__file__).parents[2]
BLOCKS: Mapping[str, Callable[[], str]] = {
    "in short": papers.summarise,
    "verdicts": papers.verdicts,
    "lightsplit": papers.tabulate_lightsplit,
    "boards": boards.verdicts,
    "labels board": boards.show_labels,
    "threats": compatibility.threats,
}
"""The name in a block's marks -> what makes its text."""
FILES = (
    "README.md",
    "RESULTS.md",
    "docs/index.md",
    "docs/threats.md",
    *(f"docs/results/{file.name}" for file in sorted((ROOT / "docs" / "results").glob("*.md"))),
    *(str(file.relative_to(ROOT)) for file in sorted(papers.REMARKS.glob("*/*.md"))),
)
"""The pages that may have blocks, or figures between marks."""


def fill(text: str, only: str | None = None) -> str:
    """Return a page with the text of every block and figure, or of one block, as the data have it."""
    for name, make in BLOCKS.items() if only is None else [(only, BLOCKS[only])]:
        start, end = f"<!-- made: {name} -->", f"<!-- end: {name} -->"
        block = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        text = block.sub(lambda _, a=start, b=end, make=make: f"{a}\n{make()}\n{b}", text)
    return figures.fill(text) if only is None else text


def fill_files(only: str | None = None) -> list[str]:
    """Write the blocks of all pages anew, or one block, and return the names of changed pages."""
    before = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    # all pages are made before one is written: what cannot be made leaves none half new
    made = {name: fill(text, only) for name, text in before.items()}
    changed = [name for name in FILES if made[name] != before[name]]
    for name in changed:
        (ROOT / name).write_text(made[name], encoding="utf-8")
    return changed
