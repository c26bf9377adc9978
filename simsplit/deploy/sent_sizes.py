"""What a client sends is compared in size with what the others send, and with what it received.

Finite numbers can be so large that an honest client's step, which uses them, overflows. So who sent
them is judged before who used them:

- Weights that are handed on, or sent to be averaged, may have grown over those that their sender
  got; how much so is noted, and at most MOST_RISE times is allowed in all.
- A round's payloads are held against those of most clients, at most MOST_TIMES of which are
  allowed. What a majority sends cannot be known before all have sent it, so this is judged at the
  end of the round, which is then undone. Two clients have no majority, and are not compared.

Both limits are far above what honest clients do. But a trunk that one client has spoilt makes the
gradients and weights of the others large too. So nobody is blamed before the round has been done
again with the trunk's gradients clipped (see `trunk_watch`), and nobody has spoilt it. What lies
below the limits is noted, and is undone with the rest when its sender is expelled.
"""

import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.deploy.frames import bytes_to_tensor
from simsplit.engine.pool import ClientAtFault
from simsplit.errors import RunError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet, Packets

MOST_RISE = 32.0
"""How many times as large a client may make the weights that it hands on, in a whole run."""
COUNTED_RISE = 4.0
"""Up to this, growth from one hand-over to the next is not counted."""
SUSPECT_RISE = 8.0
"""A client that has made weights larger by more than this is blamed before who trained on them."""
MOST_TIMES = 100.0
"""How many times as large as those of most clients a client's payloads may be."""
SUSPECT_TIMES = 10.0
"""From this on, the rounds of a client are undone too when it is expelled."""
MAJORITY = 3
"""The fewest clients that have a majority beside one of them."""


class TooLarge(ClientAtFault):
    """A client has sent numbers that are far larger than those of others, or those before."""


class SentSizes:
    """The sizes of what each client of one run has sent."""

    def __init__(self) -> None:
        self._rise: dict[ClientId, float] = {}
        """How many times as large a client has made weights, where it is counted."""
        self._usual: dict[str, float] = {}
        """For each leg, the largest of the rounds' medians; gradients shrink as clients learn."""
        self.since: dict[ClientId, int] = {}
        """The first round from which on a client is suspect."""
        self._of_round: dict[str, dict[ClientId, float]] = {}
        """For each leg, the largest size that each client has sent in this round."""

    def note_handed(
        self, client: ClientId, round_number: int, what: str, *, after: float, before: float
    ) -> None:
        """Note the largest norm of weights that a client hands on, and of those that it got.

        `what` names what has the weights. Raise TooLarge if the client has made weights larger by
        more than MOST_RISE in all.
        """
        times = after / before
        if times <= COUNTED_RISE:  # false for NaN
            return
        self._rise[client] = self._rise.get(client, 1.0) * times
        self.since.setdefault(client, round_number)
        if not self._rise[client] <= MOST_RISE:
            raise TooLarge(
                client,
                f"{what} whose largest norm is {self._rise[client]:.3g} times that of the weights "
                f"that it got; at most {MOST_RISE:g} times is allowed",
            )

    def note_sent(self, client: ClientId, packets: Packets) -> None:
        """Note the sizes of a step's packets."""
        for packet in packets:
            sizes = self._of_round.setdefault(str(packet.leg), {})
            sizes[client] = max(sizes.get(client, 0.0), _measure(packet))

    def find_suspect(self, other_than: ClientId | None = None) -> ClientId | None:
        """Return the client whose numbers may have spoilt another's, as far as is known.

        With `other_than`, a client that has itself made weights too large, only one that has made
        them much larger before it is a suspect.
        """
        least = COUNTED_RISE if other_than is None else SUSPECT_RISE
        risen = {c: rise for c, rise in self._rise.items() if c != other_than and rise > least}
        if risen:
            return max(risen, key=lambda client: risen[client])
        if other_than is not None:
            return None
        times = {c: each for _, c, each in self._compare() if each > MOST_TIMES}
        return max(times, key=lambda client: times[client]) if times else None

    def end_round(self, round_number: int) -> None:
        """Raise TooLarge if a client's payloads were far larger than those of most clients.

        Else note which clients are suspect from this round on.
        """
        compared = self._compare()
        for leg, client, times in sorted(compared, key=lambda each: -each[2])[:1]:
            if times > MOST_TIMES:
                raise TooLarge(
                    client,
                    f"payloads on {leg} that are {times:.3g} times as large as those of most "
                    f"clients; at most {MOST_TIMES:g} times is allowed",
                )
        suspects = {client for _, client, times in compared if times > SUSPECT_TIMES}
        for client in {client for _, client, _ in compared}:
            if client in suspects:
                self.since.setdefault(client, round_number)
            elif client not in self._rise:
                self.since.pop(client, None)
        for leg in self._of_round:
            self._usual[leg] = self._find_usual(leg)
        self._of_round = {}

    def _compare(self) -> list[tuple[str, ClientId, float]]:
        """Compare this round's sizes with the usual ones, where there is a majority."""
        return [
            (leg, client, size / usual)
            for leg, sizes in self._of_round.items()
            for client, size in sizes.items()
            if len(sizes) >= MAJORITY and (usual := self._find_usual(leg)) > 0
        ]

    def _find_usual(self, leg: str) -> float:
        """Return the median of a leg's sizes in this round, or a larger one of earlier rounds."""
        sizes = sorted(self._of_round[leg].values())
        median = sizes[len(sizes) // 2] if len(sizes) >= MAJORITY else 0.0
        return max(self._usual.get(leg, 0.0), median)

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed server must know."""
        facts = {"rise": self._rise, "usual": self._usual, "since": self.since}
        return {"sizes": bytes_to_tensor(json.dumps(facts).encode())}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned; checkpoints of earlier versions have none."""
        if "sizes" not in state:
            return
        try:
            facts = json.loads(bytes(state["sizes"].tolist()))
            self._rise = {int(c): float(rise) for c, rise in facts["rise"].items()}
            self.since = {int(c): int(number) for c, number in facts["since"].items()}
            self._usual = {str(leg): float(size) for leg, size in facts["usual"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError("the checkpoint's sizes of what clients sent are damaged") from None


def _measure(packet: Packet) -> float:
    """Return the largest root mean square of a packet's floating-point tensors.

    Gradients are those of a batch's mean loss, so they are larger in a batch of few samples, such
    as a client's last one. They are multiplied by the packet's number of values.
    """
    floating = [each for each in packet.tensors if each.is_floating_point() and each.numel()]
    values = sum(each.numel() for each in packet.tensors) if packet.leg is Leg.FEATURES_GRAD else 1
    return values * max(
        (
            float(torch.linalg.vector_norm(each, dtype=_widen(each))) / math.sqrt(each.numel())
            for each in floating
        ),
        default=0.0,
    )


def _widen(tensor: Tensor) -> torch.dtype:
    """Return a type in which the squares of a tensor's values do not overflow."""
    return torch.promote_types(tensor.dtype, torch.float32)
