"""The server: it tells every node where to join, and serves."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from simsplit.deploy.commands import serve
from simsplit.deploy.keys import SERVER, load_keys
from simsplit.errors import RunFailedError
from simsplit.scenario import load_scenario
from simsplit_flower import mode_of, pin_of

TTL_S = 30 * 24 * 3600.0
"""A message is open for as long as its node trains; Flower's own default is 12 hours."""
LAST_WORDS_S = 20.0
log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for the nodes, send each its message, and train with the ones that come."""
    given = context.run_config
    for name in ("scenario", "keys", "address"):
        if not given[name]:
            raise RunFailedError(f"--run-config: {name} is missing")
    scenario, keys = Path(str(given["scenario"])), Path(str(given["keys"]))
    patience = float(given["patience"])
    nodes = _nodes(grid, load_scenario(scenario).clients.count, patience)
    terms = {
        "address": str(given["address"]),
        "authority": pin_of(load_keys(keys, SERVER)),
        "resume": bool(given["resume"]),
        "patience": patience,
    }
    content = RecordDict({"join": ConfigRecord(terms)})
    messages = [Message(content, node, MessageType.QUERY, ttl=TTL_S) for node in nodes]
    sent = list(grid.push_messages(messages))
    serve(
        scenario,
        listen=str(given["listen"]),
        keys=keys,
        out=Path(str(given["out"])) if given["out"] else None,
        mode=mode_of(given["mode"]),
        resume=bool(given["resume"]),
        patience=patience,
    )
    _hear_out(grid, sent)


def _nodes(grid: Grid, count: int, patience: float) -> Sequence[int]:
    """Return all nodes, once there are enough of them."""
    end = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise RunFailedError(f"{len(nodes)} nodes came within {patience:g} s, not {count}")
        time.sleep(1)
    return nodes


def _hear_out(grid: Grid, sent: Sequence[str]) -> None:
    """Log how the nodes ended, as far as they say so in time."""
    left, end = set(sent), time.monotonic() + LAST_WORDS_S
    while left and time.monotonic() < end:
        for reply in grid.pull_messages(left):
            left.discard(reply.metadata.reply_to_message_id)
            message = "an error" if reply.has_error() else reply.content["end"]["how"]
            log.info("node %s: %s", reply.metadata.src_node_id, message)
        time.sleep(0.5)
