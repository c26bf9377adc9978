"""One client's stream, as the server has it: frames out, frames in, and what they were for.

Requests are numbered, and answers come in the order of requests. A client that answers anything
else, or nothing in time, is faulty: its stream ends, and what it was asked for is lost with it.
"""

import queue
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from simsplit.deploy.sockets import Sockets, What
from simsplit.deploy.tensors import frame_of, read
from simsplit.engine.pool import HostLost
from simsplit.errors import ProtocolError, RunFailedError
from simsplit.packets import ClientId


class ClientLost(HostLost):
    """A client is gone, or is asked no more because of what it sent."""

    advice: ClassVar[str] = "Look at that client's own terminal"

    def __init__(self, client: ClientId, cause: str) -> None:
        self.host, self.cause = client, cause
        RunFailedError.__init__(self, f"client {client} was lost: {cause}")


class Blames(ProtocolError):  # noqa: N818 - a message
    """A client says that what another handed over to it cannot be used, and shows it by a key."""

    def __init__(self, key: Tensor) -> None:
        super().__init__("an answer in which it blames another without proof")
        self.key = key


class Session:
    """The stream of one client."""

    def __init__(
        self, client: ClientId, most_bytes: int, deadline_s: float, sockets: Sockets
    ) -> None:
        self.client, self.most_bytes, self.deadline_s = client, most_bytes, deadline_s
        self.sockets = sockets
        self.over: str | None = None
        """Why it is over; None while it is not."""
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._number = 0
        self._open: deque[tuple[int, What, bool]] = deque()
        self._early: dict[int, tuple[dict[str, Any], list[Tensor]]] = {}

    def arrive(self, frame: bytes) -> None:
        """Take what the client sent."""
        self._arrived.put(frame)

    def leaving(self) -> Iterator[bytes]:
        """What the client is sent, until the session is over."""
        while (frame := self._leaving.get()) is not None:
            yield frame

    def end(self, why: str) -> None:
        """Be over, for the first reason that is given."""
        self.over = self.over or why
        self._arrived.put(None)
        self._leaving.put(None)

    def say(self, header: dict[str, object]) -> None:
        """Send something that is not answered."""
        self._leaving.put(frame_of(header))

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Something that the client sends unasked."""
        header, tensors = self._read(timeout_s, self.most_bytes)
        if tensors:
            raise ProtocolError("tensors that nobody asked for")
        return header

    def ask(
        self,
        what: What,
        header: dict[str, object],
        tensors: Sequence[Tensor] = (),
        *,
        awaited: bool = True,
    ) -> int:
        """Send a request; its number. An answer that nobody awaits is looked at all the same."""
        self._refuse_over()
        self._number += 1
        frame = frame_of({"number": self._number, **header}, tensors)
        self.sockets.count(self.client, what, down=len(frame))
        self._open.append((self._number, what, awaited))
        self._leaving.put(frame)
        return self._number

    def answer(self, number: int) -> tuple[dict[str, Any], list[Tensor]]:
        """The answer to a request; those before it are read on the way."""
        while number not in self._early:
            expected, what, awaited = self._open.popleft()
            header, tensors = self._read(self.deadline_s, self.most_bytes, what)
            if header.pop("number", None) != expected:
                raise ProtocolError("an answer to another request than the next one")
            if header.keys() == {"unusable"} and len(tensors) == 1:
                raise Blames(tensors[0])
            if (told := header.pop("failed", None)) is not None:
                raise ClientLost(self.client, f"it could not answer {what.call} ({str(told)[:60]})")
            if awaited:
                self._early[expected] = header, tensors
        return self._early.pop(number)

    def forget(self) -> None:
        """Await no answer any more to what has been asked."""
        self._early.clear()
        self._open = deque((number, what, False) for number, what, _ in self._open)

    def _read(
        self, timeout_s: float, most: int, what: "What | None" = None
    ) -> tuple[dict[str, Any], list[Tensor]]:
        try:
            frame = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            raise ClientLost(self.client, f"no answer within {timeout_s:g} s") from None
        if frame is None:
            self._arrived.put(None)
            raise ClientLost(self.client, self.over or "its connection ended")
        if what is not None:
            self.sockets.count(self.client, what, up=len(frame))
        return read(frame, most)

    def _refuse_over(self) -> None:
        if self.over is not None:
            raise ClientLost(self.client, self.over)
