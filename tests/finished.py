"""Small runs that have ended: each made once for all workers, read by many tests, written by none.

A test that needs a reference or a run directory to read asks for one by its scenario, rather than
train for itself; one that changes a run directory takes a copy.
"""

import hashlib
import shutil
from pathlib import Path

from builders import run_to_end
from filelock import FileLock

from simsplit.scenario import Scenario


class FinishedRuns:
    """Run directories by their scenarios' digests, in a folder that all workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states: dict[Path, dict[str, tuple[int, int]]] = {}

    def __call__(self, given: Scenario) -> Path:
        """Return the read-only directory of a finished run of the scenario."""
        digest = hashlib.sha256(given.model_dump_json().encode()).hexdigest()[:20]
        folder = self._folder / digest
        self._folder.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "done").exists():  # nor where a worker was killed amid the run
                shutil.rmtree(folder, ignore_errors=True)
                allow_writing(run_to_end(given, folder / "run").path, allowed=False)
                (folder / "done").touch()
        self._states.setdefault(folder / "run", list_states(folder / "run"))
        return folder / "run"

    def copy(self, given: Scenario, to: Path) -> Path:
        """Copy the directory of a finished run, for a test that writes."""
        allow_writing(shutil.copytree(self(given), to), allowed=True)
        return to

    def check(self) -> None:
        """Assert that no test wrote; a superuser may, whatever the modes of files are."""
        changed = [path for path, states in self._states.items() if list_states(path) != states]
        assert not changed, f"a test has written what others read: {changed}"


def list_states(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file."""
    every = ((file, file.stat()) for file in path.rglob("*") if file.is_file())
    return {str(file): (state.st_size, state.st_mtime_ns) for file, state in every}


def allow_writing(path: Path, *, allowed: bool) -> None:
    for each in (path, *path.rglob("*")):
        mode = each.stat().st_mode
        each.chmod(mode | 0o200 if allowed else mode & ~0o222)
