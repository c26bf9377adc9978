"""A manifest lists what was published, so that a copy can be checked before it is read.

Tables, facts and pictures are published; weights, tracebacks and whatever else lies in a run
directory are not. Nothing of this list is ever unpickled. The place is a repository of the Hugging
Face hub, or a folder.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from simsplit.errors import RunError, SimsplitError
from simsplit.foreign import MOST_TABLE, read_bytes, read_facts
from simsplit.models.hub import hush_hub
from simsplit.results import SCENARIO, SWEEP
from simsplit.wires.facts import FACTS as TRANSCRIPT

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MANIFEST = "manifest.json"
CARD = "README.md"
_SUFFIXES = (".csv", ".json", ".png", ".yaml")
_LEFT_OUT = ("checkpoints", "export")
_MOST_FILES = 20_000
_PART = re.compile(r"[^\x00-\x1f\x7f/\\:]{1,255}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_folder(repository: str) -> bool:
    """Return whether a repository is a folder of this machine."""
    return repository.startswith((".", "/", "~"))


def refuse_unlike_repository(repository: str) -> None:
    """Raise SimsplitError for what is neither a repository of the hub nor a folder."""
    if not is_folder(repository) and not _REPOSITORY.fullmatch(repository):
        raise SimsplitError(
            f"got the repository '{repository}'; give OWNER/NAME on the hub, or a folder such as "
            "./published"
        )


@contextmanager
def on_hub(repository: str) -> "Iterator[HfApi]":
    """Open a context with the hub's client; whatever it raises becomes a RunError."""
    from huggingface_hub import HfApi

    try:
        with hush_hub():
            yield HfApi()
    except SimsplitError:
        raise
    except Exception as error:  # the hub's client raises from half a dozen packages
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RunError(
            f"{repository}: the hub answered: {first} (a token with access: hf auth login)"
        ) from error


def list_files(folder: Path) -> list[Path]:
    """List the files of a run or sweep that are published, in order; of transcripts, none is."""
    wires = {file.parent for file in folder.rglob(TRANSCRIPT)}
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and not file.is_symlink()
        and wires.isdisjoint(file.parents)
        and is_publishable(file.relative_to(folder).as_posix())
    ]


def is_publishable(name: str) -> bool:
    """Return whether a file below a run or sweep directory is one that is published."""
    path = PurePosixPath(name)
    return (
        all(_PART.fullmatch(part) and not part.startswith(".") for part in path.parts)
        and not path.is_absolute()
        and path.suffix in _SUFFIXES
        and name != MANIFEST
        and not any(part in _LEFT_OUT for part in path.parts)
    )


def find_runs(folder: Path) -> list[Path]:
    """Return the run directories of a run or sweep; raise RunError if there are none."""
    if (folder / SCENARIO).is_file():
        return [folder]
    cells = sorted(file.parent for file in folder.glob(f"*/{SCENARIO}"))
    if not ((folder / SWEEP).is_file() and cells):
        raise RunError(f"{folder} is neither a run nor a sweep with runs in it")
    return cells


def write_manifest(folder: Path) -> None:
    """Write the manifest of a folder that is about to be published."""
    files = list_files(folder)
    if len(files) > _MOST_FILES:
        raise RunError(
            f"{folder} has {len(files):,} files, and at most {_MOST_FILES:,} are published together"
        )
    digests = {file.relative_to(folder).as_posix(): _digest(file) for file in files}
    text = json.dumps({"files": digests}, indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(f"{text}\n")


def check_manifest(folder: Path) -> dict[str, str]:
    """Return the digests by file; raise RunError unless they are those of the folder's files."""
    try:
        files = read_facts(folder / MANIFEST).get("files")
    except (OSError, ValueError) as error:
        raise RunError(f"{MANIFEST} cannot be read ({error}): no run was published there") from None
    if not (isinstance(files, dict) and 0 < len(files) <= _MOST_FILES):
        raise RunError(f"{MANIFEST}: must list the files, at most {_MOST_FILES:,}")
    for problem in _find_problems(folder, files):
        raise RunError(problem)
    return {str(name): str(digest) for name, digest in files.items()}


def _find_problems(folder: Path, files: Mapping[object, object]) -> Iterator[str]:
    """Yield what is wrong with the files of a manifest."""
    for name, digest in files.items():
        if not (isinstance(name, str) and is_publishable(name)):
            yield f"{MANIFEST}: {str(name)[:80]!r} is no file that a run has"
        file = folder / str(name)
        if file.is_symlink() or not file.is_file():
            yield f"{name} is in {MANIFEST} but not there"
        elif _digest(file) != digest:
            yield f"{name} is not what was published: its digest is another"


def _digest(file: Path) -> str:
    try:
        content = read_bytes(file, MOST_TABLE)
    except (OSError, ValueError) as error:
        raise RunError(f"{file.name} cannot be read: {error}") from None
    return hashlib.sha256(content).hexdigest()
