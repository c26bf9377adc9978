"""A transcript is read here, packet by packet: what crossed, and never the truth.

The table of packets is gone through line by line and tensors are read as they are asked for, so a
transcript of any size takes the memory of one packet. A `Transcript` opens no file below `truth`:
file names have no folders, and only `truth.Truth` opens that one.

    wire = Transcript.open(Path("wire"))
    wire.facts.modality, wire.summary.packets
    for packet in wire.packets(legs=["smashed"], phase="targets"):   # for attacks: packets alone
        attack.observe(packet)
    for crossing in wire.crossings():                                # for the driver: ids, too
        crossing.packet, crossing.ids
    plain = wire.open_reference()                                    # None: there is none
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simsplit.errors import RunError
from simsplit.foreign import MOST_YAML, parse_yaml
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.wires.array_rows import PICKLED
from simsplit.wires.confined import MOST_INDEX, ConfinedFolder
from simsplit.wires.facts import (
    COLUMNS,
    FACTS,
    PACKETS,
    REFERENCE,
    PacketRow,
    TranscriptFacts,
    check_facts,
)
from simsplit.wires.tensor_file import MOST_FILE, TensorFile, is_finite

MOST_PARTS = 64
"""Tensors of a packet, at most."""


class RecordedPacket(NamedTuple):
    """A packet with what the recorder noted of it."""

    packet: Packet
    ids: tuple[int, ...]
    """The ids of its samples; empty if they are not known."""
    phase: str


@dataclass
class TranscriptSummary:
    """What the table of packets says of all of them, without their tensors."""

    packets: int = 0
    by_leg: Counter[str] = field(default_factory=Counter)
    """Packets by leg."""
    by_phase: Counter[str] = field(default_factory=Counter)
    clients: Counter[ClientId] = field(default_factory=Counter)
    """Packets by client."""
    samples: Counter[str] = field(default_factory=Counter)
    """Samples whose ids are known, repetitions included, by leg."""
    rounds: int = 0
    """The last round."""
    has_truth: bool = False
    """Whether a folder of truth lies beside the packets; it is not opened here."""


class Transcript:
    """A recorded wire, read by parts."""

    def __init__(self, folder: ConfinedFolder) -> None:
        self._folder = folder
        text = folder.read_text(FACTS, MOST_YAML)
        with folder.explain(FACTS):
            values = parse_yaml(text)
        self.facts = check_facts(values, folder.describe(FACTS))
        self.left_out = 0
        """Packets of the last pass that were left out, since they hold numbers that are not finite.
        """

    @classmethod
    def open(cls, path: Path | str) -> "Transcript":
        """Open a transcript's folder; raise RunError with the file and the field that is wrong."""
        return cls(ConfinedFolder.open(Path(path)))

    @property
    def name(self) -> str:
        """The folder's name, for messages."""
        return self._folder.name

    def summarise(self) -> TranscriptSummary:
        """Go through the table of packets once; raise RunError at the first line that is wrong."""
        summary = TranscriptSummary(has_truth=self._folder.has("truth"))
        for row in self.rows():
            summary.packets += 1
            summary.by_leg[row.leg] += 1
            summary.by_phase[row.phase] += 1
            summary.clients[row.client] += 1
            summary.samples[row.leg] += len(row.ids)
            summary.rounds = max(summary.rounds, row.round)
        return summary

    def rows(self) -> Iterator[PacketRow]:
        """Yield the rows of the table of packets, in order; no tensor is read."""
        for number, cells in enumerate(self._folder.read_lines(PACKETS, MOST_INDEX), 2):
            with self._folder.explain(PACKETS):
                try:
                    yield _parse_row(cells, self.facts)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None

    def packets(
        self,
        legs: Collection[str] | None = None,
        phase: str | None = None,
        clients: Collection[ClientId] | None = None,
    ) -> Iterator[Packet]:
        """Yield packets in order, for attacks; see `crossings`."""
        for crossing in self.crossings(legs, phase, clients):
            yield crossing.packet

    def crossings(
        self,
        legs: Collection[str] | None = None,
        phase: str | None = None,
        clients: Collection[ClientId] | None = None,
    ) -> Iterator[RecordedPacket]:
        """Yield packets of these legs, phase and clients (None: all), in order, with their ids.

        A packet with numbers that are not finite is left out and counted in `left_out`: mixed
        precision sends such gradients, and no attack can use them.
        """
        yield from self.read(
            row
            for row in self.rows()
            if (legs is None or row.leg in legs)
            and (phase is None or row.phase == phase)
            and (clients is None or row.client in clients)
        )

    def read(
        self, rows: Iterable[PacketRow], most: int | None = None, *, of: int = 0
    ) -> Iterator[RecordedPacket]:
        """Yield the packets of some rows, in their order, without those that are not finite.

        `most`: of tensors with `of` rows no more than the first ones are read.
        """
        self.left_out = 0
        for row, file in self._open_files(rows):
            packet = _read_packet(file, row, most, of)
            if all(is_finite(tensor) for tensor in packet.tensors):
                yield RecordedPacket(packet, row.ids, row.phase)
            else:
                self.left_out += 1

    def measure(self) -> Iterator[tuple[PacketRow, int]]:
        """Yield each row with its packet's bytes, for which files' headers alone are read."""
        for row, file in self._open_files(self.rows()):
            yield row, sum(file.measure(name, row.rows) for name in row.tensors)

    def _open_files(self, rows: Iterable[PacketRow]) -> Iterator[tuple[PacketRow, TensorFile]]:
        opened: TensorFile | None = None
        for row in rows:
            if opened is None or opened.name != row.file:
                opened = TensorFile(self._folder, row.file)
            yield row, opened

    def find_holding(self, own: str | None) -> Path | None:
        """Find what the transcript says that the server has; None: it has none.

        Raise RunError for links on the way, and for files that would be unpickled.
        """
        if own is None:
            return None
        *folders, name = own.split("/")
        holder = self._folder.open_below(*folders)
        path = Path(self.name, own)
        if path.is_dir():
            holder.open_below(name)
            for each in path.rglob("*"):
                if each.is_symlink():
                    raise RunError(f"cannot read {each}: it is a link, and links are not followed")
                if each.suffix in PICKLED:
                    raise RunError(f"cannot read {each}: it would be unpickled, which can run code")
        else:
            os.close(holder.open_file(name, MOST_FILE))
        return path

    @property
    def has_reference(self) -> bool:
        """Whether the same samples were recorded without the defence, too."""
        return self._folder.has(REFERENCE)

    def open_reference(self) -> "Transcript | None":
        """Open the transcript of the same samples without the defence, if there is one."""
        return Transcript(self._folder.open_below(REFERENCE)) if self.has_reference else None


_NEEDED = ("client", "round", "step", "leg", "file", "tensors")
"""Columns without which no row can be read; the others may be left out."""


def _parse_row(cells: dict[str | None, Any], facts: TranscriptFacts) -> PacketRow:
    """Return a line of packets; raise ValueError with the column that is wrong."""
    if None in cells:
        raise ValueError(f"it has more cells than columns; columns: {', '.join(COLUMNS)}")
    if (lacking := next((name for name in _NEEDED if name not in cells), None)) is not None:
        raise ValueError(f"the table has no column '{lacking}'; columns: {', '.join(COLUMNS)}")
    row = PacketRow.parse(cells)
    if row.leg not in facts.legs:
        raise ValueError(f"leg: '{row.leg}' is not among the legs of {FACTS}: {facts.legs}")
    if len(row.tensors) > MOST_PARTS:
        raise ValueError(f"tensors: {len(row.tensors)} names, more than {MOST_PARTS}")
    if (row.first is None) != (row.rows is None):
        raise ValueError("first, rows: both are needed to take a part of a tensor")
    return row


def _read_packet(file: TensorFile, row: PacketRow, most: int | None, of: int) -> Packet:
    tensors = []
    for name in row.tensors:
        rows = file.count_rows(name) if row.rows is None else row.rows
        if most is not None and rows == of:
            tensors.append(file.read(name, row.first or 0, min(rows, most)))
        else:
            tensors.append(file.read(name, row.first, row.rows))
    with file.folder.explain(PACKETS):
        first = row.tensors[0]
        rows = file.count_rows(first) if row.rows is None else row.rows
        # A method may send several rows for a sample, or one for several of them.
        if row.ids and rows % len(row.ids) and len(row.ids) % max(rows, 1):
            raise ValueError(f"ids: {len(row.ids)} samples do not fit a packet of {rows} rows")
    return Packet(
        client=row.client,
        leg=Leg(row.leg),
        round=row.round,
        step=row.step,
        tensors=tuple(tensors),
        session=row.session,
        position=row.position,
    )
