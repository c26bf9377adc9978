"""The gate admits clients to a deployed run, over mutually authenticated gRPC streams.

A client is identified by its certificate alone. It is admitted if its owner approved the same terms
and it has no other open stream. A lost client may come back, and the run continues from its last
checkpoint.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from simsplit.assembly.ownership import Ownership
from simsplit.data import DataInfo
from simsplit.deploy import data_form
from simsplit.deploy.alignment import MOST_FRAME, Meeting
from simsplit.deploy.bounds import Bounds
from simsplit.deploy.call_codecs import MOST_WORD
from simsplit.deploy.client_session import ClientLost, ClientSession, is_open
from simsplit.deploy.data_form import read_info
from simsplit.deploy.fault_judge import FaultJudge
from simsplit.deploy.figure_bounds import Holdings
from simsplit.deploy.frames import LEAST_BYTES, write_frame
from simsplit.deploy.handovers import HandoverJudge, undoes_turns
from simsplit.deploy.keys import Keys, parse_client
from simsplit.deploy.remote_pool import RemotePool
from simsplit.deploy.server_tables import LeftOutTable, SocketTable, clean
from simsplit.deploy.trunk_watch import Growth
from simsplit.errors import ProtocolError, RunFailedError, SimsplitError, format_list
from simsplit.legs import ClientId
from simsplit.scenario import Scenario

if TYPE_CHECKING:
    import grpc

METHOD = "/simsplit.Cut/Stream"
VERSION = 2
"""The version of the messages; seals of version 1 name no size."""
HANDSHAKE_S = 20.0
"""Seconds within which a new stream must greet the server."""
MOST_UNKNOWN = 2**28
"""Most bytes of a frame while only the clients know the form of their data."""
MOST_WAITING = 256
"""Most streams that may wait for a thread; each takes one for a moment only, unless it greets."""
OPTIONS = (
    # Otherwise a second server could listen on the same port, and get half of the clients.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Clients ping through long rounds without data, for which gRPC would cut them off.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 4),
)


class Gate:
    """The place that admits the clients of a deployed run, and keeps their greetings."""

    def __init__(
        self,
        scenario: Scenario,
        terms: str,
        sockets: SocketTable,
        left_out: LeftOutTable,
        *,
        deadline_s: float,
        patience_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Make a gate that is not open yet.

        `terms` is the digest that clients must send. `left_out` has the clients that the run
        continues without. `deadline_s` is the time for one answer, and
        `patience_s` the time for clients that are away. `say` prints who comes and goes.
        """
        self.scenario, self.terms, self.sockets = scenario, terms, sockets
        self.deadline_s, self.patience_s, self.say = deadline_s, patience_s, say
        self.count = scenario.clients.count
        self.sessions: dict[ClientId, ClientSession] = {}
        self.greetings: dict[ClientId, dict[str, Any]] = {}
        """Each client's greeting, which describes its machine and data."""
        info = self._info = scenario.data.describe()
        self._form: data_form.Form | None = None
        """The description of data that all clients share, once all have been here."""
        self._refused: dict[ClientId, str] = {}
        """Why a client's data were refused when the others agreed on a form."""
        self.most_bytes = MOST_UNKNOWN if info is None else self._build_bounds(info).most_bytes
        self.meeting = Meeting(terms) if scenario.data.aligns else None
        """Where parties align their ids before they greet; None if they do not."""
        self._silent: dict[ClientId, ClientSession] = {}
        """For each client, its stream that has not greeted yet."""
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._keys: Keys | None = None
        self._judge: HandoverJudge | None = None
        self._closing = ""
        self._growth = Growth()
        self.table, self._faults = left_out, FaultJudge(scenario, left_out)
        self.round = 1
        """The round in which a client was last lost."""

    def __len__(self) -> int:
        return 0

    def open(self, listen: str, keys: Keys) -> int:
        """Listen on an address and return the port; raise RunFailedError if it is not available."""
        import grpc

        self._keys = keys
        # A stream keeps its thread to the end. A client that comes back needs a second one while
        # the first still hangs.
        self._threads = ThreadPoolExecutor(2 * self.count + 4, thread_name_prefix="client")
        most = max(self.most_bytes, MOST_FRAME if self.meeting else 0)
        options = (*OPTIONS, ("grpc.max_receive_message_length", most))
        self._server = grpc.server(
            self._threads,
            options=options,
            maximum_concurrent_rpcs=2 * self.count + MOST_WAITING,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve_stream)
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
        """Send clients the reason why the run is over, and stop listening."""
        self._closing = why
        if self.meeting is not None:
            self.meeting.close(why)
        for session in list(self.sessions.values()):
            session.end(why, {"over": why})
        # gRPC's server holds this gate for good: a gate that held it would never be freed.
        server, self._server = self._server, None
        if server is not None:
            server.stop(grace=2).wait()
        if self._threads is not None:
            # gRPC leaves them waiting for work; each holds memory of its own
            self._threads.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until every client is here, with data of one form.

        After `patience_s`, continue without the others if `clients.quorum` allows that; else raise
        RunFailedError. Then the form of the data is fixed for the run.
        """
        end = time.monotonic() + self.patience_s
        if len(self.left_out) == self.count:
            raise RunFailedError("no client remains; expelled.csv has the reasons")
        with self._changed:
            self._wait_for_all(end)
            # those who were refused may come back with other data, while there is time
            while self._agree():
                self._wait_for_all(end)

    def _wait_for_all(self, end: float) -> None:
        """Wait until a time for those who are missing; then leave them out, or raise."""
        while missing := self._find_missing():
            if not self._changed.wait(min(1.0, max(0.0, end - time.monotonic()))):
                if time.monotonic() < end:
                    continue
                if not self.is_quorum_without(missing):
                    raise RunFailedError(
                        f"client {format_list(missing)} did not connect within "
                        f"{self.patience_s:g} s{self._describe_refused(missing)}; continue from "
                        "the last checkpoint with: simsplit serve ... --resume, or without it: "
                        f"--resume --without {missing[0]}"
                    )
                for client in missing:
                    late = f"it did not connect within {self.patience_s:g} s"
                    why = self._refused.get(client, late)
                    self.table.add(client, self.round, "away", why)
                    self.say(f"continuing without client {client}: {why}")

    def _describe_refused(self, missing: Sequence[ClientId]) -> str:
        """Describe why missing clients were refused, if they were."""
        refused = [f"client {c} was refused: {why}" for c, why in self._refused.items()]
        return f" ({'; '.join(refused)})" if set(missing) & self._refused.keys() else ""

    def _agree(self) -> bool:
        """Fix the form that most clients have, and refuse the others; return whether any was.

        Nobody is refused earlier, or whoever greets first could keep all others out.
        """
        if self._form is not None:
            return False
        present = [client for client in range(self.count) if client not in self.left_out]
        forms = {client: self.greetings[client]["form"] for client in present}
        if self.scenario.parties:
            self._form = data_form.join_forms(forms, self.scenario.label_party, self.count)
        else:
            self._form = data_form.choose_form(forms)
        for client, form in forms.items():
            if names := data_form.list_differences(form, self._form):
                why = f"its data differ from those of most clients in: {', '.join(names)}"
                self._refused[client] = why
                self.say(f"refused client {client}: {why}")
                self.sessions.pop(client).end(why, {"over": "refused", "differs": names})
                del self.greetings[client]
        return bool(self._refused)

    def pool(
        self, recipe_of: Callable[[str], Any], samples: Sequence[int], device: torch.device
    ) -> RemotePool:
        """Return a pool of the clients that are here; each has built itself from the scenario."""
        del recipe_of, samples
        present = {c: each for c, each in self.sessions.items() if c not in self.left_out}
        bounds = self.make_bounds()
        if bounds.hands_on and self._keys is not None and self._judge is None:
            strict = not undoes_turns(self.scenario)
            self._judge = HandoverJudge(self._keys, bounds, self.terms, strict=strict)
        # The form of the data is known by now, so the bound is tighter than at the greeting.
        for session in present.values():
            session.most_bytes = bounds.most_bytes
        # the trunk is again as it was at a checkpoint, so nobody has made it larger since
        self._growth = replace(self._growth, of_client={}, at_start=0.0)
        return RemotePool(
            *(present, bounds, device, self.lose, self._judge),
            check_fault=partial(self._faults.check, info=read_info(self.form), device=device),
            growth=self._growth,
        )

    def make_bounds(self) -> Bounds:
        """Return the specification of the packets that clients may send."""
        samples = {client: int(each["samples"]) for client, each in self.greetings.items()}
        return self._build_bounds(read_info(self.form), Holdings(samples, self.form["held_out"]))

    def _build_bounds(self, info: DataInfo, holdings: Holdings | None = None) -> Bounds:
        owners = Ownership(self.scenario, info, torch.device("cpu"), with_trunk=False)
        return Bounds(owners, holdings)

    @property
    def form(self) -> dict[str, Any]:
        """The description of data that all clients share; it is known once `wait` returns."""
        assert self._form is not None, "wait comes first"
        return dict(self._form)

    def count_samples(self) -> list[int]:
        """Return the number of training samples of each client; 0 of one that never greeted."""
        return [
            int(self.greetings[client]["samples"]) if client in self.greetings else 0
            for client in range(self.count)
        ]

    @property
    def left_out(self) -> frozenset[ClientId]:
        """The clients that the run continues without."""
        return self.table.clients

    @property
    def has_clipped(self) -> bool:
        """Whether the trunk's gradients were clipped, since a step had spoilt it."""
        return self._growth.clips

    def revive(self) -> list[int]:
        """Wait for clients that were lost; no host starts anew."""
        if missing := self._find_missing():
            self.say(f"waiting for client {format_list(missing)}, {self.patience_s:g} s at most")
        self.wait()
        return []

    def resident_bytes(self) -> list[int | None]:
        """Return nothing: clients use the memory of their own machines."""
        return []

    def lose(self, client: ClientId, why: str, for_good: bool, round_number: int) -> None:
        """End a client's stream; `for_good`: it is expelled, and is not admitted again."""
        self.round, why = round_number, clean(why)
        expels = for_good and client not in self.left_out
        if expels:
            self.table.add(client, round_number, "expelled", why)
            self.say(f"client {client} is expelled: {why}")
        if (session := self.sessions.get(client)) is not None:
            session.end(why, {"over": "expelled"} if expels else None)

    def give_up(self, host: ClientId, why: str, round_number: int) -> bool:
        """Expel a client that is lost again and again."""
        self.lose(host, why, True, round_number)
        return True

    def is_quorum_without(self, missing: Sequence[ClientId]) -> bool:
        """Return whether the run may continue without these clients too."""
        least = self.scenario.least_clients.count
        remaining = self.count - len(self.left_out | {*missing})
        return self.scenario.clients.quorum is not None and remaining >= least

    def _find_missing(self) -> list[ClientId]:
        """Return the clients that the run waits for."""
        wanted = (client for client in range(self.count) if client not in self.left_out)
        return [client for client in wanted if not is_open(self.sessions.get(client))]

    def _serve_stream(
        self, frames: Iterator[bytes], context: "grpc.ServicerContext"
    ) -> Iterator[bytes]:
        """Serve one client's stream, from its greeting to its end."""
        client = parse_client(_read_common_name(context))  # nothing that a client sends names it
        number = -1 if client is None else client
        # a greeting is small; do not allocate for more
        session = ClientSession(number, LEAST_BYTES, self.deadline_s, self.sockets)
        # In a thread of its own: gRPC's iterator blocks, and this one has to send meanwhile.
        threading.Thread(target=_forward_frames, args=(frames, session), daemon=True).start()
        try:
            greeting = self._receive_greeting(client, session)
            self._admit(session, greeting)
        except (ProtocolError, ClientLost, queue.Empty) as error:
            peer = "a peer that is not a client" if client is None else f"client {client}"
            self.say(f"refused {peer}: {error}")
            yield write_frame({"refused": str(error)})
            return
        purpose = "has joined" if "form" in greeting else "is here to align its ids"
        self.say(f"client {session.client} {purpose}")
        try:
            yield write_frame({"welcome": VERSION, "terms": self.terms})
            yield from session.iterate_outgoing()
        finally:
            session.end("its connection ended")
            if not self._closing:
                self.say(f"client {session.client} has gone: {session.over}")

    def _receive_greeting(self, client: ClientId | None, session: ClientSession) -> dict[str, Any]:
        """Receive a client's greeting; raise ProtocolError if the client is not admissible."""
        if client is None or client >= self.count:
            raise ProtocolError("no client of this run has this certificate")
        if (row := self.table.get(client)) is not None:
            why = "it was expelled for what it sent" if row.kind == "expelled" else row.reason
            raise ProtocolError(f"the run continues without it: {why}")
        with self._changed:
            # silent streams of one client must not take the places of the others
            if (older := self._silent.pop(client, None)) is not None:
                older.end("another stream of the same client came")
            self._silent[client] = session
        try:
            greeting = session.hear(HANDSHAKE_S)
        finally:
            with self._changed:
                if self._silent.get(client) is session:
                    del self._silent[client]
        session.most_bytes = self.most_bytes
        self._check_greeting(client, greeting)
        return greeting

    def _check_greeting(self, client: ClientId, greeting: Mapping[str, Any]) -> None:
        """Raise ProtocolError unless a greeting is well formed, and the client admissible."""
        aligns = self.meeting is not None and "form" not in greeting
        fields = {"hello", "client", "terms"} | (set() if aligns else {"facts", "form", "samples"})
        if greeting.keys() != fields:
            raise ProtocolError("a greeting with other fields than expected")
        if greeting["hello"] != VERSION:
            raise ProtocolError(
                f"its messages have version {str(greeting['hello'])[:20]}, not {VERSION}"
            )
        if greeting["client"] != client:
            raise ProtocolError(
                f"it greets as client {str(greeting['client'])[:20]} with the "
                f"certificate of client {client}"
            )
        if greeting["terms"] != self.terms:
            raise ProtocolError("its owner approved another scenario, or another mode")
        if aligns:
            return
        data_form.check_form(greeting["form"])
        if not data_form.is_count(greeting["samples"]):
            raise ProtocolError(
                f"its number of samples is not an integer in [0, {data_form.MOST_SAMPLES})"
            )
        _check_facts(greeting["facts"])
        info = None if self._info is None else self._info.of_party(client)
        data_form.refuse_undescribed(greeting["form"], self.scenario, info)
        self._refuse_unusable_form(greeting["form"])

    def _admit(self, session: ClientSession, greeting: dict[str, Any]) -> None:
        """Make a session the client's own; raise ProtocolError if it is here, or has other data."""
        if self.meeting is not None and "form" not in greeting:
            self.meeting.admit(session)
            return
        client, form = session.client, greeting["form"]
        with self._changed:
            if is_open(self.sessions.get(client)):
                raise ProtocolError(f"client {client} is connected already")
            if self._form is not None:
                before = self.greetings.get(client, greeting)
                # The run was planned by these numbers: rounds, weights of averages, and bounds.
                if before["samples"] != greeting["samples"]:
                    raise ProtocolError("it has another number of samples than before")
                data_form.refuse_other(form, self._form, "the run's")
            self.sessions[client], self.greetings[client] = session, greeting
            self._changed.notify_all()

    def _refuse_unusable_form(self, form: Mapping[str, Any]) -> None:
        """Raise ProtocolError if the scenario's model cannot be built for a client's data."""
        try:
            self.scenario.shapes(read_info(form))
        except Exception as error:  # noqa: BLE001 - whatever a model does with a foreign shape
            reason = error if isinstance(error, SimsplitError) else type(error).__name__
            raise ProtocolError(f"its data do not fit the scenario's model: {reason}") from None


def _check_facts(facts: object) -> None:
    """Raise ProtocolError unless a machine's description is small and well formed."""
    good = (
        isinstance(facts, dict)
        and len(facts) <= 20
        and all(isinstance(name, str) for name in facts)
        and all(isinstance(each, str | int) for each in facts.values())
        and sum(len(f"{name}{each}") for name, each in facts.items()) <= 2 * MOST_WORD
    )
    if not good:
        raise ProtocolError("a description of its machine that is not well formed")


def _read_common_name(context: "grpc.ServicerContext") -> str:
    """Return the name in the peer's certificate, which TLS has verified; "" if it has not one."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if len(names) == 1 else ""


def _forward_frames(frames: Iterator[bytes], session: ClientSession) -> None:
    """Pass arriving frames to the session, until the stream ends."""
    why = "its connection ended"
    try:
        for frame in frames:
            session.arrive(frame)
    except Exception as error:  # noqa: BLE001 - any error ends the stream
        why = f"its connection broke ({type(error).__name__})"
        # gRPC keeps the error; with its frames it would keep the session, and so the whole run.
        error.__traceback__ = None
    finally:
        session.end(why)
