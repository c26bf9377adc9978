"""The server takes blinded ids from party to party, and says which rows all parties have.

Each party's points go round all others, signed by whoever blinded them last, so the server can
neither read an id nor have a party blind what no party sent. At the end it compares points that all
parties have blinded. It learns how many rows the parties share, and no id. A party learns which of
its own rows all have, and how many rows each other party has.

A party that follows the protocol with ids that it has made up, or leaves ids out, is not seen: no
protocol of this kind can.

Ids are blinded as points of an elliptic curve, by openmined-psi. A party multiplies the point of
each id by a secret number, and so does every other party in turn. The order of these does not
matter, so ids that all parties have end as equal points. Nobody gets from a point to an id without
all of the secrets (Meadows, 1986; Huberman, Franklin and Hogg, 1999). The package's own protocol is
for two parties; its two steps, used in a ring, are this one.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from simsplit.deploy.client_session import ClientLost, ClientSession, FaultOf, is_open
from simsplit.deploy.frames import bytes_to_tensor
from simsplit.deploy.keys import RosterEntry
from simsplit.deploy.seals import verify_signature
from simsplit.deploy.server_tables import FramePurpose
from simsplit.errors import (
    ProtocolError,
    RunFailedError,
    SimsplitError,
    format_list,
    install_command,
)
from simsplit.legs import ClientId

POINT_BYTES = 33
"""Bytes of a point in compressed form."""
MOST_IDS = 2**20
"""Most ids that a party may bring: each takes every party about 0.1 ms."""
LEAST_IDS = 2
_CURVE = ec.SECP256R1()
MOST_FRAME = (MOST_IDS + 2**10) * POINT_BYTES
"""Most bytes of a frame of the alignment."""
_PURPOSE = FramePurpose("Align", "alignment")


class PartiesAway(RunFailedError):  # noqa: N818 - an event to go on from, with a quorum
    """Parties have not come in time; they may be left out if `clients.quorum` allows that."""

    def __init__(self, clients: list[ClientId], patience_s: float) -> None:
        self.clients = clients
        super().__init__(
            f"client {format_list(clients)} did not come to align ids within {patience_s:g} s. "
            "Parties that aligned before have the common ids in their --out folder; if one has "
            "lost it, start all parties with new ones"
        )


def make_statement(terms: str, origin: ClientId, hop: int, points: Tensor) -> bytes:
    """Return what a party signs of points: whose ids they are, and how often they were blinded."""
    head = f"simsplit alignment 1\n{terms}\n{origin}\n{hop}\n".encode()
    return head + hashlib.sha256(points.numpy().tobytes()).digest()


class Meeting:
    """The parties that are here to align their ids, before any of them greets the run."""

    def __init__(self, terms: str) -> None:
        self.terms = terms
        self.is_over = False
        self._sessions: dict[ClientId, ClientSession] = {}
        self._changed = threading.Condition()

    def admit(self, session: ClientSession) -> None:
        """Let a party wait for the others; raise ProtocolError if it is too late."""
        with self._changed:
            if self.is_over:
                raise ProtocolError(
                    "the parties have aligned their ids already; join with --resume, and the --out "
                    "folder that has the common ids"
                )
            if is_open(self._sessions.get(session.client)):
                raise ProtocolError(f"client {session.client} is connected already")
            session.most_bytes = MOST_FRAME
            self._sessions[session.client] = session
            self._changed.notify_all()

    def drop(self, client: ClientId) -> None:
        """End the stream of a party that is expelled."""
        self._sessions.pop(client).end("expelled", {"over": "expelled"})

    def close(self, why: str) -> None:
        """End the streams of all parties that are here."""
        for session in list(self._sessions.values()):
            session.end("its ids are aligned" if self.is_over else why, {"over": why})

    def hold(
        self,
        find_parties: Callable[[], Collection[ClientId]],
        has_greeted: Callable[[ClientId], bool],
        roster: Mapping[ClientId, RosterEntry],
        patience_s: float,
    ) -> None:
        """Align the ids of the parties; return once they are aligned, now or before.

        `find_parties` returns those that the run has. Raise PartiesAway if one does not come,
        RunFailedError if they share too few ids, and FaultOf for what a party sends.
        """
        until = time.monotonic() + patience_s
        while not self.is_over:
            parties = sorted(find_parties())
            # parties that kept the common ids of an earlier start do not align them again
            if all(map(has_greeted, parties)):
                return
            if missing := [each for each in parties if not is_open(self._sessions.get(each))]:
                with self._changed:
                    self._changed.wait(0.2)
                if time.monotonic() > until:
                    raise PartiesAway(missing, patience_s)
                continue
            sessions = {party: self._sessions[party] for party in parties}
            try:
                self._align(parties, roster)
            except ClientLost as lost:  # it may come back; then all begin anew, by new secrets
                # It may have come back already: its new stream stays.
                sessions[lost.host].end(lost.cause)
                for session in sessions.values():
                    session.forget()

    def _align(self, parties: list[ClientId], roster: Mapping[ClientId, RosterEntry]) -> None:
        """Have all parties' ids blinded by all, and send each the places of its common rows."""
        points: dict[ClientId, tuple[Tensor, ...]] = dict.fromkeys(parties, ())
        # all parties work at once: in each hop every party has the points of another one
        for hop in range(len(parties)):
            asked = [self._ask_to_blind(parties, origin, hop, points[origin]) for origin in parties]
            points = {each.origin: self._read_points(each, roster) for each in asked}
        blinded = {origin: split_points(each[0]) for origin, each in points.items()}
        common = set[bytes].intersection(*map(set, blinded.values()))
        if len(common) < LEAST_IDS:
            raise RunFailedError(
                f"the parties have {len(common)} ids in common, and at least {LEAST_IDS} are "
                "needed; compare data.source.id and how ids are written"
            )
        for party in parties:
            places = torch.tensor([n for n, each in enumerate(blinded[party]) if each in common])
            session = self._sessions[party]
            try:
                session.answer(session.ask(_PURPOSE, {"common": len(places)}, [places]))
            except ProtocolError as error:
                raise FaultOf(party, str(error)) from None
        self.is_over = True
        self.close("finished")

    def _ask_to_blind(
        self, parties: list[ClientId], origin: ClientId, hop: int, sent: tuple[Tensor, ...]
    ) -> "_Asked":
        """Ask the party that is next in the ring to blind an origin's points; its own at hop 0."""
        place = parties.index(origin) + hop
        party, before = parties[place % len(parties)], parties[(place - 1) % len(parties)]
        header: dict[str, object] = {"blind": len(parties)}
        if hop:
            header = {"blind_again": origin, "hop": hop, "from": before}
        number = self._sessions[party].ask(_PURPOSE, header, sent)
        return _Asked(party, origin, hop, number, len(sent[0]) if sent else None)

    def _read_points(
        self, asked: "_Asked", roster: Mapping[ClientId, RosterEntry]
    ) -> tuple[Tensor, ...]:
        """Return points with the signature of who blinded them; raise FaultOf for wrong ones."""
        try:
            _, answered = self._sessions[asked.party].answer(asked.number)
            points, signature = answered if len(answered) == 2 else (torch.empty(0),) * 2
            check_points(points, asked.points)
            statement = make_statement(self.terms, asked.origin, asked.hop, points)
            verify_signature(roster[asked.party], statement, signature)
        except ProtocolError as error:
            raise FaultOf(asked.party, str(error)) from None
        return points, signature


class _Asked(NamedTuple):
    """A request to blind an origin's points once more."""

    party: ClientId
    origin: ClientId
    hop: int
    number: int
    points: int | None
    """The number of points that were sent; None for a party's own."""


def has_psi() -> bool:
    """Return whether openmined-psi is installed; a folder that it left behind is not it."""
    try:
        return find_spec("private_set_intersection.python") is not None
    except ModuleNotFoundError:
        return False


def require_psi() -> None:
    """Raise SimsplitError if openmined-psi is not installed."""
    if not has_psi():
        raise SimsplitError(
            f"data.source.align: psi needs the package openmined-psi: {install_command('psi')}"
        )


class Blinder:
    """One party's secret number, which is used for one alignment."""

    def __init__(self) -> None:
        """Draw a secret number; raise SimsplitError without openmined-psi."""
        require_psi()
        from private_set_intersection import python as psi

        self._own = psi.client.CreateWithNewKey(True)
        self._others = psi.server.CreateFromKey(self._own.GetPrivateKeyBytes(), True)
        self._request = psi.Request

    def blind(self, ids: Sequence[str]) -> Tensor:
        """Return a point for each id, in their order."""
        return _pack(self._own.CreateRequest(list(ids)).encrypted_elements)

    def blind_again(self, points: Tensor) -> Tensor:
        """Return another party's points, blinded by this party too, in their order."""
        request = self._request(reveal_intersection=True)
        request.encrypted_elements.extend(split_points(points))
        return _pack(self._others.ProcessRequest(request).encrypted_elements)


def _pack(points: Sequence[bytes]) -> Tensor:
    return bytes_to_tensor(b"".join(points)).view(len(points), POINT_BYTES)


def split_points(points: Tensor) -> list[bytes]:
    """Return the bytes of each point."""
    return [row.tobytes() for row in points.numpy()]


def check_points(points: Tensor, count: int | None = None) -> None:
    """Raise ProtocolError unless these are different points of the curve, `count` in number."""
    good = points.dtype == torch.uint8 and points.dim() == 2 and points.shape[1] == POINT_BYTES
    if not good or not LEAST_IDS <= len(points) <= MOST_IDS:
        raise ProtocolError(f"blinded ids that are not {LEAST_IDS} to {MOST_IDS:,} points")
    if count not in (None, len(points)):
        raise ProtocolError(f"{len(points)} blinded ids for {count}")
    each = split_points(points)
    if len(set(each)) < len(each):
        raise ProtocolError("a blinded id that is there twice")
    try:
        for point in each:
            ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        raise ProtocolError("a blinded id that is no point of the curve") from None
