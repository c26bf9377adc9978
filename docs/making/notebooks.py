"""The notebooks as pages with their figures: run when SIMSPLIT_NOTEBOOKS=run, and kept by content.

The files in notebooks/ stay without outputs. Without the variable a page shows what was kept, or
the cells alone, so that building the site takes no training.
"""

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from making.markup import fence
from simsplit import __version__
from simsplit.caching import get_cache_folder

SOURCE = Path(__file__).parents[2] / "notebooks"
FOLDER, VARIABLE = "notebooks", "SIMSPLIT_NOTEBOOKS"
_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NOT_RUN = "*This build of the site did not run the notebook: its cells have no results here.*"


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each notebook."""
    for file in list_notebooks():
        parts: list[str] = []
        for number, cell in enumerate(_load(file).cells):
            if cell.cell_type == "markdown":
                parts.append(cell.source)
            elif cell.source:
                parts += [fence(cell.source, "python"), *_write_outputs(file, number, cell)]
        if not _find_kept(file).is_file():
            parts.insert(1, _NOT_RUN)  # below the title
        yield f"{FOLDER}/{file.stem}.md", "\n\n".join(parts)


def pictures() -> Iterator[tuple[str, bytes]]:
    """Yield the figures of the notebooks that were run."""
    for file in list_notebooks():
        for number, cell in enumerate(_load(file).cells):
            for place, data in _list_data(cell):
                if "image/png" in data:
                    content = base64.b64decode(data["image/png"])
                    yield f"{FOLDER}/{_name_picture(file, number, place)}", content


def list_notebooks() -> list[Path]:
    """List the notebooks in the order of their numbers."""
    return sorted(SOURCE.glob("*.ipynb"))


def _write_outputs(file: Path, number: int, cell: Any) -> Iterator[str]:  # noqa: ANN401 - nbformat
    """Yield what a cell printed, showed and returned."""
    for place, data in _list_data(cell):
        if "image/png" in data:
            title = f"Figure of cell {number} of {file.stem}"
            yield f"![{title}]({_name_picture(file, number, place)})"
        elif "text/html" in data and "<table" in data["text/html"]:
            yield _STYLE.sub("", data["text/html"]).replace("\n\n", "\n").strip()
        elif "text/markdown" in data:
            yield data["text/markdown"]
        elif text := data.get("text/plain", "").strip():
            yield fence(_ESCAPES.sub("", text), "text")


def _list_data(cell: Any) -> Iterator[tuple[int, Any]]:  # noqa: ANN401 - nbformat
    """Yield each output's place and its forms; what goes to stderr is no result."""
    for place, output in enumerate(cell.get("outputs", ())):
        if output.output_type == "stream":
            yield place, {"text/plain": output.text if output.name == "stdout" else ""}
        elif output.output_type in ("display_data", "execute_result"):
            yield place, output.data


def _name_picture(file: Path, number: int, place: int) -> str:
    return f"{file.stem}-{number}-{place}.png"


def _find_kept(file: Path) -> Path:
    """Return where a notebook's results are kept, by its content and the package's version."""
    content = file.read_bytes() + __version__.encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return get_cache_folder() / "notebooks" / f"{file.stem}-{digest}.ipynb"


@cache
def _load(file: Path) -> Any:  # noqa: ANN401 - nbformat is untyped
    """Load a notebook with what it gave when it was run, which happens here if it is asked for."""
    import nbformat

    kept = _find_kept(file)
    if kept.is_file():
        return nbformat.read(kept, as_version=4)
    notebook = nbformat.read(file, as_version=4)
    if os.environ.get(VARIABLE) == "run":
        from nbclient import NotebookClient

        where = {"metadata": {"path": str(SOURCE)}}
        NotebookClient(notebook, timeout=1800, resources=where).execute()
        kept.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, kept)
    return notebook
