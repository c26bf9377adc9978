"""A finished run or sweep is published: a copy without weights, with a card and a manifest."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.foreign import MOST_TABLE, read_bytes, read_facts
from simsplit.publishing.card import write_card
from simsplit.publishing.manifest import CARD, find_runs, list_files, write_manifest
from simsplit.publishing.places import is_folder, on_hub, refuse_unlike_repository
from simsplit.results import SCENARIO, SWEEP, read_summary
from simsplit.results.directory import ENVIRONMENT

_KEPT = (
    *("started", "commit", "python", "packages", "platform", "processors", "instructions"),
    *("device", "gpu", "threads", "stack"),
)
"""What a published `environment.json` says: no command, host, process or session."""
_SECRET_NAMES = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)", re.IGNORECASE)
_SECRET_FORMS = re.compile(rb"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|-----BEGIN [A-Z ]*KEY")
_SHORTEST = 8
"""Characters of a secret, at least: shorter values of variables are words such as `none`."""


def push(run: str | Path, repository: str, *, private: bool = False) -> str:
    """Publish a run or a sweep, and return where it is.

    Args:
        run: A run or sweep directory; all of a sweep's runs that have finished are published.
        repository: `OWNER/NAME` on the Hugging Face hub (a data set there), or a folder, whose path
            begins with `.`, `/` or `~`.
        private: Whether a new repository on the hub is private.
    """
    folder = Path(run)
    refuse_unlike_repository(repository)
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "published"
        _copy(folder, copy)
        (copy / CARD).write_text(write_card(copy, repository), encoding="utf-8")
        refuse_secrets(copy)
        write_manifest(copy)
        if is_folder(repository):
            return _put(copy, Path(repository).expanduser())
        return _upload(copy, repository, private=private)


def _copy(folder: Path, copy: Path) -> None:
    """Copy what is published of a run or sweep."""
    runs = find_runs(folder)
    finished = [run for run in runs if read_summary(run).get("status") in ("finished", "pruned")]
    if not finished:
        raise RunError(f"{folder} has not finished; go on with it with --resume")
    unfinished = set(runs) - set(finished)
    for file in list_files(folder):
        if unfinished & {file.parent, *file.parents}:
            continue
        target = copy / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.name == ENVIRONMENT:
            facts = read_facts(file)
            _write(target, {key: facts[key] for key in _KEPT if key in facts})
        elif file.name == SWEEP:
            left = {run.name for run in finished}
            _write(target, _select_cells(read_facts(file), left))
        elif file.name == SCENARIO:
            text = file.read_text(encoding="utf-8")
            # whose home it was is nobody's business, and no other machine has that folder
            target.write_text(text.replace(str(Path.home()), "~"), encoding="utf-8")
        else:
            shutil.copyfile(file, target)


def _select_cells(facts: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the content of `sweep.json` with these cells alone, and without its process."""
    cells = [cell for cell in facts.get("cells", ()) if cell.get("name") in names]
    rest = {key: facts[key] for key in ("name", "fields") if key in facts}
    return {**rest, "cells": cells, "failed": {}}


def _write(target: Path, facts: Mapping[str, Any]) -> None:
    target.write_text(json.dumps(facts, indent=2) + "\n")


def refuse_secrets(folder: Path) -> None:
    """Raise RunError if a file has a secret of this machine's environment, or looks as if."""
    values = {
        value.encode(): name
        for name, value in os.environ.items()
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST
    }
    for file in [*list_files(folder), folder / CARD]:
        content = read_bytes(file, MOST_TABLE)
        for what in _find_secrets(content, values):
            where = file.relative_to(folder)
            raise RunError(f"{where} has {what} in it; nothing was published")


def _find_secrets(content: bytes, values: Mapping[bytes, str]) -> Iterator[str]:
    yield from (f"the value of ${name}" for value, name in values.items() if value in content)
    if _SECRET_FORMS.search(content):
        yield "what looks like a key or token"


def _put(copy: Path, target: Path) -> str:
    """Put the copy where nothing is yet."""
    if target.exists():
        raise RunError(f"{target} exists already; choose another folder")
    try:
        shutil.copytree(copy, target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error}") from None
    return str(target)


def _upload(copy: Path, repository: str, *, private: bool) -> str:
    """Upload the copy to the hub, as one commit that replaces what was published before."""
    with on_hub(repository) as hub:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=copy,
            commit_message="Publish results of simsplit",
            delete_patterns=["**"],
        )
    return f"https://huggingface.co/datasets/{repository}"
