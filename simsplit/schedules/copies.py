"""SplitFed v1's trunk copies: a client's whole round against a trunk of its own.

Copies do not depend on each other. So each is trained where its client lives, one after another in
one server's modules; only optimizer moments are kept apart between rounds.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from simsplit.engine.pool import Job, Outcome
from simsplit.packets import ClientId
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.pace import RoundPace


class TrunkCopies:
    """One process's clients, trained round by round against copies of the trunk."""

    def __init__(
        self,
        exchange: Exchange,
        pace: RoundPace,
        *,
        keep_moments: bool,
        elsewhere: "Callable[[], TrunkCopies]",
    ) -> None:
        """Train here; `elsewhere` makes another one, with its own trunk."""
        self.exchange, self.pace, self._elsewhere = exchange, pace, elsewhere
        self.keep_moments = keep_moments
        self._moments: dict[ClientId, dict[str, Tensor]] = {}

    def train(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> Outcome:
        """Take a client's steps, and return its trunk's weights unless it dropped out."""
        exchange, learner = self.exchange, self.exchange.server.learner
        with exchange.moment.enter_round(job.round, job.phase, [client]), exchange.name_failures():
            exchange.server.enter(job.phase, job.lr_factor)
            # The modules still have the moments of the client that was trained here before.
            learner.forget_moments()
            learner.take({**trunk, **self._moments.get(client, {})})
            learner.anchor()
            if exchange.watch is not None:
                exchange.watch.restart()
            self.pace.restart({client: job.spent_s})
            for left in range(job.steps - 1, -1, -1):
                if self.pace.stops(client):
                    break
                (exchange.abandon if job.drops and left == 0 else exchange.step)(client)
        if self.keep_moments:
            self._moments[client] = _copy(learner.moments())
        return Outcome(
            report=exchange.collect_reports([client])[client],
            counts=exchange.wire.take(),
            trunk=None if job.drops else _copy(learner.weights()),
            late=self.pace.is_late(client),
            readings=exchange.sensor.take() if exchange.sensor else None,
        )

    @property
    def draws(self) -> bool:
        """Whether the trunk has dropout, which draws from torch's one global stream."""
        return self.exchange.server.learner.random

    def make_another(self) -> "TrunkCopies":
        """Make another one with its own trunk; both share moments and trust."""
        made = self._elsewhere()
        made._moments = self._moments
        made.exchange.server.trust = self.exchange.server.trust
        return made

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer moments of each copy."""
        return {
            f"{client}/{name}": tensor
            for client, moments in self._moments.items()
            for name, tensor in moments.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._moments.clear()
        for key, tensor in state.items():
            client, name = key.split("/", 1)
            self._moments.setdefault(int(client), {})[name] = tensor


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
