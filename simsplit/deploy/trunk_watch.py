"""A watch over the trunk of a deployed server finds the client whose steps have spoilt it.

Finite numbers from one client can make the trunk overflow in the step of another. So the watch
remembers whose steps have made the trunk's weights or moments larger. The honest client in whose
step the overflow shows is not blamed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.engine.pool import ClientAtFault
from simsplit.packets import ClientId, Packets
from simsplit.parties.learner import Learner

MOST_NORM = 1e9
"""Largest 2-norm of a tensor of weights, of moments, or of a packet of the server."""
MOST_GROWTH = 1e4
"""Who first makes the trunk's norms larger by more than this is to blame.

Honest clients' steps make a spoilt trunk larger too, and by more than the step that spoilt it.
"""
Sent = Mapping[ClientId, Packets]
"""The packets of each client that is worked on."""


class TrunkWatch:
    """A watch over one trunk."""

    def __init__(self, learner: Learner, growth: dict[ClientId, float]) -> None:
        """`growth` is how much each client's steps have made norms larger; watches can share it.

        Those above MOST_GROWTH stand in the order in which they came there.
        """
        self.learner, self._growth = learner, growth
        self._weights = [t for t in learner.weights().values() if t.is_floating_point()]
        self._before = 0.0

    def restart(self) -> None:
        """Note the trunk's size at the beginning of a round."""
        self._before = self._measure()

    def check_step(self, sent: Sent) -> None:
        """Raise ClientAtFault if the step of these clients has left a trunk that is of no use."""
        after = self._measure()
        grown, self._before = after - self._before, after
        if after <= MOST_NORM and grown <= 1.0:
            return
        client = find_odd(sent)
        if not after <= MOST_NORM:
            raise ClientAtFault(
                find_suspect(self._growth, client),
                f"a step after which the trunk is not finite, or its norm exceeds {MOST_NORM:g}; "
                "a smaller learning rate may help, if all clients are honest",
            )
        total = (before := self._growth.get(client, 0.0)) + grown
        if before <= MOST_GROWTH < total:
            self._growth.pop(client, None)  # so that it comes last
        self._growth[client] = total

    def check_answers(self, answers: Sent, sent: Sent) -> None:
        """Raise ClientAtFault if the server's answers are not finite, or too large to learn from.

        An honest client would leave the run because of them, or send what is not finite itself.
        """
        for packets in answers.values():
            for packet in packets:
                if not measure(packet.tensors) <= MOST_NORM:
                    raise ClientAtFault(
                        find_suspect(self._growth, find_odd(sent)),
                        f"packets that make the server's on {packet.leg} not finite, or their "
                        f"norm exceed {MOST_NORM:g}",
                    )

    def _measure(self) -> float:
        """Return the largest norm of the trunk's weights and of its optimizer's moments."""
        moments = (
            value
            for optimizer in self.learner.optimizers
            for slots in optimizer.state.values()
            for name, value in slots.items()
            if name != "step" and isinstance(value, Tensor)
        )
        return measure([*self._weights, *moments])


def measure(tensors: Sequence[Tensor]) -> float:
    """Return the largest 2-norm of some tensors; NaN if any has a NaN, inf if one overflows."""
    floating = [t.detach() for t in tensors if t.is_floating_point() and t.numel()]
    if not floating:
        return 0.0
    return float(torch.stack(torch._foreach_norm(floating)).max())


def find_suspect(growth: Mapping[ClientId, float], client: ClientId) -> ClientId:
    """Return the client whose steps first made the trunk much larger, or else `client`."""
    return next((each for each, grown in growth.items() if grown > MOST_GROWTH), client)


def find_odd(sent: Sent) -> ClientId:
    """Return the client whose packets differ most from the others': in number, form, or size."""
    if len(sent) == 1:
        return next(iter(sent))
    forms = {client: _describe_form(packets) for client, packets in sent.items()}
    usual = max(Counter(forms.values()).items(), key=lambda item: (item[1], len(item[0])))[0]
    odd = [client for client, form in forms.items() if form != usual] or list(sent)
    return max(odd, key=lambda client: _measure_sent(sent[client]))


def _describe_form(packets: Packets) -> tuple[object, ...]:
    """Return what is alike in the packets of honest clients: all but numbers of rows and values."""
    return tuple(
        (packet.leg, *((tensor.dtype, tensor.shape[1:]) for tensor in packet.tensors))
        for packet in packets
    )


def _measure_sent(packets: Packets) -> float:
    """Return the size of what a client has sent; what is not finite is largest."""
    size = measure([tensor for packet in packets for tensor in packet.tensors])
    return size if size == size else float("inf")  # noqa: PLR0124 - only NaN differs from itself
