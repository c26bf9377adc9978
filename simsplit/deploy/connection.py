"""A client connects to its server, answers its calls, and waits for it when it is gone."""

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from simsplit.deploy.data_form import FIELDS
from simsplit.deploy.frames import LEAST_BYTES, read_frame, write_frame
from simsplit.deploy.gate import METHOD, VERSION
from simsplit.deploy.keys import DOMAIN, SERVER, Keys
from simsplit.errors import ProtocolError, RunError, RunFailedError
from simsplit.legs import ClientId

if TYPE_CHECKING:
    import grpc

MOST_IDLE = 20
"""Streams in a row in which a server asked for no batch and no checkpoint, and ended them."""
PAUSE_S = 0.5
"""Seconds between two attempts to connect."""
ENDS = ("finished", "interrupted", "failed", "expelled")
_NOT_OURS = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "BAD_SIGNATURE")
"""Marks of gRPC's messages about a certificate that this deployment's authority did not issue."""
Say = Callable[[str], None]


class JoiningSite(ABC):
    """What a party has on its machine to answer a server's requests."""

    number: ClientId
    terms: str
    most_bytes: int
    """The most bytes that a frame of the server may have."""
    steps = 0
    """Batches sent so far."""
    rounds_kept = 0
    """The round of the last checkpoint."""
    is_welcomed = False
    """Whether a server has welcomed the client since it last waited for one."""
    _last_number = 0

    def enable_sealing(self, keys: Keys) -> None:  # noqa: B027 - not all hand weights over
        """Seal hand-overs by keys, so that only this deployment's clients can read them."""

    @abstractmethod
    def describe_itself(self) -> dict[str, Any]:
        """Return the fields of the greeting, by which the server admits this party."""

    def start_stream(self) -> None:
        """Begin a new stream, whose requests are numbered from 1."""
        self._last_number = 0

    @abstractmethod
    def answer(self, frame: bytes) -> bytes:
        """Answer a request; raise ProtocolError for what the server may not ask."""

    def report_failure(self, error: Exception) -> bytes:
        """Return an answer that reports a failure.

        Only the error's type crosses: its message could contain the owner's data.
        """
        return write_frame({"number": self._last_number, "failed": type(error).__name__})


class ServerGone(Exception):  # noqa: N818 - an event to wait after
    """The server does not answer, or has closed the stream."""


def join(address: str, keys: Keys, site: JoiningSite, *, patience_s: float, say: Say) -> str:
    """Answer a server's calls until the run is over, and return why it is over.

    Wait for a server that is away; raise RunFailedError after `patience_s` seconds.
    """
    # Now, so that keys that lack a client end this command, and not a round of all.
    site.enable_sealing(keys)
    until = time.monotonic() + patience_s
    waiting, idle, done = False, 0, (site.steps, site.rounds_kept)
    while True:
        try:
            return _serve_stream(address, keys, site, say)
        except ServerGone as gone:
            before, done = done, (site.steps, site.rounds_kept)
            idle = idle + site.is_welcomed if done == before else 0
            if idle >= MOST_IDLE:
                raise RunFailedError(
                    f"the server at {address} welcomed this client {idle} times in a row, and "
                    f"ended the stream without any work ({gone}); kept: round {site.rounds_kept}"
                ) from None
            if site.is_welcomed:
                # Patience begins anew with each server that was there, or it would be spent by a
                # long run.
                until, site.is_welcomed = time.monotonic() + patience_s, False
                waiting = False
            if time.monotonic() > until:
                raise RunFailedError(
                    f"no server at {address} within {patience_s:g} s ({gone}); "
                    f"kept: round {site.rounds_kept}"
                ) from None
            if not waiting:
                say(f"no server at {address} ({gone}); waiting for it, {patience_s:g} s at most")
            waiting = True
            time.sleep(PAUSE_S)


def open_channel(address: str, keys: Keys, most_bytes: int) -> "grpc.Channel":
    """Open a channel that trusts this deployment's authority only, and its server only."""
    import grpc

    proof = grpc.ssl_channel_credentials(keys.authority, keys.key, keys.certificate)
    options = (
        # keys name the server, not its address: no other holder of a certificate passes for it
        ("grpc.ssl_target_name_override", SERVER + DOMAIN),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Requests are numbered and steps change weights: gRPC must not send a stream again.
        ("grpc.enable_retries", 0),
        # A new channel connects at once, instead of sharing a failed one's growing pauses.
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.secure_channel(address, proof, options=options)


def _serve_stream(address: str, keys: Keys, site: JoiningSite, say: Say) -> str:
    """Connect once, and serve the stream from the greeting to its end."""
    import grpc

    leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    leaving.put(write_frame({"hello": VERSION, **site.describe_itself()}))
    with open_channel(address, keys, site.most_bytes) as channel:
        stream = channel.stream_stream(METHOD)(iter(leaving.get, None))
        try:
            return _answer_requests(stream, leaving, site, say)
        except grpc.RpcError as error:
            raise ServerGone(_describe_error(error)) from None
        finally:
            leaving.put(None)
            with suppress(grpc.RpcError):
                stream.cancel()


def _answer_requests(
    frames: Iterator[bytes],
    leaving: "queue.SimpleQueue[bytes | None]",
    site: JoiningSite,
    say: Say,
) -> str:
    """Answer each request of the stream, and return why the run is over."""
    _check_welcome(next(frames, None), site, say)
    site.start_stream()
    for frame in frames:
        if (over := _read_end(frame)) is not None:
            return over
        try:
            leaving.put(site.answer(frame))
        except ProtocolError as error:
            raise RunFailedError(
                f"the server sent a request that the approved scenario does not allow: {error}. "
                f"This client has left the run; kept: round {site.rounds_kept}"
            ) from None
        except Exception as error:
            leaving.put(site.report_failure(error))
            time.sleep(PAUSE_S)  # so that the answer leaves before the stream closes
            raise
    raise ServerGone("it ended the stream")


def _check_welcome(frame: bytes | None, site: JoiningSite, say: Say) -> None:
    """Raise RunError unless a frame welcomes this client to the approved run."""
    if frame is None:
        raise ServerGone("it ended the stream")
    header, _ = read_frame(frame, LEAST_BYTES)
    if "refused" in header:
        raise RunError(f"the server refuses this client: {str(header['refused'])[:500]}")
    if header != {"welcome": VERSION, "terms": site.terms}:
        raise RunError(
            "the server runs another scenario, or in another mode, than the one approved here; "
            "compare the two files"
        )
    site.is_welcomed = True
    say(f"joined as client {site.number}")


def _read_end(frame: bytes) -> str | None:
    """Return why the run is over, or None if a frame does not say so.

    Raise RunError if the server expelled this client, and ServerGone if the run may continue.
    """
    # Only an end is this short; a request is read once, in `answer`, with the bounds of the run.
    if len(frame) > 2**8:
        return None
    header, tensors = read_frame(frame, LEAST_BYTES)
    why: Any = header.get("over")
    if why == "refused" and not tensors:
        raise RunError(
            f"the server refuses this client: its data differ from those of most clients in: "
            f"{_list_fields(header)}; compare --data and --set with the other owners"
        )
    if header.keys() != {"over"} or tensors or why not in ENDS:
        return None
    if why == "finished":
        return str(why)
    if why == "expelled":
        raise RunError(
            "the server expelled this client because of what it sent; ask the server's owner why"
        )
    raise ServerGone(f"the run was {why}" if why == "interrupted" else "the run failed")


def _list_fields(header: Mapping[str, Any]) -> str:
    """List the fields of a description of data that a server names, and no other words of it."""
    named = header.get("differs")
    return ", ".join(
        sorted(FIELDS.keys() & set(map(str, named if isinstance(named, list) else ())))
    )


def _describe_error(error: "grpc.RpcError") -> str:
    """Return gRPC's reason in brief; raise RunError if the server's certificate is not valid."""
    details = str(getattr(error, "details", lambda: "")() or "")
    # A signature that is wrong is that of another authority with this one's name.
    if any(mark in details for mark in _NOT_OURS):
        raise RunError(
            "the server's certificate is not one of this deployment's, or is not valid now; are "
            "the keys of both sides from the same `simsplit deploy keys`?"
        )
    return details[:300] or type(error).__name__
