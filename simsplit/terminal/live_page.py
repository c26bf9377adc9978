"""`simsplit watch --page` keeps a report of a run or sweep in progress, and can serve it here.

The page is written anew when a round or a cell has ended; a browser reads it again by itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, format_count
from simsplit.report.grouping import Entry, load_entries
from simsplit.report.html.markup import Markup, mark_up_rows, section
from simsplit.report.page import Subject, fill_page, write_page
from simsplit.results import SWEEP, Run, SweepDirectory, read_progress, read_summary
from simsplit.results.directory import replace
from simsplit.results.read_tables import explain_misfits

RELOAD_S = 5
HOST = "127.0.0.1"
_FILES = ("rounds.csv", "summary.json")


class LivePage:
    """The page of a run or sweep in progress."""

    def __init__(self, path: Path, file: Path) -> None:
        if file.suffix not in (".html", ".htm"):
            raise RunError(f"--page takes a file that ends with .html, got '{file}'")
        self.path, self.file = path, file
        self._seen: object = None

    def update(self, *, over: bool = False) -> None:
        """Write the page if something has ended since it was last written, and at the end."""
        seen = (over, sorted(_list_changes(self.path)))
        if seen == self._seen:
            return
        try:
            with explain_misfits([self.path]):
                content = self._write(None if over else RELOAD_S).encode()
        except RunError:
            if over or self._seen is None:
                raise
            # A round is in one table and not yet in the next; the page is written the next time.
            return
        self._seen = seen
        try:
            replace(self.file, content)
        except OSError as error:
            raise RunError(f"cannot write {self.file}: {error.strerror or error}") from None

    def _write(self, reload_s: int | None) -> str:
        if not (self.path / SWEEP).exists():
            run = Run.load(self.path)
            if run.rounds.empty:
                return fill_page(self.path.name, "no round has ended yet", [], None, reload_s)
            return write_page(Subject([Entry(run)]), (), reload_s)
        directory = SweepDirectory.load(self.path)
        cells = _tabulate_cells(directory)
        finished = [cell for cell in directory.cells if directory.is_finished(cell.name)]
        if not finished:
            verdict = f"none of {format_count(len(directory.cells), 'cell')} has finished yet"
            return fill_page(directory.name, verdict, [cells], None, reload_s)
        # The table of cells says of the others how far they are.
        return write_page(Subject(load_entries([self.path])[0]), [cells], reload_s)


def _list_changes(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the files that say how far a run or a sweep is, with the times of their changes."""
    for pattern in (*_FILES, *(f"*/{name}" for name in _FILES), SWEEP):
        for file in path.glob(pattern):
            try:
                yield str(file), file.stat().st_mtime_ns
            except OSError:  # replaced in this moment
                continue


def _tabulate_cells(directory: SweepDirectory) -> Markup:
    rows = []
    for cell in directory.cells:
        path = directory.run_path(cell.name)
        summary, progress = read_summary(path), read_progress(path)
        status = "failed" if cell.name in directory.failed else summary.get("status", "waiting")
        rounds = "" if progress.rounds is None else f"{progress.done}/{progress.rounds}"
        score = "" if progress.score is None else f"{100 * progress.score:.1f}%"
        rows.append((cell.name, str(status), rounds, score))
    columns = ("cell", "status", "rounds", "test figure")
    return section("Cells", mark_up_rows(columns, rows, "llrr"))


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page, to browsers on this machine alone."""

    def __init__(self, file: Path, *given: Any) -> None:  # noqa: ANN401 - the server's
        self.file = file
        super().__init__(*given)

    def do_GET(self) -> None:
        """Send the page, if it is asked for by this machine's own name."""
        # A foreign page whose name leads to this address must not read the report.
        name = (self.headers.get("Host") or "").partition(":")[0]
        if name not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            content = self.file.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextmanager
def serve_page(file: Path, port: int) -> Iterator[str]:
    """Open a context in which a file is served on the loopback address; yield its address."""
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, file))
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"--serve: cannot listen on port {port}: {why}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
