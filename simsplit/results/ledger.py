"""What a round leaves in the tables: rows made of reports, figures and what the wire counted.

Columns that a scenario has no use for are left out: of methods' losses without methods, of who fell
out where everybody stays, of simulated time without a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simsplit.network.clock import Work
from simsplit.network.events import RoundTimes
from simsplit.network.timing import Clock
from simsplit.packets import ClientId, Leg
from simsplit.phases import EVALUATE
from simsplit.results.directory import RunWriter
from simsplit.wire import RECEIVED, Wire

ROUND_COLUMNS = ("round", "phase", "steps", "samples", "train_loss", "train_accuracy")
COHORT_COLUMNS = ("clients", "dropped", "late")
TIME_COLUMNS = ("simulated_s", "simulated_total_s", "server_busy", "waiting")
BYTE_COLUMNS = ("bytes_up", "bytes_down", "bytes_total")
CLIENT_COLUMNS = ("round", "client", "steps", "samples", "train_loss", "train_accuracy")
TRUTH_COLUMNS = ("malicious", "barred")
CLIENT_TIME_COLUMNS = ("compute_s", "transfer_s", "simulated_s", "waiting")
WIRE_COLUMNS = ("round", "client", "phase", "leg", "packets", "bytes")
TIMING_COLUMNS = ("round", "train_s", "evaluate_s", "elapsed_s")

Report = Mapping[str, float]
Row = dict[str, object]


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
    """What one round came to."""

    number: int
    phase: str
    everybody: Sequence[ClientId]
    reports: Mapping[ClientId, Report]
    """Of those who took part, in their order."""
    dropped: frozenset[ClientId]
    late: frozenset[ClientId]
    figures: Report
    """Of the splits that were evaluated; empty where none was due."""
    own: Mapping[ClientId, Report]
    """The same for each client that was scored with a model of its own."""
    signals: Mapping[ClientId, Mapping[str, object]] = field(default_factory=dict)
    """What detectors made of each client."""
    detections: Sequence[Mapping[str, object]] = ()
    """What each detector came to."""
    attacked: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
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
                "timing": TIMING_COLUMNS,
            },
        )

    def enter(self, done: Round, wire: Wire, simulated_s: float) -> tuple[Row, list[Row]]:
        """Append a round to the tables; its rows of `rounds` and `clients` are given back.

        `simulated_s` is what the rounds before it took.
        """
        up, down = wire.up, wire.down
        sent = wire.drain()
        times = self._times(done, sent)
        row = self._round_row(done)
        row |= {"bytes_up": wire.up - up, "bytes_down": wire.down - down}
        row["bytes_total"] = wire.up + wire.down
        if times is not None:
            seconds = times.seconds + self._announced_s(done, sent)
            row |= {"simulated_s": seconds, "simulated_total_s": simulated_s + seconds}
            row |= {"server_busy": times.server_busy, "waiting": times.waiting}
        self.writer.append("wire", sent)
        self.writer.append("rounds", [row])
        rows = [self._client_row(done, client, times) for client in done.everybody]
        self.writer.append("clients", rows)
        if "detections" in self.writer.columns:
            self.writer.append("detections", done.detections)
        for table, rows_of_attacks in done.attacked.items():
            if table in self.writer.columns:
                self.writer.append(table, rows_of_attacks)
        return row, rows

    def time(self, number: int, train_s: float, evaluate_s: float, elapsed_s: float) -> None:
        """Append a round's wall-clock seconds."""
        times = (number, round(train_s, 4), round(evaluate_s, 4), round(elapsed_s, 4))
        self.writer.append("timing", [dict(zip(TIMING_COLUMNS, times, strict=True))])

    def _times(self, done: Round, sent: Sequence[Row]) -> RoundTimes | None:
        """What the round took in simulated time; every row of `sent` is given its own share."""
        if self.clock is None:
            return None
        for row in sent:
            client, leg = int(str(row["client"])), Leg(str(row["leg"]))
            packets, nbytes = int(str(row["packets"])), int(str(row["bytes"]))
            received_s = self.clock.rates[client].received_s(*received_of(row))
            row["transfer_s"] = self.clock.transfer_s(client, leg, packets, nbytes) + received_s
        return self.clock.round(works_of(done.reports, sent, done.number))

    def _announced_s(self, done: Round, sent: Sequence[Row]) -> float:
        """What came before the first round, which counts into it as its bytes do."""
        assert self.clock is not None, "asked for where there is one"
        idle: dict[ClientId, Report] = {client: {} for client in done.everybody}
        return self.clock.round(works_of(idle, sent, 0)).seconds

    def _round_row(self, done: Round) -> Row:
        """Sums and sample-weighted means over the clients that trained; no means where none did."""
        reports = [report for report in done.reports.values() if "samples" in report]
        samples = sum(report["samples"] for report in reports)
        row: Row = {
            "round": done.number,
            "phase": done.phase,
            "steps": sum(report["steps"] for report in reports),
            "samples": samples,
            "clients": len(done.reports),
            "dropped": len(done.dropped),
            "late": len(done.late),
            # of those who dropped out before they had trained as well
            "bytes_plain": int(sum(each.get("plain_bytes", 0) for each in done.reports.values())),
        }
        for name in self.averaged:
            told = [(report[name], report["samples"]) for report in reports if name in report]
            if told:
                row[name] = sum(mean * size for mean, size in told) / sum(size for _, size in told)
        return self._known("rounds", row | dict(done.figures))

    def _client_row(self, done: Round, client: ClientId, times: RoundTimes | None) -> Row:
        row: Row = {"round": done.number, "client": client, "steps": 0, "samples": 0}
        row |= {"dropped": int(client in done.dropped), "late": int(client in done.late)}
        row |= {"malicious": int(client in done.malicious), "barred": int(client in done.barred)}
        row |= {**done.reports.get(client, {}), **done.own.get(client, {})}
        row |= done.signals.get(client, {})
        if times is not None and client in times.clients:
            of_client = times.clients[client]
            row |= {"compute_s": of_client.compute_s, "transfer_s": of_client.transfer_s}
            row |= {"simulated_s": of_client.seconds, "waiting": of_client.waiting}
        return self._known("clients", row)

    def _known(self, table: str, row: Row) -> Row:
        columns = self.writer.columns[table]
        return {name: value for name, value in row.items() if name in columns}


def works_of(
    reports: Mapping[ClientId, Report], sent: Sequence[Mapping[str, object]], round_number: int
) -> dict[ClientId, Work]:
    """What each client of a round did and sent in it, without evaluation."""
    packets: dict[ClientId, dict[Leg, int]] = {client: {} for client in reports}
    nbytes: dict[ClientId, dict[Leg, int]] = {client: {} for client in reports}
    received = dict.fromkeys(reports, (0, 0))
    for row in sent:
        client, leg = int(str(row["client"])), Leg(str(row["leg"]))
        if row["phase"] != EVALUATE and row["round"] == round_number and client in packets:
            # a step of another phase in between has rows of its own
            packets[client][leg] = packets[client].get(leg, 0) + int(str(row["packets"]))
            nbytes[client][leg] = nbytes[client].get(leg, 0) + int(str(row["bytes"]))
            more, known = received_of(row), received[client]
            received[client] = known[0] + more[0], known[1] + more[1]
    return {
        client: Work(
            int(report.get("steps", 0)),
            int(report.get("samples", 0)),
            packets[client],
            nbytes[client],
            received[client],
        )
        for client, report in reports.items()
    }


def received_of(row: Mapping[str, object]) -> tuple[int, int]:
    """Packets and bytes of others that a row's client received."""
    packets, nbytes = (int(str(row.get(name, 0))) for name in RECEIVED)
    return packets, nbytes
