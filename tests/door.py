"""An open gate on the loopback address, and guests that say at it what they like."""

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from builders import TINY

from simsplit.deploy.connection import open_channel
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.gate import METHOD, VERSION, Gate
from simsplit.deploy.keys import SERVER, Keys, client_name, load_keys, make_keys
from simsplit.deploy.server_tables import LeftOutTable, SocketTable
from simsplit.deploy.site import ClientSite
from simsplit.deploy.terms import digest_terms
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

GIVEN = parse(merge(TINY, {"clients": {"count": 2}}))
MOST = 2**28


class Guest:
    """A party that connects, says what it likes, and hears the server."""

    def __init__(self, address: str, proof: Keys) -> None:
        self.leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.channel = open_channel(address, proof, MOST)
        self.frames = self.channel.stream_stream(METHOD)(iter(self.leaving.get, None))

    def say(self, header: dict[str, Any], *tensors: torch.Tensor) -> None:
        self.leaving.put(write_frame(header, tensors))

    def hear(self) -> dict[str, Any]:
        header, _ = read_frame(next(self.frames), MOST)
        return header

    def close(self) -> None:
        self.leaving.put(None)
        self.frames.cancel()
        self.channel.close()


class Door:
    """A gate that is open, and the lines that it printed."""

    def __init__(self, folder: Path, given: Scenario = GIVEN, patience_s: float = 5) -> None:
        self.folder, self.given, self.lines = folder, given, list[str]()
        self.data = given.prepare_data()
        make_keys(folder / "keys", max(3, given.clients.count), 1)
        terms = digest_terms(given, "rehearsal")
        self.gate = Gate(
            given,
            terms,
            SocketTable(folder),
            LeftOutTable(folder, resume=False),
            deadline_s=5,
            patience_s=patience_s,
            say=self.lines.append,
        )
        port = self.gate.open("127.0.0.1:0", self.keys(SERVER))
        self.address = f"127.0.0.1:{port}"
        self.guests: list[Guest] = []

    def keys(self, name: str, folder: str = "keys") -> Keys:
        return load_keys(self.folder / folder, name)

    def guest(self, proof: Keys) -> Guest:
        self.guests.append(Guest(self.address, proof))
        return self.guests[-1]

    def client(self, number: int, **other: Any) -> Guest:
        guest = self.guest(self.keys(client_name(number)))
        guest.say({**self.hello(number), **other})
        return guest

    def hello(self, number: int) -> dict[str, Any]:
        site = ClientSite(self.given, self.data, number, self.folder / f"c{number}")
        return {"hello": VERSION, **site.describe_itself()}

    def close(self) -> None:
        for guest in self.guests:
            guest.close()
        self.gate.close("finished")


def wait_until(is_so: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
