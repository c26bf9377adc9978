"""An attack on a run that is over: its parts put together again as the last checkpoint has them.

What a client would have sent for the targets it sends now, so no transcript need be kept. The
attack has a folder of its own in the run directory, and in it a state from which it resumes.
"""

import json
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from simsplit.assembly.restored import restore
from simsplit.attacking import Attacking, Progress
from simsplit.errors import RunError, ScenarioError, SimsplitError
from simsplit.machine import device_of, pinned_threads
from simsplit.plugins import Given, gathered
from simsplit.results import SCENARIO, Run, checkpoints
from simsplit.results.directory import replace, writing
from simsplit.results.recovers import RECOVERS
from simsplit.scenario import Scenario, load_scenario

KEEP_EVERY_S = 20.0
_STATE, _TOLD = "state", "attack.json"


def _unseen(what: str, done: int, total: int) -> None:
    del what, done, total


def attack(
    path: str | Path,
    kind: str,
    changes: Mapping[str, str] | None = None,
    *,
    resume: bool = False,
    progress: Progress = _unseen,
    plugins: Given = (),
) -> Run:
    """Attack a run that is over.

    Args:
        path: Its run directory.
        kind: An attack that starts from the targets alone, such as unsplit.
        changes: Its fields, and those of `targets` (targets.count), as YAML.
        resume: Go on where the same attack was interrupted.
        progress: Told which attack has done so many of so many pieces of work.
        plugins: Modules that the run was made with, or that the attack is from.

    >>> attack("runs/first", "unsplit", {"outer": "10"})  # doctest: +SKIP
    """
    run = Run.load(path)
    fields = {_field(name): value for name, value in (changes or {}).items()}
    overrides = {"attacks": "[]", "attacks.0.kind": kind, **fields}
    known, file = gathered(plugins), run.path / SCENARIO
    original = load_scenario(file, {}, known)
    try:
        scenario = load_scenario(file, overrides, known)
    except ScenarioError as error:
        raise _without_public(error, original, run.path) from None
    config = scenario.attacks[0]
    if config.online:
        raise RunError(
            f"{kind} follows training packet by packet; name it in a scenario's attacks: and run "
            "that scenario"
        )
    folder, told = run.path / "attacks" / config.title, _told(scenario)
    if not _finished(folder, told, resume=resume):
        with pinned_threads(scenario.threads):
            _OnFinished(run.path, original, scenario, folder, progress).work(told)
    return Run.load(path)


def _without_public(error: ScenarioError, original: Scenario, path: Path) -> SimsplitError:
    """The error; in other words where public data are lacking, as a run that is over has none."""
    if "needs public data" not in error.reason:
        return error
    words = ["simsplit", "run", str(path / SCENARIO), "--set", "data.auxiliary=0.2", "--out", "NEW"]
    elsewhere = " Or give it public texts: --set data.public=..." if original.reads_texts else ""
    kind = error.reason.partition(" ")[0]
    return RunError(
        f"{kind} learns from public data, and {path} has held out none; its clients have trained "
        f"on all of them. Train it anew with some held out: {shlex.join(words)}.{elsewhere}"
    )


def _field(name: str) -> str:
    """An attack's own field, unless it is the scenario's."""
    elsewhere = ("targets.", "data.source.", "data.public", "device", "threads")
    return name if name.startswith(elsewhere) else f"attacks.0.{name}"


def _told(scenario: Scenario) -> str:
    """The attack and its targets, as they are kept beside what comes of them."""
    config, targets = scenario.attacks[0], scenario.targets
    told = {"attack": config.model_dump(mode="json"), "targets": targets.model_dump(mode="json")}
    return json.dumps(told, indent=2)


def _finished(folder: Path, told: str, *, resume: bool) -> bool:
    """Whether this very attack is there already; RunError where another lies in its place."""
    if not (folder / _TOLD).exists():
        return False
    if not resume:
        raise RunError(
            f"{folder} already holds an attack; give it another name with --set name=..., or "
            "--resume to go on with it"
        )
    if (folder / _TOLD).read_text(encoding="utf-8") != told:
        raise RunError(
            f"{folder} holds an attack with other settings ({_TOLD} has them); resume it with "
            "those, or give this one another name with --set name=..."
        )
    return any((folder / f"{each.table}.csv").exists() for each in RECOVERS.values())


class _OnFinished:
    """One attack in progress."""

    def __init__(
        self, path: Path, original: Scenario, scenario: Scenario, folder: Path, progress: Progress
    ) -> None:
        self.folder, self.progress = folder, progress
        self.title = scenario.attacks[0].title
        device = device_of(scenario.device)
        data = scenario.prepared()
        client = scenario.targets.client
        _, parts, self.done = restore(path, original, data, client, scenario)
        self.attacking = Attacking(scenario, parts, data, device)
        self._kept_at = time.monotonic()

    def work(self, told: str) -> None:
        """Recover, keeping the state now and then; then score."""
        import pandas as pd

        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace(self.folder / _TOLD, told.encode())
        number, kept = self.done.round, checkpoints.load(self.folder / _STATE, self.title)
        judged = self.attacking.judge(number, self._tell, None if kept is None else kept[0])
        judged.save(self.folder, number)
        for name, columns in Attacking.columns(self.attacking.scenario).items():
            table = pd.DataFrame(judged.tables[name], columns=list(columns))
            replace(self.folder / f"{name}.csv", table.to_csv(index=False).encode())
        shutil.rmtree(self.folder / _STATE, ignore_errors=True)

    def _tell(self, what: str, done: int, total: int) -> None:
        self.progress(what, done, total)
        own = what == self.title  # and not a point of its curve
        if own and done < total and time.monotonic() - self._kept_at > KEEP_EVERY_S:
            state, at = self.attacking.attacks[self.title].state(), checkpoints.Progress(round=done)
            checkpoints.save(self.folder / _STATE, state, at, self.title, keep=1)
            self._kept_at = time.monotonic()
