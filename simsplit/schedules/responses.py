"""The responses to detectors' verdicts: clients are left out or count less, turns are undone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simsplit.detectors import TrunkTurn
from simsplit.errors import RunFailedError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import HandOver, LoadShared, Receive, SharedState
from simsplit.schedules.cohort import Lineup
from simsplit.schedules.exchange import Exchange
from simsplit.states import select_below

DOWNWEIGHT = 0.1
"""The weight of a flagged client's work under `response: downweight`."""


class Guard:
    """The clients that were flagged so far, and what follows for them."""

    def __init__(self) -> None:
        self.barred: set[ClientId] = set()
        self.trust: dict[ClientId, float] = {}
        """The weight of a client's work, where it is not 1."""

    def admit(self, lineup: Lineup) -> Lineup:
        """Return the lineup without the clients that are barred.

        Raises:
            RunFailedError: where nobody is left.
        """
        steps = {c: count for c, count in lineup.steps.items() if c not in self.barred}
        if lineup.steps and not steps:
            raise RunFailedError(
                f"round {lineup.round}: every client that would take part has been flagged; a "
                "threshold that flags fewer, or response: none, would let the run go on"
            )
        return replace(lineup, steps=steps, drops=lineup.drops & steps.keys())

    def respond(self, flagged: Mapping[str, Collection[ClientId]]) -> bool:
        """Note flagged clients, by response, and tell whether the round is to be undone."""
        # A barred client took no part, so a flag on it is no reason to undo the round.
        undone = set(flagged.get("rollback", ())) - self.barred
        self.barred |= undone | set(flagged.get("skip", ()))
        self.trust |= dict.fromkeys(flagged.get("downweight", ()), DOWNWEIGHT)
        return bool(undone)

    def state(self) -> dict[str, Tensor]:
        """Return the clients that are barred, and the ones that count less."""
        return {
            "barred": torch.tensor(sorted(self.barred), dtype=torch.int64),
            "trust": torch.tensor(sorted(self.trust), dtype=torch.int64),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.barred = set(state["barred"].tolist())
        self.trust.clear()
        self.trust.update(dict.fromkeys(state["trust"].tolist(), DOWNWEIGHT))


Judge = Callable[[Sequence[TrunkTurn]], Collection[ClientId]]
"""Picks the clients whose turns are to be undone."""


@dataclass(frozen=True)
class _Kept:
    turn: TrunkTurn
    shared: Mapping[str, Tensor]
    """The shared tensors that the client would hand on."""


class Turns:
    """Each client's last turn over the trunk, and the way back to an earlier one."""

    def __init__(self, exchange: Exchange, *, hands_over: bool) -> None:
        """Watch an exchange; `hands_over`: shared weights go from client to client."""
        self.exchange, self.hands_over = exchange, hands_over
        self.judge: Judge = lambda turns: ()
        self.undone: set[ClientId] = set()
        """The clients whose turns were undone in this round."""
        self._kept: dict[ClientId, _Kept] = {}
        self._before: dict[str, Tensor] = {}

    @property
    def turns(self) -> list[TrunkTurn]:
        """The last turn of every client, oldest first."""
        return [kept.turn for kept in self._kept.values()]

    def begin(self) -> None:
        """Begin a client's turn."""
        self._before = self._weights()

    def end(self, client: ClientId) -> None:
        """End a client's turn: keep its result, unless it is to be undone."""
        shared = self._get_shared(client) if self.hands_over else {}
        # Taken out first, so that the newest turn stands last.
        self._kept.pop(client, None)
        self._kept[client] = _Kept(TrunkTurn(client, self._before, self._weights()), shared)
        bad = self.judge(self.turns)
        if client in bad:
            self.undone.add(client)
            self._go_back(client, bad)

    def forget(self, clients: Collection[ClientId]) -> None:
        """Forget the turns of clients that the run continues without."""
        for client in clients:
            self._kept.pop(client, None)

    def _go_back(self, client: ClientId, bad: Collection[ClientId]) -> None:
        """Return to the newest turn of a client that is not bad; if all are, to before this one."""
        benign = [kept for number, kept in self._kept.items() if number not in bad]
        learner = self.exchange.server.learner
        learner.take(benign[-1].turn.after if benign else self._before)
        # The moments come from the undone steps, and earlier ones were not kept.
        learner.forget_moments()
        if benign and benign[-1].shared:
            self._give(client, benign[-1].shared)

    def _get_shared(self, client: ClientId) -> dict[str, Tensor]:
        """Return what a client would hand on now; a remote client's is under its seal."""
        if not self.exchange.pool.remote:
            held = self.exchange.pool.ask(client, SharedState())
            return {name: tensor.detach().clone() for name, tensor in held.items()}
        packet = self.exchange.pool.ask(client, HandOver(0))
        if packet.sealed is None:
            return {}
        return {"sealed": packet.sealed, "of": torch.tensor([client, packet.step])}

    def _give(self, client: ClientId, shared: Mapping[str, Tensor]) -> None:
        """Give a client the shared tensors that were kept."""
        if "sealed" in shared:
            sender, step = shared["of"].tolist()
            packet = Packet(sender, Leg.HANDOVER, 0, step, (), sealed=shared["sealed"])
            self.exchange.pool.ask(client, Receive(packet))
            return
        # Loaded moments become the optimizer's own, which changes them; so copies are loaded.
        copied = {name: tensor.clone() for name, tensor in shared.items()}
        self.exchange.pool.ask(client, LoadShared(copied))

    def _weights(self) -> dict[str, Tensor]:
        weights = self.exchange.server.learner.weights()
        return {
            name: tensor.detach().cpu().clone()
            for name, tensor in weights.items()
            if tensor.is_floating_point()
        }

    def state(self) -> dict[str, Tensor]:
        """Return all turns, in their order."""
        held: dict[str, Tensor] = {"order": torch.tensor(list(self._kept), dtype=torch.int64)}
        for client, kept in self._kept.items():
            parts = {"before": kept.turn.before, "after": kept.turn.after, "shared": kept.shared}
            for part, tensors in parts.items():
                held |= {f"{client}/{part}/{name}": tensor for name, tensor in tensors.items()}
        return held

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._kept = {}
        compared = self._weights().keys()  # earlier versions also kept weights that never learn
        for client in state["order"].tolist():
            before, after, shared = (
                select_below(state, f"{client}/{part}/") for part in ("before", "after", "shared")
            )
            before, after = ({n: each[n] for n in compared} for each in (before, after))
            self._kept[client] = _Kept(TrunkTurn(client, before, after), shared)
