"""`socket.csv` lists the frames that really crossed, by client, call and leg.

It complements the wire's table. A frame is a header with tensors as given to the transport, without
the bytes that TLS and HTTP/2 add. A repeated round crossed twice, so it is listed twice.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import Call
from simsplit.progress import Observer, RoundEnded
from simsplit.results.directory import SOCKET, append, writing

COLUMNS = ("round", "client", "call", "leg", "down_frames", "down_bytes", "up_frames", "up_bytes")


@dataclass(frozen=True)
class FramePurpose:
    """The purpose of a frame."""

    call: str
    """The name of the call or command."""
    leg: str = ""
    """The legs of the packets in the server's frame, joined by "+"; empty without packets."""


def describe_call(call: Call[object]) -> FramePurpose:
    """Describe a call by its type, and by the legs of its packets."""
    several: Iterable[Packet] = getattr(call, "packets", ())
    packet = getattr(call, "packet", None)
    every = [packet] if packet is not None else several
    return FramePurpose(type(call).__name__, "+".join(str(each.leg) for each in every))


class SocketTable(Observer):
    """The counts of frames, which are written after each round."""

    def __init__(self, path: Path) -> None:
        self.file = path / SOCKET
        self._counts: dict[tuple[ClientId, FramePurpose], list[int]] = {}
        self.up = 0
        self.down = 0

    def count(self, client: ClientId, purpose: FramePurpose, *, up: int = 0, down: int = 0) -> None:
        """Count a frame with its bytes, up to the server or down to the client."""
        counts = self._counts.setdefault((client, purpose), [0, 0, 0, 0])
        for place, nbytes in ((0, down), (2, up)):
            counts[place] += nbytes > 0
            counts[place + 1] += nbytes
        self.up += up
        self.down += down

    def round(self, ended: RoundEnded) -> None:
        """Append a row for each purpose of the frames since the last round."""
        counts_of_round, self._counts = self._counts, {}
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        if not self.file.exists():
            writer.writerow(COLUMNS)
        for (client, purpose), counts in counts_of_round.items():
            writer.writerow([ended.number, client, purpose.call, purpose.leg, *counts])
        with writing(self.file):
            append(self.file, rows.getvalue())
