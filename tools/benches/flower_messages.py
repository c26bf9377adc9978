"""The same training runs through Flower's simulation, with one message per leg, to compare costs.

Clients, server, batches and weights are the same; only the transport differs. All clients live in
one of Flower's actors, so their state need not travel with each message. This favours Flower over
a simulation with more actors.
"""

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from simsplit.assembly import HostRecipe
from simsplit.bench.bench_scenarios import PHASE, Rounds, random_images, scenario
from simsplit.bench.sides import Figures, Say
from simsplit.engine.pool import Answer, InlinePool
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.machine import pin_threads
from simsplit.packets import Packet, Packets
from simsplit.parties.calls import Begin, Call, Proceed, ReportRound
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

CLIENTS = 10
BATCH = 16
SAMPLES = 1600


def flower_messages(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure the milliseconds of a step, inline and through Flower."""
    say("scale: one message per leg through Flower's simulation ...")
    with pin_threads(1):
        return _compare(1 if quick else 3)


def _compare(steps: int) -> tuple[Table, Figures]:
    given = _make_scenario()
    data = random_images(given, SAMPLES)
    inline = Rounds(given, data, steps)
    inline.seconds()
    ours = inline.seconds() / (CLIENTS * steps)
    result: dict[str, float] = {}
    _simulate(given, steps, result)
    expected = Rounds(given, data, steps)
    for _ in range(2):
        expected.seconds()
    weights = expected.parts.server.learner.weights()
    if abs(sum(t.double().sum().item() for t in weights.values()) - result["checksum"]) > 1e-6:
        raise ProtocolError("the weights of training through Flower's messages and inline differ")
    theirs = result["seconds"] / (CLIENTS * steps)
    row = (f"{1000 * ours:.1f}", f"{1000 * theirs:.0f}", f"{theirs / ours:.0f}", "20")
    case = f"{CLIENTS} clients, SimpleCNN, batch {BATCH}"
    title = f"one message per leg through Flower's simulation, {case}, 1 thread"
    figures = {"inline_ms": 1000 * ours, "flower_ms": 1000 * theirs, "ratio": theirs / ours}
    columns = ("inline, ms per step", "Flower, ms per step", "times as slow", "expected at least")
    return Table(title, columns, [row], "rrrr"), dict(figures)


def _make_scenario() -> Scenario:
    return scenario("simplecnn", BATCH, {"count": CLIENTS, "heads": "per_client"})


class _MessagePool(InlinePool):
    """A pool whose clients answer messages."""

    def __init__(self, grid: Any, nodes: list[int]) -> None:
        super().__init__({})
        self.grid, self.nodes = grid, nodes

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Send a call as one message, and return the answer from another."""
        from flwr.app import Message

        content = _write_call(client, call)
        message = Message(content, dst_node_id=self.nodes[client], message_type="query")
        (reply,) = self.grid.send_and_receive([message])
        if reply.has_error():
            raise ProtocolError(f"Flower: {reply.error}")
        answer: Answer = _read_answer(reply.content)
        return answer

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self.ask(client, call)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        return {client: self.ask(client, call) for client, call in calls.items()}


def _simulate(given: Scenario, steps: int, result: dict[str, float]) -> None:
    """Run two rounds through Flower, and time the second."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        side = Rounds(given, random_images(given, SAMPLES), steps)
        side.parts.exchange.pool = side.parts.pool = _MessagePool(grid, nodes)
        side.seconds()
        result["seconds"] = side.seconds()
        weights = side.parts.server.learner.weights()
        result["checksum"] = sum(t.double().sum().item() for t in weights.values())

    with _silence():
        run_simulation(
            server_app=server,
            client_app=_client_app(),
            num_supernodes=CLIENTS,
            backend_config={"client_resources": {"num_cpus": 2}},
        )


def _client_app() -> Any:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        record: Any = message.content["call"]
        answer = _get_pool().ask(int(record["client"]), _read_call(message.content))
        return Message(_write_answer(answer), reply_to=message)

    return app


_POOLS: list[InlinePool] = []
"""The clients of this process, built at the first message."""


def _get_pool() -> InlinePool:
    """Return this process's clients; build them at the first call."""
    if not _POOLS:
        torch.set_num_threads(1)
        given = _make_scenario()
        pool = HostRecipe.of(given, random_images(given, SAMPLES), "cpu").build(range(CLIENTS))
        for client in pool.clients.values():
            client.training.enter(PHASE, 1.0)
        _POOLS.append(pool)
    return _POOLS[0]


def _write_call(client: ClientId, call: Call[Any]) -> Any:
    """Write a call as Flower's records."""
    from flwr.app import ConfigRecord, RecordDict

    fields: Any = {"client": client, "call": type(call).__name__}
    fields |= {"round": call.round} if isinstance(call, Begin) else {}
    packets = _write_packets(call.packets) if isinstance(call, Proceed) else {}
    return RecordDict({**packets, "call": ConfigRecord(fields)})


def _read_call(content: Any) -> Call[Any]:
    record = content["call"]
    if record["call"] == "Begin":
        return Begin(int(record["round"]))
    if record["call"] == "Proceed":
        packets = _read_packets(content)
        return Proceed(packets, packets[-1].leg)
    return ReportRound()


def _write_answer(answer: Any) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    if isinstance(answer, dict):
        values: Any = {"report": list(answer), "figures": [float(v) for v in answer.values()]}
        return RecordDict({"report": ConfigRecord(values)})
    return RecordDict(_write_packets(answer))


def _read_answer(content: Any) -> Any:
    if "report" in content:
        record = content["report"]
        return dict(zip(record["report"], record["figures"], strict=True))
    return _read_packets(content)


def _write_packets(packets: Packets) -> dict[str, Any]:
    """Write packets as numbered records: each has a header and tensors."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    records: dict[str, Any] = {}
    for index, packet in enumerate(packets):
        header: Any = {"client": packet.client, "leg": str(packet.leg)}
        header |= {"round": packet.round, "step": packet.step}
        arrays = {str(i): Array(t.numpy()) for i, t in enumerate(packet.tensors)}
        records[f"packet{index}"] = ConfigRecord(header)
        records[f"tensors{index}"] = ArrayRecord(arrays)
    return records


def _read_packets(content: Any) -> Packets:
    packets = []
    for index in range(sum(name.startswith("packet") for name in content)):
        header = content[f"packet{index}"]
        arrays = content[f"tensors{index}"].to_numpy_ndarrays()
        tensors = tuple(torch.from_numpy(np.array(array)) for array in arrays)
        at = int(header["round"]), int(header["step"])
        packets.append(Packet(int(header["client"]), Leg(header["leg"]), *at, tensors))
    return tuple(packets)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence the announcements of Flower and Ray in a block."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
