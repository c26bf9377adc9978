"""What a round leaves in the tables: rows made of reports, figures and what the wire counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simsplit.packets import ClientId
from simsplit.results.directory import RunWriter
from simsplit.wire import Wire

ROUND_COLUMNS = ("round", "phase", "steps", "samples", "train_loss", "train_accuracy")
BYTE_COLUMNS = ("bytes_up", "bytes_down", "bytes_total")
CLIENT_COLUMNS = ("round", "client", "steps", "samples", "train_loss", "train_accuracy")
WIRE_COLUMNS = ("round", "client", "phase", "leg", "packets", "bytes")
TIMING_COLUMNS = ("round", "train_s", "evaluate_s", "elapsed_s")

Report = Mapping[str, float]


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    number: int
    phase: str
    reports: Mapping[ClientId, Report]
    figures: Report
    """Of the splits that were evaluated; empty where none was due."""
    own: Mapping[ClientId, Report]
    """The same for each client that was scored with a model of its own."""


class Ledger:
    """Turns rounds into rows."""

    def __init__(
        self, path: Path, figures: Sequence[str], *, own_figures: bool, methods: bool
    ) -> None:
        """`figures` are evaluation columns; `own_figures` gives each client its own as well."""
        extra = ("method_loss",) if methods else ()
        own = tuple(figures) if own_figures else ()
        self.averaged = ("train_loss", "train_accuracy", *extra)
        self.writer = RunWriter(
            path,
            {
                "rounds": (*ROUND_COLUMNS, *extra, *figures, *BYTE_COLUMNS),
                "clients": (*CLIENT_COLUMNS, *extra, *own),
                "wire": WIRE_COLUMNS,
                "timing": TIMING_COLUMNS,
            },
        )

    def enter(self, done: Round, wire: Wire) -> dict[str, object]:
        """Append a round to the tables; its row of the `rounds` table is given back."""
        up, down = wire.up, wire.down
        self.writer.append("wire", wire.drain())
        row = self._round_row(done)
        row["bytes_up"], row["bytes_down"] = wire.up - up, wire.down - down
        row["bytes_total"] = wire.up + wire.down
        self.writer.append("rounds", [row])
        self.writer.append("clients", [self._client_row(done, client) for client in done.reports])
        return row

    def time(self, number: int, train_s: float, evaluate_s: float, elapsed_s: float) -> None:
        """Append a round's wall-clock seconds."""
        times = (number, round(train_s, 4), round(evaluate_s, 4), round(elapsed_s, 4))
        self.writer.append("timing", [dict(zip(TIMING_COLUMNS, times, strict=True))])

    def _round_row(self, done: Round) -> dict[str, object]:
        """Sums and sample-weighted means over the clients that trained."""
        reports = [report for report in done.reports.values() if report]
        samples = sum(report["samples"] for report in reports)
        means = {
            name: sum(report[name] * report["samples"] for report in reports) / max(1, samples)
            for name in self.averaged
        }
        steps = sum(report["steps"] for report in reports)
        counts = {"round": done.number, "phase": done.phase, "steps": steps, "samples": samples}
        return counts | means | dict(done.figures)

    def _client_row(self, done: Round, client: ClientId) -> dict[str, object]:
        row: dict[str, object] = {"round": done.number, "client": client, "steps": 0, "samples": 0}
        row |= {**done.reports[client], **done.own.get(client, {})}
        columns = self.writer.columns["clients"]
        return {name: value for name, value in row.items() if name in columns}
