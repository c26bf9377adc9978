"""A finished run or sweep is published: a copy without weights, with a card and a manifest.

The card is the page that a repository of results shows: command, tables and scenario.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, format_count
from simsplit.foreign import MOST_TABLE, read_bytes, read_facts, strip_controls
from simsplit.publishing.manifest import (
    CARD,
    find_runs,
    is_folder,
    list_files,
    on_hub,
    refuse_unlike_repository,
    write_manifest,
)
from simsplit.report.comparison import compare
from simsplit.report.grouping import load_entries
from simsplit.report.run_tables import show, write_heading
from simsplit.results import SCENARIO, SWEEP, Run, SweepDirectory, read_summary
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
_HEAD = """---
tags:
- simsplit
- split-learning
---
"""


def push(run: str | Path, repository: str, *, private: bool = False) -> str:
    """Publish a run or a sweep, and return where it is.

    Args:
        run: A run or sweep directory; all of a sweep's runs that have finished are published.
        repository: `OWNER/NAME` on the Hugging Face hub (a data set there), or a folder, whose path
            begins with `.`, `/` or `~`.
        private: Whether a new repository on the hub is private.
    """
    refuse_unlike_repository(repository)
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "published"
        _copy(Path(run), copy)
        (copy / CARD).write_text(_write_card(copy, repository), encoding="utf-8")
        refuse_secrets(copy)
        write_manifest(copy)
        if is_folder(repository):
            return _put(copy, Path(repository).expanduser())
        with on_hub(repository) as hub:
            hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
            hub.upload_folder(  # as one commit, which replaces what was published before
                repo_id=repository,
                repo_type="dataset",
                folder_path=copy,
                commit_message="Publish results of simsplit",
                delete_patterns=["**"],
            )
        return f"https://huggingface.co/datasets/{repository}"


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
        elif file.name == SWEEP:  # of these cells alone, and without its process
            facts, names = read_facts(file), {run.name for run in finished}
            cells = [cell for cell in facts.get("cells", ()) if cell.get("name") in names]
            kept = {key: facts[key] for key in ("name", "fields") if key in facts}
            _write(target, kept | {"cells": cells, "failed": {}})
        elif file.name == SCENARIO:
            text = file.read_text(encoding="utf-8")
            # whose home it was is nobody's business, and no other machine has that folder
            target.write_text(_leave_out_home(text, str(Path.home())), encoding="utf-8")
        else:
            shutil.copyfile(file, target)


def _leave_out_home(text: str, home: str) -> str:
    """Write ~ for a home folder; of one that is / nothing is left out."""
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?![^/'\"\s])", "~", text)


def _write(target: Path, facts: Mapping[str, Any]) -> None:
    target.write_text(json.dumps(facts, indent=2) + "\n")


def _write_card(folder: Path, repository: str) -> str:
    """Return the card of a copy that is about to be published."""
    runs = find_runs(folder)
    if (folder / SWEEP).exists():
        name, tables = SweepDirectory.load(folder).name, [compare(load_entries([folder])[0])]
        said = f"A sweep of {format_count(len(runs), 'run')}."
    else:
        run = Run.load(folder)
        name, said, tables = run.summary["name"], write_heading(run), show(run)
    where = "FOLDER" if is_folder(repository) else repository
    scenario = (runs[0] / SCENARIO).read_text(encoding="utf-8")
    lines = [
        f"# {name}",
        said,
        "Results of `simsplit`, a simulator of split learning. Weights are not published.",
        _fence(
            f"simsplit pull {where} published\n"
            f"simsplit {'compare' if (folder / SWEEP).exists() else 'show'} published\n"
            f"simsplit run published/{(runs[0] / SCENARIO).relative_to(folder)} --out again"
        ),
    ]
    for table in (each for each in tables if each.rows):
        lines += [table.heading, table.markdown()] if table.title else [table.markdown()]
    lines.append("## The scenario" if len(runs) == 1 else f"## The scenario of {runs[0].name}")
    lines.append(_fence(scenario.strip(), "yaml"))
    return _HEAD + strip_controls("\n\n".join(lines)) + "\n"


def _fence(text: str, language: str = "") -> str:
    """Fence a text with more ticks than it has in a row."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"


def refuse_secrets(folder: Path) -> None:
    """Raise RunError if a file has a secret of this machine's environment, or looks as if."""
    values = {
        value.encode(): name
        for name, value in os.environ.items()
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST
    }
    for file in [*list_files(folder), folder / CARD]:
        content = read_bytes(file, MOST_TABLE)
        found = [f"the value of ${name}" for value, name in values.items() if value in content]
        found += ["what looks like a key or token"] if _SECRET_FORMS.search(content) else []
        for what in found:
            where = file.relative_to(folder)
            raise RunError(f"{where} has {what} in it; nothing was published")


def _put(copy: Path, target: Path) -> str:
    """Put the copy where nothing is yet."""
    if target.exists():
        raise RunError(f"{target} exists already; choose another folder")
    try:
        shutil.copytree(copy, target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error}") from None
    return str(target)
