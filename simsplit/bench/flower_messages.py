"""The same training through Flower's simulation, one message per leg: what that would cost.

The same clients, server, batches and weights; only the way between them differs. All clients live
in one of Flower's actors, so that their state need not travel with every message, which is kinder
to Flower than a simulation with more actors could be.
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
from simsplit.bench.given import random_images, scenario
from simsplit.bench.rounds import PHASE, Rounds
from simsplit.bench.sides import Figures, Say
from simsplit.engine.pool import Answer, InlinePool
from simsplit.errors import ProtocolError
from simsplit.machine import pinned_threads
from simsplit.packets import ClientId, Leg, Packet, Packets
from simsplit.parties.calls import Begin, Call, Proceed, ReportRound
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

CLIENTS = 10
BATCH = 16
SAMPLES = 1600


def flower_messages(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Milliseconds a step, inline and through Flower."""
    say("scale: one message per leg through Flower's simulation ...")
    with pinned_threads(1):
        return _compared(1 if quick else 3)


def _compared(steps: int) -> tuple[Table, Figures]:
    given = _scenario()
    data = random_images(given, SAMPLES)
    inline = Rounds(given, data, steps)
    inline.seconds()
    ours = inline.seconds() / (CLIENTS * steps)
    told: dict[str, float] = {}
    _simulate(given, steps, told)
    expected = Rounds(given, data, steps)
    for _ in range(2):
        expected.seconds()
    weights = expected.parts.server.learner.weights()
    if abs(sum(t.double().sum().item() for t in weights.values()) - told["checksum"]) > 1e-6:
        raise ProtocolError("training through Flower's messages came to other weights")
    theirs = told["seconds"] / (CLIENTS * steps)
    row = (f"{1000 * ours:.1f}", f"{1000 * theirs:.0f}", f"{theirs / ours:.0f}", "20")
    case = f"{CLIENTS} clients, SimpleCNN, batch {BATCH}"
    title = f"one message per leg through Flower's simulation, {case}, 1 thread"
    figures = {"inline_ms": 1000 * ours, "flower_ms": 1000 * theirs, "ratio": theirs / ours}
    columns = ("inline, ms per step", "Flower, ms per step", "times as slow", "expected at least")
    return Table(title, columns, [row], "rrrr"), dict(figures)


def _scenario() -> Scenario:
    return scenario("simplecnn", BATCH, {"count": CLIENTS, "heads": "per_client"})


class _Messages(InlinePool):
    """A pool whose clients answer messages."""

    def __init__(self, grid: Any, nodes: list[int]) -> None:  # noqa: ANN401 - Flower's
        super().__init__({})
        self.grid, self.nodes = grid, nodes

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """One message there, one back."""
        from flwr.app import Message

        content = _asked(client, call)
        message = Message(content, dst_node_id=self.nodes[client], message_type="query")
        (reply,) = self.grid.send_and_receive([message])
        if reply.has_error():
            raise ProtocolError(f"Flower: {reply.error}")
        answer: Answer = _answer_of(reply.content)
        return answer

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self.ask(client, call)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        return {client: self.ask(client, call) for client, call in calls.items()}


def _simulate(given: Scenario, steps: int, told: dict[str, float]) -> None:
    """Two rounds through Flower, of which the second is timed."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        side = Rounds(given, random_images(given, SAMPLES), steps)
        side.parts.exchange.pool = side.parts.pool = _Messages(grid, nodes)
        side.seconds()
        told["seconds"] = side.seconds()
        weights = side.parts.server.learner.weights()
        told["checksum"] = sum(t.double().sum().item() for t in weights.values())

    with _quiet():
        run_simulation(
            server_app=server,
            client_app=_client_app(),
            num_supernodes=CLIENTS,
            backend_config={"client_resources": {"num_cpus": 2}},
        )


def _client_app() -> Any:  # noqa: ANN401 - Flower's
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        del context
        record: Any = message.content["call"]
        answer = _pool_here().ask(int(record["client"]), _call_of(message.content))
        return Message(_told(answer), reply_to=message)

    return app


_POOLS: list[InlinePool] = []
"""The clients of this process, made with the first message."""


def _pool_here() -> InlinePool:
    if not _POOLS:
        torch.set_num_threads(1)
        given = _scenario()
        pool = HostRecipe.of(given, random_images(given, SAMPLES), "cpu").build(range(CLIENTS))
        for client in pool.clients.values():
            client.training.enter(PHASE, 1.0)
        _POOLS.append(pool)
    return _POOLS[0]


def _asked(client: ClientId, call: Call[Any]) -> Any:  # noqa: ANN401 - Flower's
    """A call as Flower's records."""
    from flwr.app import ConfigRecord, RecordDict

    asked: Any = {"client": client, "call": type(call).__name__}
    asked |= {"round": call.round} if isinstance(call, Begin) else {}
    packets = _recorded(call.packets) if isinstance(call, Proceed) else {}
    return RecordDict({**packets, "call": ConfigRecord(asked)})


def _call_of(content: Any) -> Call[Any]:  # noqa: ANN401 - Flower's
    record = content["call"]
    if record["call"] == "Begin":
        return Begin(int(record["round"]))
    if record["call"] == "Proceed":
        packets = _packets(content)
        return Proceed(packets, packets[-1].leg)
    return ReportRound()


def _told(answer: Any) -> Any:  # noqa: ANN401 - any answer, as Flower's records
    from flwr.app import ConfigRecord, RecordDict

    if isinstance(answer, dict):
        values: Any = {"report": list(answer), "figures": [float(v) for v in answer.values()]}
        return RecordDict({"report": ConfigRecord(values)})
    return RecordDict(_recorded(answer))


def _answer_of(content: Any) -> Any:  # noqa: ANN401 - the reverse
    if "report" in content:
        record = content["report"]
        return dict(zip(record["report"], record["figures"], strict=True))
    return _packets(content)


def _recorded(packets: Packets) -> dict[str, Any]:
    """Packets by number: what each is, and its tensors."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    records: dict[str, Any] = {}
    for index, packet in enumerate(packets):
        said: Any = {"client": packet.client, "leg": str(packet.leg)}
        said |= {"round": packet.round, "step": packet.step}
        arrays = {str(i): Array(t.numpy()) for i, t in enumerate(packet.tensors)}
        records[f"packet{index}"] = ConfigRecord(said)
        records[f"tensors{index}"] = ArrayRecord(arrays)
    return records


def _packets(content: Any) -> Packets:  # noqa: ANN401 - the reverse
    packets = []
    for index in range(sum(name.startswith("packet") for name in content)):
        said = content[f"packet{index}"]
        arrays = content[f"tensors{index}"].to_numpy_ndarrays()
        tensors = tuple(torch.from_numpy(np.array(array)) for array in arrays)
        at = int(said["round"]), int(said["step"])
        packets.append(Packet(int(said["client"]), Leg(said["leg"]), *at, tensors))
    return tuple(packets)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Flower's and Ray's announcements."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
