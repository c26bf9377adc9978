"""The server's door: mutually authenticated gRPC streams, one for each client.

Who a client is, its certificate says. It is let in once at a time, if it brings the same terms; a
client that was lost may come back, and goes on from the run's last checkpoint.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from simsplit.assembly.ownership import Ownership
from simsplit.deploy.elsewhere import form_checked
from simsplit.deploy.expected import Expected
from simsplit.deploy.handing import Judge
from simsplit.deploy.keys import Keys, client_of
from simsplit.deploy.messages import MOST_NUMBER, MOST_WORD
from simsplit.deploy.remote_pool import RemotePool
from simsplit.deploy.session import ClientLost, Session
from simsplit.deploy.sockets import Sockets
from simsplit.deploy.tensors import LEAST_BYTES, frame_of
from simsplit.errors import ProtocolError, RunFailedError, listed
from simsplit.packets import ClientId
from simsplit.scenario import Scenario

if TYPE_CHECKING:
    import grpc

METHOD = "/simsplit.Cut/Stream"
VERSION = 1
HANDSHAKE_S = 20.0
MOST_UNKNOWN = 2**28
"""Bytes of a frame, where the form of the data is not known before clients tell it."""
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 4),
)


class Gate:
    """Where a deployed run's clients come in, and what they have told."""

    def __init__(
        self,
        scenario: Scenario,
        terms: str,
        sockets: Sockets,
        *,
        deadline_s: float,
        patience_s: float,
        say: Callable[[str], None],
    ) -> None:
        """`terms` is the digest that clients must bring; `say` is told who comes and goes."""
        self.scenario, self.terms, self.sockets = scenario, terms, sockets
        self.deadline_s, self.patience_s, self.say = deadline_s, patience_s, say
        self.count = scenario.clients.count
        self.sessions: dict[ClientId, Session] = {}
        self.told: dict[ClientId, dict[str, Any]] = {}
        """What each client told of its machine and data."""
        self.most_bytes = most_bytes(scenario)
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._keys: Keys | None = None
        self._closing = ""
        self.expelled: set[ClientId] = set()

    def __len__(self) -> int:
        return 0

    def open(self, listen: str, keys: Keys) -> int:
        """Listen; the port. RunFailedError where that is not possible."""
        import grpc

        self._keys = keys
        threads = ThreadPoolExecutor(2 * self.count + 4, thread_name_prefix="client")
        options = (*OPTIONS, ("grpc.max_receive_message_length", self.most_bytes))
        self._server = grpc.server(
            threads, options=options, maximum_concurrent_rpcs=2 * self.count + 4
        )
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        service, method = METHOD[1:].split("/")
        handlers = grpc.method_handlers_generic_handler(service, {method: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        proof = grpc.ssl_server_credentials(
            [(keys.key, keys.certificate)], keys.authority, require_client_auth=True
        )
        try:
            port = self._server.add_secure_port(listen, proof)
        except RuntimeError:
            raise RunFailedError(f"cannot listen on {listen}; is the port in use?") from None
        self._server.start()
        return int(port)

    def close(self, why: str) -> None:
        """Tell clients that it is over, and why, and shut."""
        self._closing = why
        for session in list(self.sessions.values()):
            session.say({"over": why})
            session.end(why)
        if self._server is not None:
            self._server.stop(grace=2).wait()

    def wait(self) -> None:
        """Until every client is there; RunFailedError where one stays away for too long."""
        end = time.monotonic() + self.patience_s
        with self._changed:
            while missing := self._missing():
                if not self._changed.wait(min(1.0, max(0.0, end - time.monotonic()))):
                    if time.monotonic() < end:
                        continue
                    names = listed(missing)
                    raise RunFailedError(
                        f"client {names} did not come within {self.patience_s:g} s; the run is kept"
                        " as it was after its last checkpoint (serve --resume)"
                    )

    def pool(
        self, recipe_of: Callable[[str], Any], samples: Sequence[int], device: torch.device
    ) -> RemotePool:
        """The clients that are there; what they are built from they know themselves."""
        del recipe_of, samples
        there = {c: each for c, each in self.sessions.items() if c not in self.expelled}
        expected = self.expected()
        judge = Judge(self._keys, expected) if expected.hands_on and self._keys else None
        return RemotePool(there, expected, device, self.lose, judge)

    def expected(self) -> Expected:
        """What clients may send."""
        from simsplit.data import DataInfo

        form = self.form
        info = DataInfo(tuple(form["sample"]), len(form["classes"]), texts=form["texts"])
        return Expected(Ownership(self.scenario, info, torch.device("cpu")))

    @property
    def form(self) -> dict[str, Any]:
        """The form that all clients' data have."""
        return dict(self.told[0]["form"])

    def samples(self) -> list[int]:
        """How many each client trains on."""
        return [int(self.told[client]["samples"]) for client in range(self.count)]

    def revive(self) -> list[int]:
        """Wait for clients that were lost."""
        if missing := self._missing():
            self.say(f"waiting for client {listed(missing)}, {self.patience_s:g} s at most")
        self.wait()
        return []

    def resident_bytes(self) -> list[int | None]:
        """None: clients take their memory elsewhere."""
        return []

    def lose(self, client: ClientId, why: str, for_good: bool) -> None:
        """Ask a client no more, whatever it may still send; `for_good`: nor when it comes back."""
        session = self.sessions[client]
        if for_good:
            self.expelled.add(client)
            self.say(f"client {client} is expelled: {why}")
            session.say({"over": "expelled"})
        session.end(why)

    def _missing(self) -> list[ClientId]:
        there = (self.sessions.get(client) for client in range(self.count))
        return [
            client
            for client, session in enumerate(there)
            if client not in self.expelled and (session is None or session.over is not None)
        ]

    def _stream(self, frames: Iterator[bytes], context: "grpc.ServicerContext") -> Iterator[bytes]:
        """One client's stream, from its greeting to its end."""
        client = client_of(_common_name(context))
        session = Session(-1 if client is None else client, 0, self.deadline_s, self.sockets)
        threading.Thread(target=_listen, args=(frames, session), daemon=True).start()
        try:
            told = self._greeted(client, session)
        except (ProtocolError, ClientLost, queue.Empty) as error:
            self.say(f"refused {client_words(client)}: {error}")
            yield frame_of({"refused": str(error)})
            return
        self.say(f"client {session.client} has joined")
        yield frame_of({"welcome": VERSION, "terms": self.terms})
        try:
            self._admit(session, told)
            yield from session.leaving()
        finally:
            session.end("its connection ended")
            if not self._closing:
                self.say(f"client {session.client} has gone: {session.over}")

    def _greeted(self, client: ClientId | None, session: Session) -> dict[str, Any]:
        """What a client tells of itself, if it may come in."""
        if client is None or client >= self.count:
            raise ProtocolError("no client of this run has this certificate")
        if client in self.expelled:
            raise ProtocolError("it was expelled for what it sent")
        session.most_bytes = LEAST_BYTES
        told = session.hear(HANDSHAKE_S)
        session.most_bytes = self.most_bytes
        if told.keys() != {"hello", "client", "terms", "facts", "form", "samples"}:
            raise ProtocolError("a greeting of another kind")
        if told["hello"] != VERSION:
            raise ProtocolError(f"version {str(told['hello'])[:20]} of the messages, not {VERSION}")
        if told["client"] != client:
            raise ProtocolError(
                f"it comes as client {str(told['client'])[:20]} with the "
                f"certificate of client {client}"
            )
        if told["terms"] != self.terms:
            raise ProtocolError("its owner approved another scenario, or another mode")
        form_checked(told["form"])
        if not (type(told["samples"]) is int and 0 <= told["samples"] < MOST_NUMBER):
            raise ProtocolError("a number of samples that is none")
        _check_facts(told["facts"])
        self._refuse_unlike(client, told)
        return told

    def _refuse_unlike(self, client: ClientId, told: Mapping[str, Any]) -> None:
        """ProtocolError for a client that is there already, or whose data have another form."""
        with self._changed:
            there = self.sessions.get(client)
            if there is not None and there.over is None:
                raise ProtocolError(f"client {client} is there already")
            for other, known in self.told.items():
                if known["form"] == told["form"]:
                    continue
                names = [n for n, each in known["form"].items() if each != told["form"][n]]
                raise ProtocolError(f"its data differ from client {other}'s in: {', '.join(names)}")

    def _admit(self, session: Session, told: dict[str, Any]) -> None:
        with self._changed:
            there = self.sessions.get(session.client)
            if there is not None and there.over is None:
                session.end("another of the same number came first")
                return
            self.sessions[session.client] = session
            self.told[session.client] = told
            self._changed.notify_all()


def most_bytes(scenario: Scenario) -> int:
    """Of any frame of a run."""
    info = scenario.data.describe()
    if info is None:
        return MOST_UNKNOWN
    return Expected(Ownership(scenario, info, torch.device("cpu"))).most_bytes


def client_words(client: ClientId | None) -> str:
    """Whom a certificate is of, for messages."""
    return "somebody" if client is None else f"client {client}"


def _check_facts(facts: object) -> None:
    good = (
        isinstance(facts, dict)
        and len(facts) <= 20
        and all(isinstance(name, str) for name in facts)
        and all(isinstance(each, str | int) for each in facts.values())
        and sum(len(f"{name}{each}") for name, each in facts.items()) <= 2 * MOST_WORD
    )
    if not good:
        raise ProtocolError("a client that tells its machine in another form")


def _common_name(context: "grpc.ServicerContext") -> str:
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if len(names) == 1 else ""


def _listen(frames: Iterator[bytes], session: Session) -> None:
    """Hand what arrives to the session, until the stream ends."""
    why = "its connection ended"
    try:
        for frame in frames:
            session.arrive(frame)
    except Exception as error:  # noqa: BLE001 - of whatever kind: the stream is over
        why = f"its connection broke ({type(error).__name__})"
    finally:
        session.end(why)
