"""Clients hand weights to each other through a server that can neither read nor replace them.

A hand-over is sealed and signed, and names how many steps of each client its weights contain. A
receiver accepts it only if all of the receiver's own steps are in it. So a server that replays an
older hand-over, or skips a client, is detected by the client whose work is missing.

It also names the power of two below which the largest norm of its weights lies. By that the server
sees who makes weights larger, and no more of them. The receiver proves what is larger than named.

A receiver accuses the sender of a sealed hand-over; the server finds out who of them has lied.
Accusing must not be a way to have others expelled. So a receiver that says that the content is
invalid shows the key as proof, and of one that says that it got no usable key the sender is asked
for the seal's one-time secret, by which the server decrypts that key itself (see `seals`).
"""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.client_session import Accusation, ClientSession, FaultOf
from simsplit.deploy.frames import bytes_to_tensor, read_frame, write_frame
from simsplit.deploy.keys import Keys, read_roster
from simsplit.deploy.seals import (
    Seals,
    SpoiltSeal,
    is_wrapped,
    open_with_key,
    read_seal,
    verify_complaint,
)
from simsplit.deploy.server_tables import FramePurpose
from simsplit.deploy.weight_bounds import MARGIN, is_power
from simsplit.engine.pool import ClientAtFault
from simsplit.errors import ProtocolError, RunError
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.scenario import Scenario

DISCLOSE = "disclose"
"""The command to disclose the one-time secret of a seal, of which its receiver complains."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The errors of crafted weights, whatever they make the checks do."""
Made = dict[str, list[Any]]
"""For each client's number: the token of its run, and how many of its steps are included."""


class UnusableHandover(ProtocolError):  # noqa: N818 - evidence for the server
    """Another client sealed an invalid hand-over; the key proves it to a holder of the seal."""

    def __init__(self, sender: ClientId, key: bytes, why: str) -> None:
        super().__init__(f"client {sender} handed over {why}")
        self.sender, self.key = sender, key


class Handovers:
    """One client's sealing and opening of hand-overs."""

    def __init__(self, seals: Seals, number: ClientId, terms: str, *, strict: bool) -> None:
        """Make the hand-overs of client `number`, in the run with these `terms`.

        Without `strict`, own steps may be missing: detectors may have undone a client's turn.
        """
        self.seals, self.number, self.terms, self.strict = seals, number, terms, strict
        self.token = secrets.token_hex(8)
        """A random name of this client's run, so that hand-overs of another run do not fit."""
        self.made: Made = {}

    def seal(self, packet: Packet, steps: int, power: int = 0) -> Packet:
        """Return a hand-over after `steps` own steps, of the size `power`; it shows shapes only."""
        if steps:
            self.made[str(self.number)] = [self.token, steps]
        about = {"terms": self.terms, "round": packet.round, "step": packet.step, "made": self.made}
        content = write_frame({"names": [*packet.names]}, packet.tensors)
        closed = bytes_to_tensor(self.seals.seal({**about, "power": power}, content))
        return Packet(
            *(packet.client, packet.leg, packet.round, packet.step),
            # The server counts bytes and checks shapes, so these stay open; the values do not.
            tuple(torch.zeros((), dtype=t.dtype).expand(t.shape) for t in packet.tensors),
            names=packet.names,
            sealed=closed,
        )

    def open(self, packet: Packet, steps: int, bounds: Bounds) -> Packet:
        """Return the weights of a sealed hand-over.

        Raise ProtocolError unless it belongs to this run, round and step, and includes all `steps`
        of this client. Raise UnusableHandover if its sender sealed an invalid one.
        """
        sender = packet.client
        if packet.sealed is None:
            raise ProtocolError("a hand-over that is not sealed")
        try:
            about, content, key = self.seals.open(packet.sealed.numpy().tobytes(), sender)
        except SpoiltSeal as error:
            why = "a seal that its key does not open"
            raise UnusableHandover(sender, error.key, why) from None
        # The signature alone would let the server replay a valid hand-over of another run.
        if about.get("terms") != self.terms:
            raise ProtocolError("a hand-over of another run")
        if (about.get("round"), about.get("step")) != (packet.round, packet.step):
            raise ProtocolError("a hand-over of another round or step than its packet names")
        self._check_steps(about.get("made"), sender, steps)
        try:
            return unpack(packet, content, bounds, about, margin=MARGIN)
        except ProtocolError as error:
            raise UnusableHandover(sender, key, str(error)) from None

    def disclose(self, receiver: ClientId, evidence: Sequence[Tensor]) -> bytes:
        """Return the one-time secret of an own seal, of which a receiver complains.

        `evidence` are the seal and the complaint; raise ProtocolError unless both are valid.
        """
        if len(evidence) != 2 or any(each.dtype is not torch.uint8 for each in evidence):
            raise ProtocolError("to disclose a secret without a seal and a complaint")
        blob, complaint = (each.numpy().tobytes() for each in evidence)
        return self.seals.disclose(blob, receiver, complaint)

    def _check_steps(self, made: object, sender: ClientId, steps: int) -> None:
        """Raise ProtocolError unless the hand-over includes this client's steps; note the rest."""
        if not _is_made(made, len(self.seals.roster)):
            raise ProtocolError("a hand-over that does not name the steps that it includes")
        # By token too: after a start from scratch the number of steps could be the same.
        wanted = [self.token, steps] if steps else None
        if self.strict and made.get(str(self.number)) != wanted:
            raise ProtocolError(
                f"a hand-over of client {sender} that is not built on all {steps} steps of this "
                "client: it is an older one, or of another run"
            )
        self.made = {str(client): list(each) for client, each in made.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the state for this client's checkpoint."""
        return {"made": bytes_to_tensor(json.dumps([self.token, self.made]).encode())}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        if "made" not in state:
            raise RunError(
                "the checkpoint is of an earlier version, which sealed nothing; start a new run"
            )
        self.token, self.made = json.loads(state["made"].numpy().tobytes())


def undoes_turns(scenario: Scenario) -> bool:
    """Return whether detectors may undo a client's turn, so that hand-overs may lack its steps."""
    return any(each.by_turns and each.response == "rollback" for each in scenario.detectors)


def unpack(
    packet: Packet,
    content: bytes,
    bounds: Bounds,
    about: Mapping[str, Any],
    *,
    margin: float = 1.0,
) -> Packet:
    """Return the hand-over with the content of its seal; raise ProtocolError if it does not fit.

    `about` is the header of its seal, and `margin` as for `Bounds.check_handed`.
    """
    header, tensors = read_frame(content, bounds.most_bytes)
    names = header.get("names")
    if not isinstance(names, list) or len(names) != len(tensors):
        raise ProtocolError("other weights than it names")
    if not all(isinstance(name, str) for name in names):
        raise ProtocolError("weights without names")
    opened = replace(packet, tensors=tuple(tensors), names=tuple(names), sealed=None)
    try:
        bounds.check(opened, by_client=False)
        steps = sum(steps for _, steps in about["made"].values())
        bounds.check_handed(opened, steps, about.get("power"), margin)
    except UNREADABLE as error:
        raise ProtocolError(f"weights that cannot be read ({type(error).__name__})") from error
    return opened


class Handed(NamedTuple):
    """What is known of the last hand-over."""

    made: Made
    """The steps that it included."""
    norm: float | None
    """What its largest norm is below; None where that is not known."""

    def count_steps(self, client: ClientId, since: "Handed") -> int:
        """Return the steps that a client says it has taken since another hand-over."""
        token, steps = self.made.get(str(client), ["", 0])
        before, then = since.made.get(str(client), ["", 0])
        return int(steps) - (int(then) if token == before else 0)


class HandoverJudge:
    """The server's judgement of hand-overs, which it cannot open.

    A seal that is not valid is not carried, so that no receiver has to leave because of its sender.
    """

    def __init__(self, keys: Keys, bounds: Bounds, terms: str, *, strict: bool) -> None:
        """Make the judge of a run with these `terms`; `strict` as for `Handovers`."""
        self.roster, self.bounds = read_roster(keys), bounds
        self.terms, self.strict = terms, strict
        self.last: Handed | None = Handed({}, bounds.start_norm)
        """The last hand-over, at first of the weights before training; None: it is not known."""
        self._kept: dict[int, Handed | None] = {0: self.last}
        self._marked: Handed | None = None

    def keep(self, round_number: int) -> None:
        """Remember the last hand-over of a round."""
        self._kept[round_number] = self.last

    def return_to(self, round_number: int) -> None:
        """Return to the end of a round."""
        self.last = self._kept.get(round_number)

    def state(self) -> dict[str, Tensor]:
        """Return the state for the server's checkpoint."""
        made = None if self.last is None else self.last.made
        norm = math.nan if self.last is None or self.last.norm is None else self.last.norm
        return {
            "made": bytes_to_tensor(json.dumps(made).encode()),
            "norm": torch.tensor(norm, dtype=torch.float64),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned; checkpoints of earlier versions have none."""
        if "made" not in state:
            return
        try:
            made = json.loads(state["made"].numpy().tobytes())
        except ValueError:
            raise RunError("the checkpoint's steps of the last hand-over are damaged") from None
        if made is not None and not _is_made(made, self.bounds.scenario.clients.count):
            raise RunError("the checkpoint's steps of the last hand-over are damaged")
        norm = float(state["norm"]) if "norm" in state else math.nan
        self.last = None if made is None else Handed(made, norm if norm >= 0 else None)

    def mark(self) -> None:
        """Remember the last hand-over, before a round that may be undone."""
        self._marked = self.last

    def undo(self) -> None:
        """Return to what `mark` remembered."""
        self.last = self._marked

    def check_seal(self, packet: Packet) -> Handed | None:
        """Return what a hand-over's seal names; None if it is not sealed.

        Raise ProtocolError unless its client sealed it, for this round and step. It must include
        the steps of all other clients that the hand-over before it included.
        """
        if packet.sealed is None:
            return None  # nothing is shared, or the weights are averaged
        # A receiver whose key is missing would have to leave, though it is honest.
        others = [c for c in range(self.bounds.scenario.clients.count) if c != packet.client]
        about = read_seal(self.roster[packet.client], _get_seal_bytes(packet), receivers=others)
        wanted = (self.terms, packet.client, packet.round, packet.step)
        if tuple(about.get(name) for name in ("terms", "from", "round", "step")) != wanted:
            raise ProtocolError("a hand-over of another run, client, round or step")
        made, own = about.get("made"), str(packet.client)
        if not _is_made(made, self.bounds.scenario.clients.count):
            raise ProtocolError("a hand-over that does not name the steps that it includes")
        if self.strict and self.last is not None:
            # Its own steps have grown; those of the others must be as the last hand-over had them.
            both = (made.items(), self.last.made.items())
            now, before = ({c: each for c, each in some if c != own} for some in both)
            if now != before:
                raise ProtocolError("a hand-over that is not built on the one before it")
        if not is_power(power := about.get("power")):
            raise ProtocolError("a hand-over that does not name the size of its weights")
        self.last = Handed(made, 2.0**power)
        return self.last

    def find_fault(
        self,
        error: Accusation,
        packet: Packet | None,
        receiver: ClientId,
        sessions: Mapping[ClientId, ClientSession],
    ) -> ProtocolError:
        """Return the error of the client at fault: that of the receiver, unless it is right.

        `packet` is the last hand-over that the receiver was sent. Raise ClientLost if its sender is
        lost before it has disclosed its secret.
        """
        if packet is None or packet.sealed is None or error.evidence.dtype is not torch.uint8:
            return error
        sender, evidence = packet.client, error.evidence.numpy().tobytes()
        if error.kind == "unusable":
            what = "a hand-over that is not valid, as its receiver has proved"
            return ClientAtFault(sender, what) if self.is_proof(packet, evidence) else error
        if not self.is_complaint(packet, receiver, evidence):
            return error
        session = sessions.get(sender)
        asked = packet, receiver, error.evidence
        once = None if session is None else _ask_secret(session, *asked)
        if once is not None and self.is_wrapped(packet, receiver, once):
            return error
        return FaultOf(sender, "a hand-over without a usable key for a receiver that it names")

    def is_complaint(self, packet: Packet, receiver: ClientId, signature: bytes) -> bool:
        """Return whether a receiver has signed a complaint about the key that it was sealed."""
        try:
            verify_complaint(self.roster[receiver], _get_seal_bytes(packet), signature)
        except ProtocolError:
            return False
        return receiver != packet.client

    def is_wrapped(self, packet: Packet, receiver: ClientId, once: bytes) -> bool:
        """Return whether a seal's one-time secret shows that the receiver's key is usable."""
        return is_wrapped(self.roster, packet.client, receiver, _get_seal_bytes(packet), once)

    def is_proof(self, packet: Packet, key: bytes) -> bool:
        """Return whether a receiver's key proves that the sender sealed an invalid hand-over.

        The key is no proof if it does not open the seal: the receiver may have made it up.
        """
        try:
            about, content = open_with_key(self.roster[packet.client], _get_seal_bytes(packet), key)
        except SpoiltSeal:
            return True
        except ProtocolError:
            return False
        try:
            unpack(packet, content, self.bounds, about)
        except ProtocolError:
            return True
        return False


def _get_seal_bytes(packet: Packet) -> bytes:
    assert packet.sealed is not None, "only sealed hand-overs are judged"
    return packet.sealed.numpy().tobytes()


def _ask_secret(
    sender: ClientSession, packet: Packet, receiver: ClientId, signature: Tensor
) -> bytes | None:
    """Ask a sender for the one-time secret of its seal; None if it does not disclose it."""
    assert packet.sealed is not None, "only sealed hand-overs are judged"
    try:
        number = sender.ask(
            FramePurpose(DISCLOSE), {DISCLOSE: receiver}, [packet.sealed, signature]
        )
        _, tensors = sender.answer(number)
    except ProtocolError:
        return None
    return tensors[0].numpy().tobytes() if [t.dtype for t in tensors] == [torch.uint8] else None


def _is_made(made: object, clients: int) -> TypeGuard[Made]:
    """Return whether a hand-over names the steps that it includes, by client."""
    return isinstance(made, dict) and all(
        name.isdecimal()
        and int(name) < clients
        and isinstance(each, list)
        and [type(part) for part in each] == [str, int]
        and each[1] >= 0
        for name, each in made.items()
    )
