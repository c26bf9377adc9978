"""A receiver accuses the sender of a sealed hand-over; the server finds out who of them has lied.

Accusing must not be a way to have others expelled. So a receiver that says that the content is
invalid shows the key as proof, and of one that says that it got no usable key the sender is asked
for the seal's one-time secret, by which the server decrypts that key itself (see `seals`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.deploy.client_session import Blame, ClientSession, Complaint
from simsplit.deploy.handovers import HandoverJudge
from simsplit.deploy.socket_table import FramePurpose
from simsplit.engine.pool import ClientAtFault
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId
from simsplit.packets import Packet

DISCLOSE = "disclose"
"""The command to disclose the one-time secret of a seal, of which its receiver complains."""


class FaultOf(ProtocolError):  # noqa: N818 - names who is to leave
    """A client has sent what no honest client sends, whatever the others do."""

    def __init__(self, client: ClientId, what: str) -> None:
        super().__init__(what)
        self.client = client


class Accusations:
    """The accusations of one run's clients."""

    def __init__(
        self, sessions: Mapping[ClientId, ClientSession], judge: HandoverJudge | None
    ) -> None:
        """Ask clients by their sessions; `judge` is None if nothing is sealed."""
        self._sessions, self._judge = sessions, judge
        self.received: dict[ClientId, Packet] = {}
        """The last hand-over that each client was sent."""

    def judge(self, receiver: ClientId, error: Blame | Complaint) -> ProtocolError:
        """Return the error of the client at fault: that of the receiver, unless it is right.

        Raise ClientLost if the sender is lost before it has disclosed its secret.
        """
        packet = self.received.get(receiver)
        if packet is None or packet.sealed is None or self._judge is None:
            return error
        if isinstance(error, Blame):
            return self._judge_blame(self._judge, packet, error)
        return self._judge_complaint(self._judge, packet, receiver, error)

    def _judge_blame(self, judge: HandoverJudge, packet: Packet, error: Blame) -> ProtocolError:
        """Return the sender's error if the key shows that the content is invalid."""
        if error.key.dtype is not torch.uint8 or not judge.is_proof(packet, _to_bytes(error.key)):
            return error
        what = "a hand-over that is not valid, as its receiver has proved"
        return ClientAtFault(packet.client, what)

    def _judge_complaint(
        self, judge: HandoverJudge, packet: Packet, receiver: ClientId, error: Complaint
    ) -> ProtocolError:
        """Return the sender's error unless its secret shows that the receiver's key is usable."""
        signature = error.signature
        if signature.dtype is not torch.uint8 or not judge.is_complaint(
            packet, receiver, _to_bytes(signature)
        ):
            return error
        once = self._ask_secret(packet, receiver, signature)
        if once is not None and judge.is_wrapped(packet, receiver, once):
            return error
        what = "a hand-over without a usable key for a receiver that it names"
        return FaultOf(packet.client, what)

    def _ask_secret(self, packet: Packet, receiver: ClientId, signature: Tensor) -> bytes | None:
        """Ask a sender for the one-time secret of its seal; None if it does not disclose it."""
        session = self._sessions.get(packet.client)
        if session is None or packet.sealed is None:
            return None
        evidence = [packet.sealed, signature]
        try:
            number = session.ask(FramePurpose(DISCLOSE), {DISCLOSE: receiver}, evidence)
            _, tensors = session.answer(number)
        except ProtocolError:
            return None
        if [tensor.dtype for tensor in tensors] != [torch.uint8]:
            return None
        return _to_bytes(tensors[0])


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
