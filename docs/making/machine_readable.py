"""`llms.txt` lists the site's pages for programs that read it, as https://llmstxt.org proposes."""

from collections.abc import Iterator
from typing import Any

import simsplit

FILE = "llms.txt"
_FACTS = """\
Commands: `simsplit list scenarios`, `run`, `sweep`, `plan`, `compare`, `rank`, `show`, `report`, `watch`, `attack`, `board`, `papers`,
`reproduce`. In Python: `simsplit.run(simsplit.load_scenario("quickstart"))` returns a run whose tables are pandas DataFrames.
`simsplit schema` prints the JSON Schema of a scenario; most commands take `--json`.
"""


def list_pages(nav: list[Any], about: str) -> str:
    """Return the file's text: what simsplit is, and a list of pages by section."""
    head = f"# simsplit {simsplit.__version__}\n\n> {about}\n\n{_FACTS}"
    return f"{head}\n## Pages\n\n" + "".join(
        f"- [{name}]({_find_address(path)})\n" for name, path in _walk(nav)
    )


def _find_address(path: str) -> str:
    """Return where mkdocs puts a page, beside this file."""
    folder = path.removesuffix(".md").removesuffix("index").rstrip("/")
    return f"{folder or '.'}/"


def _walk(nav: list[Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each page, below its section's name."""
    for entry in nav:
        if isinstance(entry, str):
            yield above or entry, entry
            continue
        for name, inner in entry.items():
            whole = f"{above}: {name}" if above else name
            if isinstance(inner, list):
                yield from _walk(inner, whole)
            else:
                yield whole, inner
