"""A run that loses a host returns to its last checkpoint and continues from there."""

from collections.abc import Iterator
from contextlib import contextmanager

from simsplit.engine.pool import HostLost
from simsplit.errors import RunFailedError
from simsplit.progress import Observer
from simsplit.running.checkpointing import Checkpoints
from simsplit.running.live import LiveRun

LOSSES = 3
"""How many times hosts may be lost in the same round before the run gives up."""


class LostHosts:
    """Recovery from lost hosts, which repeats a round a limited number of times."""

    def __init__(self, live: LiveRun, checkpoints: Checkpoints, observer: Observer) -> None:
        self.live, self.checkpoints, self.observer = live, checkpoints, observer
        self._lost: list[int] = []

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
        if lost.host not in self.live.hosts.expelled:
            self._lost.append(number)
        times = self._lost.count(number)
        if times > LOSSES:
            raise RunFailedError(
                f"round {number}: {lost}, for the {times}th time in this round; the run's state "
                f"after round {self.checkpoints.kept} is kept. {lost.advice}"
            ) from lost
        try:
            self._start_again(lost)
        except HostLost as another:
            self._put_back(number, another)

    def _start_again(self, lost: HostLost) -> None:
        """Revive hosts, rebuild all parts, and load the last checkpoint into them."""
        live = self.live
        assert live.hosts is not None, "only a run on hosts loses one"
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
        live.leave_out(live.hosts.expelled)
        parts = live.parts
        parts.exchange.announce(parts.clients, counted=live.progress.round == 0)
