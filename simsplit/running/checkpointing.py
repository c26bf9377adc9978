"""Checkpoints of a run: written after rounds, taken up where it goes on."""

from contextlib import suppress
from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.progress import Observer, RoundTold
from simsplit.results import CHECKPOINTS, SCENARIO, RunWriter, checkpoints
from simsplit.running.live import LiveRun
from simsplit.running.stopping import Stopping
from simsplit.scenario import differences, load_scenario


class Checkpoints(Observer):
    """Writes the checkpoints that a run resumes from."""

    def __init__(self, live: LiveRun, path: Path, writer: RunWriter, stopping: Stopping) -> None:
        self.live, self.folder, self.writer = live, path / CHECKPOINTS, writer
        self.stopping = stopping
        self.config = live.scenario.checkpoint
        self.digest = checkpoints.digest_of(live.scenario.identity())
        self.kept = 0
        """The round of the last checkpoint."""

    def round(self, told: RoundTold) -> None:
        """Write a checkpoint if one is due or the run is over."""
        every = self.config.every
        if not self.stopping.enough and (every == 0 or told.number % every):
            return
        live, progress = self.live, self.live.progress
        wire = live.parts.wire
        progress.bytes_up, progress.bytes_down = wire.up, wire.down
        progress.tables = self.writer.sizes()
        progress.holder = live.parts.exchange.holder
        live.parts.pool.keep(told.number)
        checkpoints.save(self.folder, live.state(), progress, self.digest, self.config.keep)
        self.kept = told.number

    def _refuse_another(self) -> None:
        """RunError that names the fields in which the run's own scenario differs."""
        scenario, path = self.live.scenario, self.folder.parent
        if not self.folder.exists():
            return
        with suppress(ScenarioError, OSError):  # then checkpoints themselves tell
            before = load_scenario(path / SCENARIO, plugins=scenario.plugins)
            if changes := differences(before, scenario):
                raise RunError(
                    f"{path} was run with another scenario: {'; '.join(changes)}. Only its length "
                    "may change (unless the learning rate depends on it, as under lr_schedule: "
                    "cosine), and stop, checkpoint, threads, device, engine, observers and output. "
                    "Leave the fields as they were, or give another --out"
                )

    def take_up(self) -> list[str] | None:
        """Go back to the newest whole one, with a word on each that is damaged.

        None where there is none to take up.
        """
        self._refuse_another()
        found = checkpoints.load(self.folder, self.digest)
        if found is None:
            return None
        state, progress, complaints = found
        rounds = self.live.program.rounds
        if rounds and not progress.round:
            raise RunError(
                f"{self.folder.parent} was not trained (schedule.rounds: 0), and its tables say "
                "so; give another --out for a run that is"
            )
        if progress.round > rounds:
            raise RunError(
                f"{self.folder.parent} has trained {progress.round} rounds already, and is to end "
                f"after {rounds}; give another --out for a shorter run"
            )
        self.kept = progress.round
        self.writer.rewind(progress.tables)
        self.live.load(state, progress)
        return [f"{complaint}; going on from round {progress.round}" for complaint in complaints]
