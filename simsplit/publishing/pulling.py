"""Published results are fetched, checked, and only then put where the user wants them.

A repository may hold anything. What its manifest lists is taken and nothing else: tables, facts and
pictures of the digests that were published. Each run is then read once, within bounds and by shape.
"""

import shutil
import tempfile
from pathlib import Path

from simsplit.errors import RunError
from simsplit.publishing.manifest import (
    MANIFEST,
    check_manifest,
    find_runs,
    is_folder,
    on_hub,
    refuse_unlike_repository,
)
from simsplit.results import SWEEP, Run, SweepDirectory
from simsplit.results.read_tables import explain_misfits

_WANTED = ["*.csv", "*.json", "*.png", "*.yaml"]


def pull(repository: str, out: str | Path) -> Path:
    """Fetch published results into a new folder, and return it.

    Args:
        repository: `OWNER/NAME` on the hub, or a folder, as for `push`.
        out: A folder that does not exist yet.
    """
    refuse_unlike_repository(repository)
    target = Path(out)
    if target.exists():
        raise RunError(f"{target} exists already; choose another folder")
    with tempfile.TemporaryDirectory() as made:
        fetched = Path(made) / "fetched"
        if is_folder(repository):
            fetched = Path(repository).expanduser()
        else:
            with on_hub(repository) as hub:
                hub.snapshot_download(
                    repository, repo_type="dataset", local_dir=fetched, allow_patterns=_WANTED
                )
        checked = Path(made) / "checked"
        for name in check_manifest(fetched):
            (checked / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fetched / name, checked / name)
        shutil.copyfile(fetched / MANIFEST, checked / MANIFEST)
        check_manifest(checked)  # of the copy, which nobody else can change
        _read_once(checked)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(checked, target)
        except OSError as error:
            raise RunError(f"cannot write {target}: {error}") from None
    return target


def _read_once(folder: Path) -> None:
    """Read everything that commands would read; raise RunError for what is no run's."""
    if (folder / SWEEP).exists():
        SweepDirectory.load(folder)
    for path in find_runs(folder):
        with explain_misfits([path]):
            run = Run.load(path)
            for table in (run.fields, run.summary, run.rounds, run.clients, run.wire, run.timing):
                assert table is not None, "reading raises"
