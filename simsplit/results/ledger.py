"""The ledger turns a round into rows of the tables, from reports, figures and the wire's counts.

Columns that a scenario does not need are left out: methods' losses without methods, dropped clients
if none can drop out, simulated time without a network.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.legs import ClientId
from simsplit.network.clock import Clock, simulate_round
from simsplit.network.events import RoundTimes
from simsplit.results import leak_table
from simsplit.results.directory import RunWriter
from simsplit.rows import (
    LEARNED,
    WITHHELD,
    Cells,
    ClientRow,
    DetectionRow,
    RoundRow,
    TableRow,
    TimingRow,
    WireRow,
)
from simsplit.wire import RECEIVED, Wire

ROUND_COLUMNS = ("round", "phase", "steps", "samples", *LEARNED)
COHORT_COLUMNS = ("clients", "dropped", "late")
TIME_COLUMNS = ("simulated_s", "simulated_total_s", "server_busy", "waiting")
BYTE_COLUMNS = ("bytes_up", "bytes_down", "bytes_total")
CLIENT_COLUMNS = ("round", "client", "steps", "samples", *LEARNED)
TRUTH_COLUMNS = ("malicious", "barred")
CLIENT_TIME_COLUMNS = ("compute_s", "transfer_s", "simulated_s", "waiting")
WIRE_COLUMNS = ("round", "client", "phase", "leg", "packets", "bytes")

Report = Mapping[str, float]


@dataclass(frozen=True)
class TableColumns:
    """The columns that a run's tables have in addition to the usual ones."""

    figures: Sequence[str]
    """Figures of evaluations."""
    own_figures: Sequence[str] = ()
    """Figures that each client has too, for its own model."""
    methods: bool = False
    cohort: bool = False
    staleness: bool = False
    malicious: bool = False
    """Whether to report who is malicious and who has been barred."""
    signals: Sequence[str] = ()
    """Detectors' scores of each client."""
    detections: Sequence[str] = ()
    """Columns of the `detections` table; empty if the run has no such table."""
    attacked: bool = False
    """Whether there are attacks, which fill the table `leaks`."""
    reported: Sequence[str] = ()
    """Figures that methods report for each client."""
    named: bool = False
    """Whether clients have names."""
    handed: bool = False
    """Whether clients hand shared weights on, so that a client receives what another one sent."""
    withheld: Sequence[str] = ()
    """Figures that clients keep to themselves; their cells say so."""
    joint: bool = False
    """Whether clients are parties, whose steps are the same ones."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The results of one round."""

    number: int
    phase: str
    everybody: Sequence[ClientId]
    reports: Mapping[ClientId, Report] = field(default_factory=dict)
    """Reports of the clients that took part, in their order."""
    dropped: frozenset[ClientId] = frozenset()
    late: frozenset[ClientId] = frozenset()
    figures: Report
    """Figures of the evaluated splits; empty if no evaluation was due."""
    own: Mapping[ClientId, Report]
    """The same figures for each client that was scored with its own model."""
    signals: Mapping[ClientId, Report] = field(default_factory=dict)
    """Detectors' scores of each client."""
    detections: Sequence[DetectionRow] = ()
    """The result of each detector."""
    leaks: Sequence[Cells] = ()
    """Rows of what attacks recovered."""
    malicious: frozenset[ClientId] = frozenset()
    barred: frozenset[ClientId] = frozenset()


class Ledger:
    """The writer of rounds as rows of the tables."""

    def __init__(
        self,
        path: Path,
        columns: TableColumns,
        clock: Clock | None,
        names: ClientNames = NO_NAMES,
    ) -> None:
        self.clock, self.names, self.joint = clock, names, columns.joint
        chosen = {"method_loss": columns.methods, "staleness": columns.staleness}
        extra = tuple(name for name, wanted in chosen.items() if wanted)
        self.averaged = (*LEARNED, *extra)
        self.withheld = dict.fromkeys(columns.withheld, WITHHELD)
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
                    *CLIENT_COLUMNS[:2],
                    *(("name",) if columns.named else ()),
                    *(*CLIENT_COLUMNS[2:], *extra, *who[1:]),
                    *columns.own_figures,
                    *(CLIENT_TIME_COLUMNS if timed else ()),
                    *(TRUTH_COLUMNS if columns.malicious else ()),
                    *columns.reported,
                    *columns.signals,
                ),
                **({"detections": columns.detections} if columns.detections else {}),
                **({leak_table.TABLE: leak_table.COLUMNS} if columns.attacked else {}),
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

        `simulated_s` is the simulated time of the rounds before it.
        """
        up, down = wire.up, wire.down
        sent = wire.drain()
        row = replace(
            self._make_round_row(done),
            bytes_up=wire.up - up,
            bytes_down=wire.down - down,
            bytes_total=wire.up + wire.down,
        )
        times = None
        if self.clock is not None:
            times, seconds = self._simulate(self.clock, done, sent)
            row = replace(
                row,
                simulated_s=seconds,
                simulated_total_s=simulated_s + seconds,
                server_busy=times.server_busy,
                waiting=times.waiting,
            )
        self._append("wire", sent)
        self._append("rounds", [row])
        rows = [self._make_client_row(done, client, times) for client in done.everybody]
        self._append("clients", rows)
        if "detections" in self.writer.columns:
            self._append("detections", done.detections)
        if leak_table.TABLE in self.writer.columns:
            self.writer.append(leak_table.TABLE, done.leaks)
        return row, rows

    def time(self, number: int, train_s: float, evaluate_s: float, elapsed_s: float) -> None:
        """Append a round's wall-clock seconds."""
        train_s, evaluate_s, elapsed_s = (round(s, 4) for s in (train_s, evaluate_s, elapsed_s))
        self._append("timing", [TimingRow(number, train_s, evaluate_s, elapsed_s)])

    def _append(self, table: str, rows: Iterable[TableRow]) -> None:
        marks = {n: mark for n, mark in self.withheld.items() if n in self.writer.columns[table]}
        self.writer.append(table, (row.cells | marks for row in rows))

    def _simulate(
        self, clock: Clock, done: Round, sent: Sequence[WireRow]
    ) -> tuple[RoundTimes, float]:
        """Return the round's simulated times and seconds; rows get the time of their transfer."""
        for row in sent:
            received_s = clock.rates[row.client].compute_received_s(*row.received)
            sent_s = clock.compute_transfer_s(row.client, row.leg, row.packets, row.bytes)
            row.transfer_s = sent_s + received_s
        counts = {
            client: (int(report.get("steps", 0)), int(report.get("samples", 0)))
            for client, report in done.reports.items()
        }
        return simulate_round(clock, counts, done.everybody, sent, done.number)

    def _make_round_row(self, done: Round) -> RoundRow:
        """Return the round's row: sums, and sample-weighted means over the clients that trained."""
        reports = [report for report in done.reports.values() if "samples" in report]
        # of parties, whose steps are the same ones, the largest count
        total: Callable[[Iterable[float]], float] = partial(max, default=0) if self.joint else sum
        cells: dict[str, object] = {
            "round": done.number,
            "phase": done.phase,
            "steps": total([report["steps"] for report in reports]),
            "samples": total([report["samples"] for report in reports]),
            "clients": len(done.reports),
            "dropped": len(done.dropped),
            "late": len(done.late),
            # Clients that dropped out before they had trained count too: they have sent packets.
            "bytes_plain": int(sum(each.get("plain_bytes", 0) for each in done.reports.values())),
        }
        for name in self.averaged:
            means = [(report[name], report["samples"]) for report in reports if name in report]
            if means:
                weight = sum(size for _, size in means)
                cells[name] = sum(mean * size for mean, size in means) / weight
        return RoundRow.of(self._select("rounds", cells | dict(done.figures)))

    def _make_client_row(
        self, done: Round, client: ClientId, times: RoundTimes | None
    ) -> ClientRow:
        cells: dict[str, object] = {
            "round": done.number,
            "client": client,
            "name": self.names.get(client),
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
        return ClientRow.of(self._select("clients", cells))

    def _select(self, table: str, cells: Cells) -> Cells:
        """Return the cells whose columns the table has."""
        columns = self.writer.columns[table]
        return {name: value for name, value in cells.items() if name in columns}
