"""`simsplit report` writes a page to its file, and draws the figures of the given runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from simsplit.errors import RunError
from simsplit.report.entries import load_entries
from simsplit.report.page import Subject, write_page
from simsplit.report.run_figures import draw_figures
from simsplit.results import SWEEP, Run
from simsplit.results.directory import replace

NAME = "report.html"


def write_report(paths: Sequence[Path], out: Path | None, say: Callable[[str], None]) -> Path:
    """Write the page and return its file; `say` gets left-out cells and warnings."""
    target = out or (paths[0] / NAME if len(paths) == 1 else Path(NAME))
    if target.suffix not in (".html", ".htm"):
        raise RunError(f"--out takes a file that ends with .html, got '{target}'")
    entries, left_out = load_entries(paths)
    for line in left_out:
        say(line)
    page = write_page(Subject(entries, left_out))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, page.encode())
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from None
    for path in paths:
        if not (path / SWEEP).exists():
            for failure in draw_figures(Run.load(path)):
                say(f"warning: {path}: {failure}")
    return target
