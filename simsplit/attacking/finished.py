"""A finished run can be attacked: its parts are built again from the last checkpoint.

The client encodes the targets again, so a run need not keep what crossed in training. The attack
has its own folder in the run directory, with a state from which it can resume.
"""

import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simsplit.assembly.state import restore
from simsplit.attacking import Attacking, Progress
from simsplit.errors import RunError, ScenarioError, SimsplitError
from simsplit.machine import find_device, pin_threads
from simsplit.opened_run import OpenedRun
from simsplit.plugins import Given, gather_plugins
from simsplit.results import SCENARIO, checkpoints
from simsplit.results.directory import encode_csv, make_folder, replace, writing
from simsplit.results.leak_table import COLUMNS, TABLE
from simsplit.results.locking import lock
from simsplit.scenario import Scenario, load_scenario
from simsplit.scenario.loading import pass_again

KEEP_EVERY_S = 20.0
_STATE, _SETTINGS = "state", "attack.json"
_ELSEWHERE = ("targets.", "data.source.", "data.public", "device", "threads")


def attack(
    path: str | Path,
    kind: str,
    changes: Mapping[str, str] | None = None,
    *,
    resume: bool = False,
    progress: Progress = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
    plugins: Given = (),
    data: Any = None,  # noqa: ANN401 - many forms
    model: Any = None,  # noqa: ANN401
    **columns: Any,  # noqa: ANN401
) -> OpenedRun:
    """Attack a finished run, and return the run with the attack's results.

    Args:
        path: Its run directory.
        kind: An attack that starts from the targets alone, such as unsplit.
        changes: Fields of the attack, and of `targets` (targets.count), as YAML.
        resume: Whether to continue where the same attack was interrupted.
        progress: A function called with an attack's name, the work done and the total work.
        warn: A function called with a sentence that a reader of the figures should know.
        plugins: Modules that the run was made with, or that define the attack.
        data: The data that were passed to the run, if any were.
        model: A network like the one that was passed to the run, if one was.
        columns: How `data` are read, as `run` takes them.

    >>> attack("runs/first", "unsplit", {"outer": "10"})  # doctest: +SKIP
    """
    run = OpenedRun.load(path)
    # A field is the attack's, except for a few names.
    fields = {
        name if name.startswith(_ELSEWHERE) else f"attacks.0.{name}": value
        for name, value in (changes or {}).items()
    }
    if any(name.startswith("attacks.0.tune") for name in fields):
        raise RunError(
            "tune: an attacker chooses before a run, on clients that it trains as the run does; "
            "name the attack in a scenario's attacks: and run that scenario"
        )
    # The run's own attacks are dropped first, or this one's fields would join those of the first.
    overrides = {"attacks": "[]", "attacks.0.kind": kind, **fields}
    known, file = gather_plugins(plugins), run.path / SCENARIO
    original = load_scenario(file, {}, known)
    if original.rests_on_disk:  # which attacks are refused under; the run is over
        overrides["engine"] = "inline"
    pass_again(original, data, model, **columns)
    try:
        scenario = load_scenario(file, overrides, known)
    except ScenarioError as error:
        raise _explain_missing_public(error, original, run.path) from None
    config = scenario.attacks[0]
    if config.threat.follows_training:
        raise RunError(
            f"{kind} follows training packet by packet; name it in a scenario's attacks: and run "
            "that scenario"
        )
    folder = run.path / "attacks" / config.title
    # Saved with the results: a call that resumes compares its own with them.
    own, targets = (each.model_dump(mode="json") for each in (config, scenario.targets))
    settings = json.dumps({"attack": own, "targets": targets}, indent=2)
    if not _is_finished(folder, settings, resume=resume):
        with pin_threads(scenario.threads):
            for note in _work(folder, original, scenario, settings, progress):
                warn(note)
    return run


def _explain_missing_public(error: ScenarioError, original: Scenario, path: Path) -> SimsplitError:
    """Return the error, or one that explains why a finished run has no public data."""
    if "needs public data" not in error.reason:
        return error
    words = ["simsplit", "run", str(path / SCENARIO), "--set", "data.auxiliary=0.2", "--out", "NEW"]
    elsewhere = " Or give it public texts: --set data.public=..." if original.reads_texts else ""
    kind = error.reason.partition(" ")[0]
    return RunError(
        f"{kind} learns from public data, and {path} has held out none; its clients have trained "
        f"on all of them. Train it anew with some held out: {shlex.join(words)}.{elsewhere}"
    )


def _is_finished(folder: Path, settings: str, *, resume: bool) -> bool:
    """Return whether the folder has this attack's results; raise RunError if it has another's."""
    if not (folder / _SETTINGS).exists():
        return False
    if not resume:
        raise RunError(
            f"{folder} already holds an attack; give it another name with --set name=..., or "
            "--resume to go on with it"
        )
    if (folder / _SETTINGS).read_text(encoding="utf-8") != settings:
        raise RunError(
            f"{folder} holds an attack with other settings ({_SETTINGS} has them); resume it with "
            "those, or give this one another name with --set name=..."
        )
    # The table is written after the recovered files, so it shows that the attack has ended.
    return (folder / f"{TABLE}.csv").exists()


def _work(
    folder: Path, original: Scenario, scenario: Scenario, settings: str, progress: Progress
) -> list[str]:
    """Run the attack, save its state from time to time, score it, and return its notes.

    Raise RunError if another process writes its folder; attacks with other names have others.
    """
    title, client = scenario.attacks[0].title, scenario.targets.client
    device = find_device(scenario.device)
    data = original.plant(scenario.prepare_data())  # what the run was trained on
    _, parts, at = restore(folder.parents[1], original, data, client, scenario)
    attacking = Attacking(scenario, parts, data, device)
    kept_at = time.monotonic()

    def report(what: str, done: int, total: int) -> None:
        """Report progress, and save the attack's state if the last save was some time ago."""
        nonlocal kept_at
        progress(what, done, total)
        own = what == title  # and not a point of its curve
        if own and done < total and time.monotonic() - kept_at > KEEP_EVERY_S:
            state, kept = attacking.attacks[title].state(), checkpoints.Progress(round=done)
            checkpoints.save(folder / _STATE, state, kept, title, keep=1)
            kept_at = time.monotonic()

    with writing(folder):
        make_folder(folder.parent)
        make_folder(folder)
    with lock(folder):
        with writing(folder):
            replace(folder / _SETTINGS, settings.encode())
        # The settings come first: by them a resume sees that a saved state is this attack's.
        kept = checkpoints.load(folder / _STATE, title)
        judged = attacking.judge(at.round, report, None if kept is None else kept[0])
        judged.save(folder, at.round)
        rows = [{name: row.get(name, "") for name in COLUMNS} for row in judged.leaks]
        replace(folder / f"{TABLE}.csv", encode_csv(rows))
        # Last: until the table is written, a resume needs the state.
        shutil.rmtree(folder / _STATE, ignore_errors=True)
    return judged.notes
