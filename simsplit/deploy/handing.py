"""Hand-overs from client to client: sealed, signed, and each one built on those before it.

A client sends along of how many steps of each client its weights are made. Whoever receives them
finds all of its own steps in them, or does not take them: a server that brings an older hand-over,
or one that passes somebody by, is found out by the client whose work is left out.
"""

import json
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.deploy.expected import Expected
from simsplit.deploy.keys import Keys, roster_of
from simsplit.deploy.seals import Seals, shown
from simsplit.deploy.tensors import frame_of, read
from simsplit.errors import ProtocolError, RunError
from simsplit.packets import ClientId, Packet

Made = dict[str, list[Any]]
"""For each client, by number: what its run is known by, and how many of its steps are in."""


class Unusable(ProtocolError):  # noqa: N818 - whom it is told of, not what went wrong here
    """Another client has sealed what is no hand-over; the key shows it to whoever has the seal."""

    def __init__(self, sender: ClientId, key: bytes, why: str) -> None:
        super().__init__(f"client {sender} handed over {why}")
        self.sender, self.key = sender, key


class Handing:
    """One client's side of what is handed from one client to the next."""

    def __init__(self, seals: Seals, number: ClientId, terms: str, *, strict: bool) -> None:
        """`terms` are the run's; `strict` is off where detectors undo clients' turns."""
        self.seals, self.number, self.terms, self.strict = seals, number, terms, strict
        self.token = secrets.token_hex(8)
        """What this run of this client is known by, lest another's hand-overs fit."""
        self.made: Made = {}

    def sealed(self, packet: Packet, steps: int) -> Packet:
        """A hand-over as it may cross: its tensors tell their form alone."""
        if steps:
            self.made[str(self.number)] = [self.token, steps]
        told = {"terms": self.terms, "round": packet.round, "step": packet.step, "made": self.made}
        content = frame_of({"names": [*packet.names]}, packet.tensors)
        closed = as_tensor(self.seals.sealed(told, content))
        return Packet(
            *(packet.client, packet.leg, packet.round, packet.step),
            tuple(torch.zeros((), dtype=t.dtype).expand(t.shape) for t in packet.tensors),
            names=packet.names,
            sealed=closed,
        )

    def opened(self, packet: Packet, steps: int, expected: Expected) -> Packet:
        """What another client has handed over; ProtocolError where it is not that, or not new."""
        if packet.sealed is None:
            raise ProtocolError("a hand-over that is not sealed")
        opened = self.seals.opened(packet.sealed.numpy().tobytes(), packet.client)
        about = opened.about
        if about.get("terms") != self.terms:
            raise ProtocolError("a hand-over of another run")
        if (about.get("round"), about.get("step")) != (packet.round, packet.step):
            raise ProtocolError("a hand-over of another round or step than it is said to be")
        self._check(about.get("made"), packet.client, steps)
        try:
            return unpacked(packet, opened.content, expected)
        except ProtocolError as error:
            raise Unusable(packet.client, opened.key, str(error)) from None

    def _check(self, made: object, sender: ClientId, steps: int) -> None:
        good = isinstance(made, dict) and all(
            isinstance(each, list) and len(each) == 2 for each in made.values()
        )
        if not good:
            raise ProtocolError("a hand-over that does not say what it is made of")
        assert isinstance(made, dict), "as was checked"
        wanted = [self.token, steps] if steps else None
        if self.strict and made.get(str(self.number)) != wanted:
            raise ProtocolError(
                f"a hand-over of client {sender} that is not built on all {steps} steps of this "
                "client: it is an older one, or of another run"
            )
        self.made = {str(client): list(each) for client, each in made.items()}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of this client has to hold."""
        return {"made": as_tensor(json.dumps([self.token, self.made]).encode())}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""
        if "made" not in state:
            raise RunError("a checkpoint of an earlier version, which sealed nothing; begin anew")
        self.token, self.made = json.loads(state["made"].numpy().tobytes())


def unpacked(packet: Packet, content: bytes, expected: Expected) -> Packet:
    """The hand-over that was in a seal; ProtocolError where it is none of the run's."""
    header, tensors = read(content, expected.most_bytes)
    names = header.get("names")
    if not isinstance(names, list) or len(names) != len(tensors):
        raise ProtocolError("weights that are not those that it names")
    if not all(isinstance(name, str) for name in names):
        raise ProtocolError("weights without names")
    made = replace(packet, tensors=tuple(tensors), names=tuple(names), sealed=None)
    expected.check(made, by_client=False)
    return made


class Judge:
    """The server's: whose fault it is that a hand-over cannot be used."""

    def __init__(self, keys: Keys, expected: Expected) -> None:
        self.known, self.expected = roster_of(keys), expected

    def blames_rightly(self, packet: Packet, key: bytes) -> bool:
        """Whether a receiver's key shows that the sender sealed what is no hand-over."""
        assert packet.sealed is not None, "as the receiver was sent it"
        try:
            content = shown(self.known[packet.client], packet.sealed.numpy().tobytes(), key)
        except ProtocolError:
            return False
        try:
            unpacked(packet, content, self.expected)
        except ProtocolError:
            return True
        return False


def as_tensor(content: bytes) -> Tensor:
    """Bytes, as frames carry them."""
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
