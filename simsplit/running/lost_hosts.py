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
CLIENT_LOSSES = 10
"""How many times a remote client may be lost in a run. A client that is lost more often, or more
than LOSSES times in a round, loses its place: others repeat rounds for it, and only so often."""


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
        else:
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
