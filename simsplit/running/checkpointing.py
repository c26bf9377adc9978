"""Checkpoints of a run are written after its rounds; a resumed run continues from the newest.

Early stopping counts the evaluations since a figure last improved; a checkpoint holds its count.
"""

from contextlib import suppress
from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.progress import Observer, RoundEnded
from simsplit.results import CHECKPOINTS, SCENARIO, RunWriter, checkpoints
from simsplit.running.live import LiveRun
from simsplit.scenario import differences, load_scenario
from simsplit.scenario.fields import StopConfig


class Stopping(Observer):
    """The observer that ends a run before its last round."""

    def __init__(self, config: StopConfig | None, live: LiveRun) -> None:
        self.config, self.live = config, live

    @property
    def is_over(self) -> bool:
        """Whether the run has no further round."""
        progress = self.live.progress
        if progress.round >= self.live.program.rounds:
            return True
        return self.config is not None and progress.waited >= self.config.patience

    def round(self, ended: RoundEnded) -> None:
        """Compare the round's figure with the best, except in a warm-up."""
        config, progress = self.config, self.live.progress
        if config is None or not ended.main or config.metric not in ended.figures:
            return
        value = ended.figures[config.metric] * (-1 if config.smaller_is_better else 1)
        if progress.best is None or value > progress.best + config.min_delta:
            progress.best, progress.waited = value, 0
        else:
            progress.waited += 1


class Checkpoints(Observer):
    """The observer that writes the checkpoints from which a run resumes."""

    def __init__(self, live: LiveRun, path: Path, writer: RunWriter, stopping: Stopping) -> None:
        self.live, self.folder, self.writer = live, path / CHECKPOINTS, writer
        self.stopping = stopping
        self.config = live.scenario.checkpoint
        self.digest = checkpoints.compute_digest(live.scenario.identity())
        self.kept = 0
        """The round of the last checkpoint."""

    def round(self, ended: RoundEnded) -> None:
        """Write a checkpoint if one is due or the run is over."""
        every = self.config.every
        if not self.stopping.is_over and (every == 0 or ended.number % every):
            return
        live, progress = self.live, self.live.progress
        wire = live.parts.wire
        progress.bytes_up, progress.bytes_down = wire.up, wire.down
        progress.tables = self.writer.sync_tables()
        progress.holder = live.parts.exchange.holder
        # Remote clients keep their own state; they must have kept it before the checkpoint exists.
        live.parts.pool.keep(ended.number)
        checkpoints.save(self.folder, live.state(), progress, self.digest, self.config.keep)
        self.kept = ended.number

    def _refuse_another(self) -> None:
        """Raise RunError, with the fields, if the run's own scenario differs from this one."""
        scenario, path = self.live.scenario, self.folder.parent
        if not self.folder.exists():
            return
        with suppress(ScenarioError, OSError):  # then loading the checkpoint reports it
            before = load_scenario(path / SCENARIO, plugins=scenario.plugins)
            if changes := differences(before, scenario):
                raise RunError(
                    f"{path} was run with another scenario: {'; '.join(changes)}. Only its length "
                    "may change (unless the learning rate depends on it, as under lr_schedule: "
                    "cosine), and stop, checkpoint, threads, device, engine, observers and output. "
                    "Leave the fields as they were, or give another --out"
                )

    def resume(self) -> list[str] | None:
        """Resume from the newest intact checkpoint, and return a warning for each damaged one.

        Return None if there is no checkpoint.
        """
        self._refuse_another()
        checkpoint = checkpoints.load(self.folder, self.digest)
        if checkpoint is None:
            return None
        state, progress, complaints = checkpoint
        rounds = self.live.program.rounds
        if rounds and not progress.round:
            raise RunError(
                f"{self.folder.parent} was not trained (schedule.rounds: 0), so it cannot be "
                "resumed; give another --out for a run that trains"
            )
        if progress.round > rounds:
            raise RunError(
                f"{self.folder.parent} has trained {progress.round} rounds already, but the "
                f"scenario ends after {rounds}; give another --out for a shorter run"
            )
        if progress.holder is not None and progress.holder >= self.live.scenario.clients.count:
            raise RunError(f"{self.folder.parent}: the checkpoint names a client that it has not")
        self.kept = progress.round
        with checkpoints.refuse_misfits(self.folder.parent):
            self.live.load(state, progress)
        self.writer.rewind(progress.tables)
        return [f"{complaint}; resumed from round {progress.round}" for complaint in complaints]
