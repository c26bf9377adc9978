"""Checkpoints of a run are written after its rounds; a resumed run continues from the newest.

Early stopping counts the evaluations since a figure last improved; a checkpoint holds its count.
A run that loses a host returns to its last checkpoint.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from simsplit.engine.pool import NOBODY, HostLost
from simsplit.errors import RunError, RunFailedError, ScenarioError
from simsplit.legs import ClientId
from simsplit.progress import Observer, RoundEnded
from simsplit.results import CHECKPOINTS, SCENARIO, RunWriter, checkpoints, read_summary
from simsplit.running.live import LiveRun
from simsplit.scenario import differences, load_scenario
from simsplit.scenario.declared_fields import StopConfig

LOSSES = 3
"""How many times hosts may be lost in the same round before the run gives up."""
CLIENT_LOSSES = 10
"""How many times a remote client may be lost in a run. A client that is lost more often, or more
than LOSSES times in a round, loses its place: others repeat rounds for it, and only so often."""


RETURNED = "sent_rounds_again"
"""The fact of a summary that a deployed run has gone back to a checkpoint."""


class Stopping:
    """What ends a run before its last round: a figure that no longer improves, or a budget."""

    def __init__(self, config: StopConfig | None, live: LiveRun) -> None:
        self.config, self.live = config, live

    @property
    def is_over(self) -> bool:
        """Whether the run has no further round."""
        return self.ends_after(self.live.progress.round)

    def ends_after(self, number: int) -> bool:
        """Return whether round `number` is the last one, by what is noted of it so far."""
        progress, config = self.live.progress, self.config
        if number >= self.live.program.rounds:
            return True
        if config is None:
            return False
        stale = config.metric is not None and progress.waited >= config.patience
        return stale or bool(self.live.find_spent(number))

    def note_spending(self, reports: Mapping[ClientId, Mapping[str, float]]) -> None:
        """Note the epsilon that each client of a round would reach in another whole round."""
        for client, report in reports.items():
            if "epsilon_next" in report:
                self.live.progress.epsilon_next[str(client)] = report["epsilon_next"]

    def note_figures(self, figures: Mapping[str, float], *, main: bool) -> None:
        """Compare a round's figure with the best, except in a warm-up."""
        config, progress = self.config, self.live.progress
        if config is None or config.metric is None or not main:
            return
        if config.metric not in figures:
            return
        value = figures[config.metric] * (-1 if config.smaller_is_better else 1)
        is_best = progress.best is None or value > progress.best + config.min_delta
        if is_best and not math.isnan(value):
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
        live.parts.pool.let_go(checkpoints.list_rounds(self.folder))
        self.kept = ended.number

    def undo_since(self, number: int) -> None:
        """Remove the checkpoints from a round on, as far as an earlier one is there."""
        if not (rounds := checkpoints.list_rounds(self.folder)):
            return
        # Before the first checkpoint of all is the beginning of the run.
        start = 0 if rounds[-1] == self.config.every else rounds[-1]
        self.kept = next((each for each in rounds if each < number), start)
        checkpoints.drop_after(self.folder, self.kept)

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
                    "cosine), and stop, checkpoint, threads, device, engine (but its stack), "
                    "observers and output. "
                    "Leave the fields as they were, or give another --out"
                )

    def _had_ended(self) -> bool:
        """Return whether the run had ended at the checkpoint, so that no round is sent again."""
        summary = read_summary(self.folder.parent)
        ended = summary.get("status") == "finished" and summary.get("rounds_done") == self.kept
        return ended and not summary.get(RETURNED, False)

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
        self.live.has_returned = not self._had_ended()
        self.writer.rewind(progress.tables)
        return [f"{complaint}; resumed from round {progress.round}" for complaint in complaints]


class LostHosts:
    """Recovery from lost hosts, which repeats a round a limited number of times."""

    def __init__(self, live: LiveRun, checkpoints: Checkpoints, observer: Observer) -> None:
        self.live, self.checkpoints, self.observer = live, checkpoints, observer
        self._lost: list[tuple[int, int]] = []
        """The round and the host of each loss."""
        self._gone: set[int] = set()
        """Clients whose expulsion has been handled."""

    @contextmanager
    def recover(self, number: int) -> Iterator[None]:
        """Open a context for a round; if a host is lost in it, restore the last checkpoint."""
        try:
            yield
        except HostLost as lost:
            self._put_back(number, lost)

    def _put_back(self, number: int, lost: HostLost) -> None:
        """Restore the last checkpoint; raise RunFailedError after too many losses in a round."""
        assert self.live.hosts is not None, "only a run on hosts loses one"
        # A client is expelled once only, so its loss does not count as a repeated one.
        if lost.host in self.live.hosts.left_out and lost.host not in self._gone:
            self._gone.add(lost.host)
        elif lost.host != NOBODY:
            self._lost.append((number, lost.host))
            self._refuse_too_many(number, lost)
        try:
            self._start_again(lost)
        except HostLost as another:
            self._put_back(number, another)

    def _refuse_too_many(self, number: int, lost: HostLost) -> None:
        """Expel a client that is lost too often; for another host, raise RunFailedError."""
        hosts = self.live.hosts
        assert hosts is not None, "only a run on hosts loses one"
        of_round = [host for each, host in self._lost if each == number]
        of_host = [each for each, host in self._lost if host == lost.host]
        times = of_round.count(lost.host) if self.live.parts.pool.remote else len(of_round)
        if times <= LOSSES and (len(of_host) <= CLIENT_LOSSES or not self.live.parts.pool.remote):
            return
        why = f"it was lost {len(of_host)} times, at last because of this: {lost.cause}"
        if lost.host not in self._gone and hosts.give_up(lost.host, why, number):
            self._gone.add(lost.host)
            return
        raise RunFailedError(
            f"round {number}: {lost}, for the {times}th time in this round; the run's state "
            f"after round {self.checkpoints.kept} is kept. {lost.advice}"
        ) from lost

    def _start_again(self, lost: HostLost) -> None:
        """Revive hosts, rebuild all parts, and load the last checkpoint into them."""
        live = self.live
        assert live.hosts is not None, "only a run on hosts loses one"
        if lost.since is not None:
            self.checkpoints.undo_since(lost.since)
        others = [str(host) for host in live.hosts.revive() if host != lost.host]
        too = f" (so was host {', '.join(others)})" if others else ""
        self.observer.warn(f"{lost}{too}; going on from the end of round {self.checkpoints.kept}")
        # Parts of this process are rebuilt as well: a round may have been half done.
        live.build()
        complaints = self.checkpoints.resume()
        if complaints is None:
            live.parts.pool.return_to(0)
            self.checkpoints.writer.rewind(self.checkpoints.writer.header_sizes)
        for complaint in complaints or ():
            self.observer.warn(complaint)
        live.leave_out(live.hosts.left_out)
        counted = live.progress.round == 0
        live.parts.exchange.announce(live.list_present(), counted=counted)
