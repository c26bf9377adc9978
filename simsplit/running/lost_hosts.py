"""What happens when a host is lost: back to the last checkpoint, and on from there."""

from collections.abc import Callable

from simsplit.engine.pool import HostLost
from simsplit.errors import RunFailedError
from simsplit.progress import Observer
from simsplit.running.checkpointing import Checkpoints
from simsplit.running.live import LiveRun

LOSSES = 3
"""How often hosts may be lost in the same round before the run gives up."""


class LostHosts:
    """Repeats rounds after lost hosts, a limited number of times."""

    def __init__(self, live: LiveRun, checkpoints: Checkpoints, observer: Observer) -> None:
        self.live, self.checkpoints, self.observer = live, checkpoints, observer
        self._lost: list[int] = []

    def despite(self, number: int, take: Callable[[int], None]) -> None:
        """Train a round; if a host is lost, restore the last checkpoint."""
        try:
            take(number)
        except HostLost as lost:
            self._put_back(number, lost)

    def _put_back(self, number: int, lost: HostLost) -> None:
        assert self.live.hosts is not None, "none other can be lost"
        if lost.host not in self.live.hosts.expelled:  # which happens but once
            self._lost.append(number)
        times = self._lost.count(number)
        if times > LOSSES:
            raise RunFailedError(
                f"round {number}: {lost}, for the {times}th time in this round; the run is kept as "
                f"it was after round {self.checkpoints.kept}. {lost.advice}"
            ) from lost
        try:
            self._start_again(lost)
        except HostLost as another:
            self._put_back(number, another)

    def _start_again(self, lost: HostLost) -> None:
        live = self.live
        assert live.hosts is not None, "none other can be lost"
        others = [str(host) for host in live.hosts.revive() if host != lost.host]
        too = f" (so was host {', '.join(others)})" if others else ""
        self.observer.warn(f"{lost}{too}; going on from the end of round {self.checkpoints.kept}")
        live.build()
        complaints = self.checkpoints.take_up()
        if complaints is None:
            live.parts.pool.back_to(0)
            self.checkpoints.writer.rewind(self.checkpoints.writer.empty())
        for complaint in complaints or ():
            self.observer.warn(complaint)
        live.leave_out(live.hosts.expelled)
        parts = live.parts
        parts.exchange.announce(parts.clients, counted=live.progress.round == 0)
