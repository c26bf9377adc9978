"""A session is the server's side of one client's stream: requests out, answers in.

Requests are numbered, and answers come in the order of requests. A client that answers anything
else, or not in time, is faulty: its stream ends, and its open requests are lost.
"""

import queue
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from simsplit.deploy.frames import LEAST_BYTES, read_frame, write_frame
from simsplit.deploy.server_tables import FramePurpose, SocketTable, clean
from simsplit.engine.pool import HostLost
from simsplit.errors import BudgetSpentError, ProtocolError, RunFailedError
from simsplit.legs import ClientId

ACCUSATIONS = {
    "unusable": "an answer that blames another client without proof",
    "unopened": "a complaint about a seal that has a key for it",
}
MOST_UNASKED = 4
"""Most frames that a client may send beside its answers: its greeting, and a few early answers."""


class ClientLost(HostLost):
    """A client is gone, or was cut off because of what it sent."""

    advice: ClassVar[str] = "See the output in that client's own terminal"

    def __init__(self, client: ClientId, cause: str, since: int | None = None) -> None:
        """`since` is the first earlier round that is to be undone with this client's last one."""
        self.host, self.cause, self.since = client, clean(cause), since
        RunFailedError.__init__(self, f"client {client} was lost: {self.cause}")


class FaultOf(ProtocolError):  # noqa: N818 - names who is to leave
    """A client has sent what no honest client sends, whatever the others do."""

    def __init__(self, client: ClientId, what: str) -> None:
        super().__init__(what)
        self.client = client


class Accusation(ProtocolError):  # noqa: N818 - the server judges it
    """A client says that another's hand-over is of no use to it, and sends evidence.

    unusable: its content is invalid, as the seal's key shows. unopened: it has no usable key for
    this client, which has signed that. The message is about a client that has made it up.
    """

    def __init__(self, kind: str, evidence: Tensor) -> None:
        super().__init__(ACCUSATIONS[kind])
        self.kind, self.evidence = kind, evidence


class ClientSession:
    """The server's side of the stream of one client."""

    def __init__(
        self, client: ClientId, most_bytes: int, deadline_s: float, sockets: SocketTable
    ) -> None:
        self.client, self.most_bytes, self.deadline_s = client, most_bytes, deadline_s
        self.sockets = sockets
        self.over: str | None = None
        """Why the session is over; None while it is open."""
        self.fault: str | None = None
        """What the client sent that it may not send at all; None for nothing."""
        self._frames = 0
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._number = 0
        self._requests: deque[tuple[int, FramePurpose, bool]] = deque()
        self._read_early: dict[int, tuple[dict[str, Any], list[Tensor]]] = {}

    def arrive(self, frame: bytes) -> None:
        """Queue a frame that the client sent; end the session if it may not send one now.

        There is a frame for the greeting and one for each request, so the queue is bounded.
        """
        # Counted on arrival: memory could run out before a hostile client's frames are read.
        self._frames += 1
        if self._frames > self._number + MOST_UNASKED or len(frame) > max(
            self.most_bytes, LEAST_BYTES
        ):
            self.fault = self.fault or "more than it was asked for"
            self.end(f"it sent {self.fault}")
        elif self.over is None:
            self._arrived.put(frame)

    def iterate_outgoing(self) -> Iterator[bytes]:
        """Yield the frames for the client, until the session is over."""
        while (frame := self._leaving.get()) is not None:
            yield frame

    def end(self, why: str, header: dict[str, object] | None = None) -> None:
        """End the session, and send the client a last header if given; the first reason counts."""
        if header is not None:
            self._leaving.put(write_frame(header))
        self.over = self.over or why
        self._arrived.put(None)
        self._leaving.put(None)

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Wait for a header that the client sends without a request."""
        header, tensors = self._read(timeout_s)
        if tensors:
            raise ProtocolError("tensors without a request for them")
        return header

    def ask(
        self,
        purpose: FramePurpose,
        header: dict[str, object],
        tensors: Sequence[Tensor] = (),
        *,
        awaited: bool = True,
    ) -> int:
        """Send a request, and return its number.

        An answer that is not awaited is checked when a later one is read, and dropped.
        """
        if self.over is not None and self.fault is None:  # a fault is raised with the answer
            raise ClientLost(self.client, self.over)
        self._number += 1
        frame = write_frame({"number": self._number, **header}, tensors)
        self.sockets.count(self.client, purpose, down=len(frame))
        self._requests.append((self._number, purpose, awaited))
        self._leaving.put(frame)
        return self._number

    def answer(self, number: int) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the answer to a request; earlier answers are read first."""
        while number not in self._read_early:
            expected, purpose, awaited = self._requests.popleft()
            header, tensors = self._read(self.deadline_s, purpose)
            # In order, or an old answer could pass for that to a later request.
            if header.pop("number", None) != expected:
                raise ProtocolError("an answer to another request than the next one")
            for kind in ACCUSATIONS:
                if header.keys() == {kind} and len(tensors) == 1:
                    raise Accusation(kind, tensors[0])
            if (failure := header.pop("failed", None)) is not None:
                raise ClientLost(self.client, _explain_failure(purpose, str(failure)[:60]))
            if awaited:
                self._read_early[expected] = header, tensors
        return self._read_early.pop(number)

    def forget(self) -> None:
        """Stop awaiting the answers to open requests."""
        # The client may still answer; its answers are read in their turn, and dropped.
        self._read_early.clear()
        self._requests = deque((number, purpose, False) for number, purpose, _ in self._requests)

    def _read(
        self, timeout_s: float, purpose: FramePurpose | None = None
    ) -> tuple[dict[str, Any], list[Tensor]]:
        """Wait for a frame and read it; raise ClientLost if none comes in time."""
        try:
            frame = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            raise ClientLost(self.client, f"no answer within {timeout_s:g} s") from None
        if frame is None:
            # Put back, so that every later read ends too, and none waits for its whole deadline.
            self._arrived.put(None)
            if self.fault is not None:
                raise ProtocolError(self.fault)
            raise ClientLost(self.client, self.over or "its connection ended")
        if purpose is not None:
            self.sockets.count(self.client, purpose, up=len(frame))
        return read_frame(frame, self.most_bytes)


def is_open(session: ClientSession | None) -> bool:
    """Return whether there is a session, and it is not over."""
    return session is not None and session.over is None


def _explain_failure(purpose: FramePurpose, failure: str) -> str:
    """Write why a client did not answer, by the type of its error."""
    if failure == BudgetSpentError.__name__:
        return "it goes no further: the next batch would pass its budget of epsilon"
    return f"it could not answer {purpose.call} ({failure})"
