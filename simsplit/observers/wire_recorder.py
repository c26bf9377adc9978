"""An observer writes a transcript of a run's wire: packets as the server sees them.

Of a simulated run it has the truth, too. Of a deployed one it has what the server has.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from weakref import proxy

from pydantic import ByteSize, Field

from simsplit.errors import RunError
from simsplit.legs import ClientId, Leg
from simsplit.observers.observer import ObserverConfig
from simsplit.packets import Packet
from simsplit.phases import Moment
from simsplit.progress import Observer, RoundEnded, RunPlan, Status
from simsplit.wire import SampleRows, Wire, WireObserver
from simsplit.wires.facts import check_facts
from simsplit.wires.transcript_writer import TranscriptWriter


class TranscriptConfig(ObserverConfig):
    """A transcript of what crosses, in a folder of the run directory, which can be audited."""

    kind: Literal["transcript"] = "transcript"
    folder: str = Field(default="transcript", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """The folder's name in the run directory."""
    rounds: tuple[int, ...] | None = None
    """The rounds whose packets are kept; null: all."""
    clients: tuple[ClientId, ...] | None = None
    """The clients whose packets are kept; null: all."""
    most: ByteSize = ByteSize(2**30)
    """The transcript's largest size, such as 1GiB; after it nothing more is kept."""

    reads_packets = True

    def build(self, path: Path) -> Observer:
        return TranscriptObserver(self, path / self.folder)


class TranscriptObserver(WireObserver):
    """A recorder of a run's packets; a round that runs again replaces its packets."""

    dispensable = True

    def __init__(self, config: TranscriptConfig, path: Path) -> None:
        self.config, self.path = config, path
        self.wire: Wire | None = None
        self.rows: SampleRows | None = None
        self.facts: Mapping[str, object] = {}
        self.writer: TranscriptWriter | None = None
        self._again = False
        self._ids: tuple[tuple[int, int, int, str], tuple[int, ...]] = ((-1, 0, 0, ""), ())

    def follow(self, wire: Wire, facts: Mapping[str, object], rows: SampleRows | None) -> None:
        """Follow a run's wire; its parts may have been built anew, to repeat rounds."""
        self.wire, self.facts, self.rows = wire, facts, rows
        self._again = self.writer is not None
        wire.taps.append(proxy(self))  # or the wire would hold the run's data by its observer

    def begin(self, plan: RunPlan) -> None:
        """Start the transcript, or go on after the rounds that are done."""
        facts = check_facts(dict(self.facts), "observers.transcript")
        self.writer = TranscriptWriter(self.path, facts, int(self.config.most), append=True)
        self.writer.drop_from(plan.done + 1)

    def observe(self, packet: Packet) -> None:
        """Keep a packet of training, or of the samples that a client encodes for attacks."""
        writer, wire = self.writer, self.wire
        if writer is None or wire is None or writer.ended or not self._is_wanted(packet, wire):
            return
        try:
            self._keep(packet, writer, wire)
        except RunError as error:  # a packet that no transcript can hold must not end the run
            writer.ended = str(error)

    def _keep(self, packet: Packet, writer: TranscriptWriter, wire: Wire) -> None:
        """Add a packet and, of a simulated run, what is not yet known of its samples."""
        if self._again:  # hosts were lost, and rounds are repeated
            self._again = False
            writer.drop_from(wire.moment.round)
        ids = self._find_ids(packet, wire.moment)
        writer.add_packet(packet, wire.moment.exposed or wire.moment.counted_phase, ids)
        if ids and packet.leg == self.facts["legs"][0]:  # type: ignore[index]
            assert self.rows is not None
            if fresh := writer.list_unknown(ids):
                writer.add_truth(fresh, *self.rows.take(fresh))

    def round(self, ended: RoundEnded) -> None:
        """Write what the round has sent, as the tables are written."""
        if self.writer is not None:
            self.writer.flush()

    def end(self, status: Status) -> None:
        """Close the transcript, so that it says how it ended."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _is_wanted(self, packet: Packet, wire: Wire) -> bool:
        moment, rounds, clients = wire.moment, self.config.rounds, self.config.clients
        return (
            packet.leg not in (Leg.HANDOVER, Leg.BROADCAST)  # which carry weights
            and (moment.is_training or bool(moment.exposed))
            and (rounds is None or moment.round in rounds)
            and (clients is None or packet.client in clients)
        )

    def _find_ids(self, packet: Packet, moment: Moment) -> tuple[int, ...]:
        """Return the ids of a packet's samples; all packets of a step have the same."""
        if self.rows is None:
            return ()
        at = moment.exposed, moment.counted_phase
        key: Any = (packet.client, packet.round, packet.step, *at)
        if self._ids[0] != key:
            self._ids = key, self.rows.find(packet, moment.exposed)
        ids, rows = self._ids[1], len(packet.tensors[0]) if packet.tensors[0].dim() else 0
        fits = ids and (rows % len(ids) == 0 or len(ids) % max(rows, 1) == 0)
        return ids if fits else ()
