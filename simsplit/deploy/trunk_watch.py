"""A watch over the trunk of a deployed server finds the client whose steps have spoilt it.

Finite numbers from one client can make the trunk overflow in the step of another. So the watch
remembers whose steps have made the trunk's weights or moments larger. The honest client in whose
step the overflow shows is not blamed.

To read all weights after each step takes some percent of the step's time. So they are read once a
round, as long as nothing goes wrong: a round that has spoilt the trunk is done again, and from then
on they are read after each step. What the server sends is always checked before it is sent.

A client can also enlarge the trunk little by little, by no more than honest ones do, until an
honest step overflows. So before anybody is blamed for a trunk that all train, the round is done
once more with the trunk's gradients clipped, and so are all later ones. What spoils the trunk even
then is a packet that no honest client sends.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

from torch import Tensor

from simsplit.engine.pool import NOBODY, ClientAtFault, HostLost, Sent
from simsplit.errors import RunFailedError
from simsplit.legs import ClientId
from simsplit.packets import Packets
from simsplit.parties.learner import Learner
from simsplit.states import measure_norm

MOST_NORM = 1e9
"""Largest 2-norm of a tensor of weights, of moments, or of a packet of the server."""
MOST_GROWTH = 1e4
"""Who first makes the trunk's norms larger by more than this is to blame.

Honest clients' steps make a spoilt trunk larger too, and by more than the step that spoilt it.
"""
MOST_IN_ROUND = 1e3
"""A round that has made the trunk's norms larger by more than this is done again step by step."""
CLIP_NORM = 1.0
"""The 2-norm to which the trunk's gradients are clipped once a step has spoilt it."""


class RoundSpoilt(HostLost):
    """A round is to be done again, since it is not known whose step has spoilt the trunk."""

    advice: ClassVar[str] = "A smaller learning rate may help"

    def __init__(self, now: str = "the trunk is measured after each step") -> None:
        """`now` says what is done otherwise from now on."""
        self.host, self.cause = NOBODY, "a trunk that is not finite, or too large"
        RunFailedError.__init__(
            self,
            "the trunk, or what it makes, is not finite or has become too large; the round is done "
            f"again, and {now} from now on",
        )


@dataclass
class Growth:
    """What the watches over a run's trunk, and over its copies, know together."""

    of_client: dict[ClientId, float] = field(default_factory=dict)
    """How much each client's steps have made norms larger.

    Those above MOST_GROWTH stand in the order in which they came there.
    """
    at_start: float = 0.0
    """The trunk's size at the beginning of the round."""
    step_by_step: bool = False
    """Whether the trunk is measured after each step, since a round has spoilt it."""
    clips: bool = False
    """Whether the trunk's gradients are clipped, since a step has spoilt it even so."""


class TrunkWatch:
    """A watch over one trunk."""

    def __init__(self, learner: Learner, growth: Growth) -> None:
        self.learner, self._growth = learner, growth
        self._weights = [t for t in learner.weights().values() if t.is_floating_point()]
        self._before = 0.0
        self._owner: ClientId | None = None
        """The client whose own copy the trunk is; None if all clients train it."""

    def begin_round(self) -> None:
        """Note the trunk's size at the beginning of a round; clip its gradients if need be."""
        self._owner = None
        if self._growth.clips:
            self.learner.clip_norm = min(self.learner.clip_norm or CLIP_NORM, CLIP_NORM)
        self._growth.at_start = self._before = self._measure()

    def end_round(self) -> None:
        """Raise RoundSpoilt if a round has made the trunk much larger, in whosever step."""
        if self._growth.step_by_step:
            return
        after = self._measure()
        if not (after <= MOST_NORM and after - self._growth.at_start <= MOST_IN_ROUND):
            self._growth.step_by_step = True
            raise RoundSpoilt

    def begin_copy(self, client: ClientId) -> None:
        """Note that the trunk is a client's own copy, and that only its steps change it."""
        self._owner = client

    def end_copy(self) -> None:
        """Note how much a client has made its copy larger; raise ClientAtFault if it overflows."""
        assert self._owner is not None, "begin_copy comes first"
        self._note(self._owner, self._measure(), self._growth.at_start)

    def check_step(self, sent: Sent) -> None:
        """Raise ClientAtFault if the step of these clients has left a trunk that is of no use."""
        if self._growth.step_by_step and self._owner is None:
            before, self._before = self._before, self._measure()
            self._note(find_odd(sent), self._before, before)

    def check_answers(self, answers: Sent, sent: Sent) -> None:
        """Raise ClientAtFault if the server's answers are not finite, or too large to learn from.

        An honest client would leave the run because of them, or send what is not finite itself.
        Raise RoundSpoilt instead if it is not known who is at fault.
        """
        for packets in answers.values():
            for packet in packets:
                if measure_norm(packet.tensors) <= MOST_NORM:
                    continue
                if self._owner is None:
                    self._repeat_unless_clipped()
                raise ClientAtFault(
                    find_suspect(self._growth.of_client, find_odd(sent)),
                    f"packets that make the server's on {packet.leg} not finite, or their "
                    f"norm exceed {MOST_NORM:g}",
                )

    def _note(self, client: ClientId, after: float, before: float) -> None:
        """Note by how much a client has made the trunk larger; raise ClientAtFault if too much."""
        growth = self._growth.of_client
        if not after <= MOST_NORM:
            if self._owner is None:
                self._repeat_unless_clipped()
            raise ClientAtFault(
                find_suspect(growth, client),
                f"a step after which the trunk is not finite, or its norm exceeds {MOST_NORM:g}",
            )
        if after - before <= 1.0:
            return
        total = (earlier := growth.get(client, 0.0)) + after - before
        if earlier <= MOST_GROWTH < total:
            growth.pop(client, None)  # so that it comes last
        growth[client] = total

    def _repeat_unless_clipped(self) -> None:
        """Raise RoundSpoilt unless the trunk is measured and clipped in each step already."""
        if not self._growth.step_by_step:
            self._growth.step_by_step = True
            raise RoundSpoilt
        if not self._growth.clips:
            repeat_clipped(self._growth)

    def _measure(self) -> float:
        """Return the largest norm of the trunk's weights and of its optimizer's moments."""
        moments = (
            value
            for optimizer in self.learner.optimizers
            for slots in optimizer.state.values()
            for name, value in slots.items()
            if name != "step" and isinstance(value, Tensor)
        )
        return measure_norm([*self._weights, *moments])


def repeat_clipped(growth: Growth) -> NoReturn:
    """Raise RoundSpoilt, so that the round is done again with the trunk's gradients clipped."""
    growth.step_by_step = growth.clips = True
    raise RoundSpoilt(f"the trunk's gradients are clipped to a norm of {CLIP_NORM:g}")


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

    def measure(client: ClientId) -> float:
        size = measure_norm([tensor for packet in sent[client] for tensor in packet.tensors])
        return math.inf if math.isnan(size) else size  # what is not finite is largest

    return max(odd, key=measure)


def _describe_form(packets: Packets) -> tuple[object, ...]:
    """Return what is alike in the packets of honest clients: all but numbers of rows and values."""
    return tuple(
        (packet.leg, *((tensor.dtype, tensor.shape[1:]) for tensor in packet.tensors))
        for packet in packets
    )
