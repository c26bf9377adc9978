"""How a client stays with its server: it connects, answers, and waits for a server that is gone."""

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from simsplit.deploy.gate import METHOD, VERSION
from simsplit.deploy.keys import DOMAIN, SERVER, Keys
from simsplit.deploy.site import Site
from simsplit.deploy.tensors import LEAST_BYTES, frame_of, read
from simsplit.errors import ProtocolError, RunError, RunFailedError

if TYPE_CHECKING:
    import grpc

PAUSE_S = 0.5
ENDS = ("finished", "interrupted", "failed", "expelled")
Say = Callable[[str], None]


class Gone(Exception):  # noqa: N818 - an event to wait after
    """The server is not there, or not any more."""


def join(address: str, keys: Keys, site: Site, *, patience_s: float, say: Say) -> str:
    """Answer a server's calls until it says that the run is over; what it says.

    A server that is away is waited for; RunFailedError after so many seconds.
    """
    site.seal_by(keys)
    until = time.monotonic() + patience_s
    waiting = False
    while True:
        try:
            return _served(address, keys, site, say)
        except Gone as gone:
            if site.met:
                until, site.met = time.monotonic() + patience_s, False
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


def channel_to(address: str, keys: Keys, most_bytes: int) -> "grpc.Channel":
    """A channel that believes the deployment's own authority, and nobody but its server."""
    import grpc

    proof = grpc.ssl_channel_credentials(keys.authority, keys.key, keys.certificate)
    options = (
        ("grpc.ssl_target_name_override", SERVER + DOMAIN),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.secure_channel(address, proof, options=options)


def _served(address: str, keys: Keys, site: Site, say: Say) -> str:
    """One stream, from the greeting to its end."""
    import grpc

    leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    leaving.put(frame_of({"hello": VERSION, **site.hello()}))
    with channel_to(address, keys, site.expected.most_bytes) as channel:
        stream = channel.stream_stream(METHOD)(iter(leaving.get, None))
        try:
            return _answered(stream, leaving, site, say)
        except grpc.RpcError as error:
            raise Gone(_told(error)) from None
        finally:
            leaving.put(None)
            with suppress(grpc.RpcError):
                stream.cancel()


def _answered(
    frames: Iterator[bytes],
    leaving: "queue.SimpleQueue[bytes | None]",
    site: Site,
    say: Say,
) -> str:
    """Answer request after request."""
    _welcomed(next(frames, None), site, say)
    site.connected()
    for frame in frames:
        if (over := _over(frame)) is not None:
            return over
        try:
            leaving.put(site.answer(frame))
        except ProtocolError as error:
            raise RunFailedError(
                f"the server asked for what the approved scenario does not take: {error}. This "
                f"client has gone; kept: round {site.rounds_kept}"
            ) from None
        except Exception as error:
            leaving.put(site.failed(error))
            time.sleep(PAUSE_S)  # for the word to leave
            raise
    raise Gone("it ended the stream")


def _welcomed(frame: bytes | None, site: Site, say: Say) -> None:
    if frame is None:
        raise Gone("it ended the stream")
    header, _ = read(frame, LEAST_BYTES)
    if "refused" in header:
        raise RunError(f"the server refuses this client: {str(header['refused'])[:500]}")
    if header != {"welcome": VERSION, "terms": site.terms}:
        raise RunError(
            "the server runs another scenario, or in another mode, than the one approved here; "
            "compare the two files"
        )
    site.met = True
    say(f"joined as client {site.number}")


def _over(frame: bytes) -> str | None:
    """Why the run is over, if that is what the server says."""
    if len(frame) > 2**8:
        return None
    header, tensors = read(frame, LEAST_BYTES)
    why: Any = header.get("over")
    if header.keys() != {"over"} or tensors or why not in ENDS:
        return None
    if why == "finished":
        return str(why)
    if why == "expelled":
        raise RunError("the server expelled this client for what it sent; its owner knows more")
    raise Gone(f"the run was {why}" if why == "interrupted" else "the run failed")


def _told(error: "grpc.RpcError") -> str:
    """gRPC's reason in a few words; RunError where the server is not whom the keys say."""
    details = str(getattr(error, "details", lambda: "")() or "")
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
        raise RunError(
            "the server's certificate is not one of this deployment's, or is not valid now; are "
            "the keys of both sides from the same `simsplit deploy keys`?"
        )
    return details[:300] or type(error).__name__
