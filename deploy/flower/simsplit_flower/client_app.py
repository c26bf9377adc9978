"""A client: its node says who it is, where its data and keys lie, and what its owner approves."""

import logging
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from simsplit.deploy.commands import join
from simsplit.deploy.keys import client_name, load_keys
from simsplit.errors import RunError
from simsplit_flower import mode_of, pin_of

log = logging.getLogger("flwr")
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Train until the run is over; the reply says how it ended, and nothing else."""
    how = take_part(message.content["join"], context.node_config)
    return Message(RecordDict({"end": ConfigRecord({"how": how})}), reply_to=message)


def take_part(terms: Any, own: Any) -> str:  # noqa: ANN401 - Flower's records
    """Take part, and return how it ended.

    Nothing is raised: Flower would send the text of an exception to the server.
    """
    try:
        _join(terms, own)
    except Exception as error:  # noqa: BLE001 - of whatever kind
        log.error("%s", error)  # noqa: TRY400 - for the node's owner: the text says it
        return f"failed ({type(error).__name__})"
    return "finished"


def _join(terms: Any, own: Any) -> None:  # noqa: ANN401 - Flower's records
    """Run `simsplit join`, where the message says, with what the node has."""
    if lacking := [name for name in ("client", "keys", "approve") if name not in own]:
        raise RunError(f"--node-config: {', '.join(lacking)} missing")
    client, keys = int(own["client"]), Path(str(own["keys"]))
    if pin_of(load_keys(keys, client_name(client))) != terms["authority"]:
        raise RunError("the server's keys are of another deployment than this node's")
    join(
        str(terms["address"]),
        client=client,
        keys=keys,
        approve=Path(str(own["approve"])),
        out=Path(str(own["out"])) if "out" in own else None,
        data=Path(str(own["data"])) if "data" in own else None,
        mode=mode_of(own.get("mode", "rehearsal")),
        resume=bool(terms["resume"]),
        patience=float(terms["patience"]),
    )
