"""The tables that a server of a deployment writes beside those that every run has.

`socket.csv` lists the frames that really crossed, by client, call and leg. It complements the
wire's table. A frame is a header with tensors as given to the transport, without the bytes that TLS
and HTTP/2 add. A repeated round crossed twice, so it is listed twice.

`expelled.csv` lists the clients that a deployed run continues without. It is kept in the run
directory, so that a server that was killed and resumed does not wait for a client that may not come
back.
"""

import csv
import io
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from simsplit.errors import RunError
from simsplit.foreign import read_csv, split_rows
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import Call
from simsplit.progress import Observer, RoundEnded
from simsplit.results.directory import EXPELLED, SOCKET, append, replace, writing

COLUMNS = ("round", "client", "call", "leg", "down_frames", "down_bytes", "up_frames", "up_bytes")
Kind = Literal["expelled", "away", "without"]
"""expelled: because of what it sent. away: it did not come in time, and `clients.quorum` allows
that. without: by the server's owner."""
MOST_REASON = 300
"""Most characters of a reason, which may quote what a client has sent."""


class FramePurpose(NamedTuple):
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


class LeftOut(NamedTuple):
    """A client that the run continues without, from a round on."""

    client: ClientId
    round: int
    kind: Kind
    reason: str


class LeftOutTable:
    """The clients that are left out of a run; each is written down before the run continues."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Read the table of a run that is resumed; a new run has none."""
        self.file = path / EXPELLED
        self._rows: dict[ClientId, LeftOut] = {}
        self._lock = threading.Lock()
        if resume and self.file.exists():
            self._rows = {row.client: row for row in _read(self.file)}
        elif self.file.exists():  # of a run that ended before its directory was complete
            self.file.unlink()

    @property
    def clients(self) -> frozenset[ClientId]:
        """The clients that are left out."""
        return frozenset(self._rows)

    def get(self, client: ClientId) -> LeftOut | None:
        """Return the row of a client; None if it is not left out."""
        return self._rows.get(client)

    def add(self, client: ClientId, round_number: int, kind: Kind, reason: str) -> None:
        """Leave a client out; the first reason counts."""
        with self._lock:  # clients that train concurrently may be expelled at the same time
            if client not in self._rows:
                reason = clean(reason)[:MOST_REASON]
                self._rows[client] = LeftOut(client, round_number, kind, reason)
                self._write()

    def readmit(self, clients: Collection[ClientId]) -> None:
        """Admit clients again, as they were expelled for what is not their fault."""
        with self._lock:
            if wrong := self._rows.keys() & clients:
                self._rows = {n: row for n, row in self._rows.items() if n not in wrong}
                self._write()

    def _write(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([LeftOut._fields, *self._rows.values()])
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace(self.file, text.getvalue().encode())


def clean(text: str) -> str:
    """Return a text on one line, without control characters, which may be a client's."""
    return "".join(each if each.isprintable() else " " for each in text)


def _read(file: Path) -> list[LeftOut]:
    """Read the table; raise RunError if it is damaged."""
    try:
        return [_parse(row) for row in split_rows(read_csv(file))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} cannot be read ({type(error).__name__}); restore it") from None


def _parse(row: Mapping[str, Any]) -> LeftOut:
    if row["kind"] not in get_args(Kind):
        raise ValueError(row["kind"])
    return LeftOut(int(row["client"]), int(row["round"]), row["kind"], row["reason"] or "")
