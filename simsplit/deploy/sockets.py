"""`socket.csv`: the frames that really crossed, by client, call and leg, beside the wire's table.

A frame is what is handed to the transport: header and tensors, without what TLS and HTTP/2 add. A
round that was repeated has crossed twice, and is there twice.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import Call
from simsplit.progress import Observer, RoundTold
from simsplit.results.directory import SOCKET, writing

COLUMNS = ("round", "client", "call", "leg", "down_frames", "down_bytes", "up_frames", "up_bytes")


@dataclass(frozen=True)
class What:
    """What a frame is for."""

    call: str
    leg: str = ""
    """The leg that the server's frame brings, or that a begun step answers on."""


def what_of(call: Call[object]) -> What:
    """A call by its type, and the leg of what it brings."""
    brought: Iterable[Packet] = getattr(call, "packets", ())
    packet = getattr(call, "packet", None)
    every = [packet] if packet is not None else brought
    return What(type(call).__name__, "+".join(str(each.leg) for each in every))


class Sockets(Observer):
    """Counts frames, and writes what was counted when a round is done."""

    def __init__(self, path: Path) -> None:
        self.file = path / SOCKET
        self._counts: dict[tuple[ClientId, What], list[int]] = {}
        self.up = 0
        self.down = 0

    def count(self, client: ClientId, what: What, *, up: int = 0, down: int = 0) -> None:
        """Add a frame of so many bytes, one way or the other."""
        counts = self._counts.setdefault((client, what), [0, 0, 0, 0])
        for place, nbytes in ((0, down), (2, up)):
            counts[place] += nbytes > 0
            counts[place + 1] += nbytes
        self.up += up
        self.down += down

    def round(self, told: RoundTold) -> None:
        """Append the rows of what crossed since the last round."""
        counted, self._counts = self._counts, {}
        with writing(self.file):
            fresh = not self.file.exists()
            with self.file.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if fresh:
                    writer.writerow(COLUMNS)
                for (client, what), counts in counted.items():
                    writer.writerow([told.number, client, what.call, what.leg, *counts])
