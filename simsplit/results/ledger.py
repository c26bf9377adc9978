"""What a round leaves in the tables: rows made of reports, figures and what the wire counted.

Columns that a scenario has no use for are left out: of methods' losses without methods, of who fell
out where everybody stays, of simulated time without a network.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from simsplit.network.clock import Work
from simsplit.network.events import RoundTimes
from simsplit.network.timing import Clock
from simsplit.packets import ClientId, Leg
from simsplit.phases import EVALUATE
from simsplit.results.directory import RunWriter
from simsplit.rows import Cells, ClientRow, DetectionRow, RoundRow, TableRow, TimingRow, WireRow
from simsplit.wire import RECEIVED, Wire

ROUND_COLUMNS = ("round", "phase", "steps", "samples", "train_loss", "train_accuracy")
COHORT_COLUMNS = ("clients", "dropped", "late")
TIME_COLUMNS = ("simulated_s", "simulated_total_s", "server_busy", "waiting")
BYTE_COLUMNS = ("bytes_up", "bytes_down", "bytes_total")
CLIENT_COLUMNS = ("round", "client", "steps", "samples", "train_loss", "train_accuracy")
TRUTH_COLUMNS = ("malicious", "barred")
CLIENT_TIME_COLUMNS = ("compute_s", "transfer_s", "simulated_s", "waiting")
WIRE_COLUMNS = ("round", "client", "phase", "leg", "packets", "bytes")

Report = Mapping[str, float]


@dataclass(frozen=True)
class TableColumns:
    """Which columns a run's tables have beyond the usual."""

    figures: Sequence[str]
    """Of evaluations."""
    own_figures: Sequence[str] = ()
    """Those that each client has of its own as well."""
    methods: bool = False
    cohort: bool = False
    staleness: bool = False
    malicious: bool = False
    """Whether to say who is malicious and who has been barred."""
    signals: Sequence[str] = ()
    """What detectors say of each client."""
    detections: Sequence[str] = ()
    """The `detections` table's, if there is one."""
    attacked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Those of the tables that attacks fill, by table."""
    reported: Sequence[str] = ()
    """What methods say of each client."""
    handed: bool = False
    """Whether clients hand on what they share, so that some receive what others sent."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The results of one round."""

    number: int
    phase: str
    everybody: Sequence[ClientId]
    reports: Mapping[ClientId, Report] = field(default_factory=dict)
    """Of the clients that took part, in their order."""
    dropped: frozenset[ClientId] = frozenset()
    late: frozenset[ClientId] = frozenset()
    figures: Report
    """Of the splits that were evaluated; empty where none was due."""
    own: Mapping[ClientId, Report]
    """The same for each client that was scored with a model of its own."""
    signals: Mapping[ClientId, Report] = field(default_factory=dict)
    """What detectors made of each client."""
    detections: Sequence[DetectionRow] = ()
    """The result of each detector."""
    attacked: Mapping[str, Sequence[Cells]] = field(default_factory=dict)
    """What attacks recovered, by table."""
    malicious: frozenset[ClientId] = frozenset()
    barred: frozenset[ClientId] = frozenset()


class Ledger:
    """Turns rounds into rows."""

    def __init__(self, path: Path, columns: TableColumns, clock: Clock | None) -> None:
        self.clock = clock
        chosen = {"method_loss": columns.methods, "staleness": columns.staleness}
        extra = tuple(name for name, wanted in chosen.items() if wanted)
        self.averaged = ("train_loss", "train_accuracy", *extra)
        who = COHORT_COLUMNS if columns.cohort else ()
        timed = clock is not None
        self.writer = RunWriter(
            path,
            {
                "rounds": (
                    *(*ROUND_COLUMNS, *extra, *who, *columns.figures, *BYTE_COLUMNS),
                    *(("bytes_plain",) if columns.methods else ()),
                    *(TIME_COLUMNS if timed else ()),
                ),
                "clients": (
                    *(*CLIENT_COLUMNS, *extra, *who[1:]),
                    *columns.own_figures,
                    *(CLIENT_TIME_COLUMNS if timed else ()),
                    *(TRUTH_COLUMNS if columns.malicious else ()),
                    *columns.reported,
                    *columns.signals,
                ),
                **({"detections": columns.detections} if columns.detections else {}),
                **columns.attacked,
                "wire": (
                    *(*WIRE_COLUMNS, *(RECEIVED if columns.handed else ())),
                    *(("transfer_s",) if timed else ()),
                ),
                "timing": TimingRow.columns(),
            },
        )

    def enter(
        self, done: Round, wire: Wire, simulated_s: float
    ) -> tuple[RoundRow, list[ClientRow]]:
        """Append a round to the tables, and return its rows of `rounds` and `clients`.

        `simulated_s` is how long the rounds before it took.
        """
        up, down = wire.up, wire.down
        sent = wire.drain()
        row = replace(
            self._round_row(done),
            bytes_up=wire.up - up,
            bytes_down=wire.down - down,
            bytes_total=wire.up + wire.down,
        )
        times = self._times(done, sent)
        if times is not None:
            seconds = times.seconds + self._announced_s(done, sent)
            row = replace(
                row,
                simulated_s=seconds,
                simulated_total_s=simulated_s + seconds,
                server_busy=times.server_busy,
                waiting=times.waiting,
            )
        self._append("wire", sent)
        self._append("rounds", [row])
        rows = [self._client_row(done, client, times) for client in done.everybody]
        self._append("clients", rows)
        if "detections" in self.writer.columns:
            self._append("detections", done.detections)
        for table, rows_of_attacks in done.attacked.items():
            if table in self.writer.columns:
                self.writer.append(table, rows_of_attacks)
        return row, rows

    def time(self, number: int, train_s: float, evaluate_s: float, elapsed_s: float) -> None:
        """Append a round's wall-clock seconds."""
        train_s, evaluate_s, elapsed_s = (round(s, 4) for s in (train_s, evaluate_s, elapsed_s))
        self._append("timing", [TimingRow(number, train_s, evaluate_s, elapsed_s)])

    def _append(self, table: str, rows: Iterable[TableRow]) -> None:
        self.writer.append(table, (row.cells for row in rows))

    def _times(self, done: Round, sent: Sequence[WireRow]) -> RoundTimes | None:
        """Return how long the round took in simulated time, if there is a network.

        Every row of `sent` gets its own share of it.
        """
        if self.clock is None:
            return None
        for row in sent:
            received_s = self.clock.rates[row.client].received_s(*row.received)
            sent_s = self.clock.transfer_s(row.client, row.leg, row.packets, row.bytes)
            row.transfer_s = sent_s + received_s
        counts = {
            client: (int(report.get("steps", 0)), int(report.get("samples", 0)))
            for client, report in done.reports.items()
        }
        return self.clock.round(works_of(counts, sent, done.number))

    def _announced_s(self, done: Round, sent: Sequence[WireRow]) -> float:
        """Return the time before the first round, which counts into it as its bytes do."""
        assert self.clock is not None, "asked for where there is one"
        idle = dict.fromkeys(done.everybody, (0, 0))
        return self.clock.round(works_of(idle, sent, 0)).seconds

    def _round_row(self, done: Round) -> RoundRow:
        """Sums and sample-weighted means over the clients that trained; no means where none did."""
        reports = [report for report in done.reports.values() if "samples" in report]
        cells: dict[str, object] = {
            "round": done.number,
            "phase": done.phase,
            "steps": sum(report["steps"] for report in reports),
            "samples": sum(report["samples"] for report in reports),
            "clients": len(done.reports),
            "dropped": len(done.dropped),
            "late": len(done.late),
            # of those who dropped out before they had trained as well
            "bytes_plain": int(sum(each.get("plain_bytes", 0) for each in done.reports.values())),
        }
        for name in self.averaged:
            told = [(report[name], report["samples"]) for report in reports if name in report]
            if told:
                total = sum(size for _, size in told)
                cells[name] = sum(mean * size for mean, size in told) / total
        return RoundRow.of(self._known("rounds", cells | dict(done.figures)))

    def _client_row(self, done: Round, client: ClientId, times: RoundTimes | None) -> ClientRow:
        cells: dict[str, object] = {
            "round": done.number,
            "client": client,
            "dropped": int(client in done.dropped),
            "late": int(client in done.late),
            "malicious": int(client in done.malicious),
            "barred": int(client in done.barred),
            **done.reports.get(client, {}),
            **done.own.get(client, {}),
            **done.signals.get(client, {}),
        }
        if times is not None and client in times.clients:
            of_client = times.clients[client]
            cells |= {"compute_s": of_client.compute_s, "transfer_s": of_client.transfer_s}
            cells |= {"simulated_s": of_client.seconds, "waiting": of_client.waiting}
        return ClientRow.of(self._known("clients", cells))

    def _known(self, table: str, cells: Cells) -> Cells:
        """Return the cells of the columns that a table has."""
        columns = self.writer.columns[table]
        return {name: value for name, value in cells.items() if name in columns}


def works_of(
    counts: Mapping[ClientId, tuple[int, int]], sent: Iterable[WireRow], round_number: int
) -> dict[ClientId, Work]:
    """Return what each client did and sent in a round, without evaluation.

    `counts` are the steps and samples of each client that is asked about.
    """
    packets: dict[ClientId, dict[Leg, int]] = {client: {} for client in counts}
    nbytes: dict[ClientId, dict[Leg, int]] = {client: {} for client in counts}
    received = dict.fromkeys(counts, (0, 0))
    for row in sent:
        client, leg = row.client, row.leg
        if row.phase != EVALUATE and row.round == round_number and client in packets:
            # a step of another phase in between has rows of its own
            packets[client][leg] = packets[client].get(leg, 0) + row.packets
            nbytes[client][leg] = nbytes[client].get(leg, 0) + row.bytes
            more, known = row.received, received[client]
            received[client] = known[0] + more[0], known[1] + more[1]
    return {
        client: Work(steps, samples, packets[client], nbytes[client], received[client])
        for client, (steps, samples) in counts.items()
    }
