"""A forecast says what a run will take: bytes, FLOPs, memory and time, as tables."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simsplit.client_names import ClientNames
from simsplit.forecasting.drafting import DraftRound
from simsplit.forecasting.footprints import Footprint
from simsplit.legs import ClientId, Leg, is_crowd
from simsplit.network.clock import Flops
from simsplit.phases import EVALUATE
from simsplit.preflight import Estimate
from simsplit.rows import WireRow
from simsplit.topologies import Topology

if TYPE_CHECKING:
    import pandas as pd

OWN = ""
"""The name of the clock of the scenario's own network."""
OWN_ROW = "as set"
"""What its row is called."""
_SEGMENTS = ("head", "trunk", "tail")


@dataclass(frozen=True)
class Facts:
    """What is known of a scenario before its rounds are played."""

    name: str
    num_clients: int
    client_names: ClientNames
    samples: Mapping[str, int]
    """The number of samples of each split."""
    network: str
    """The devices and links by which time is simulated."""
    is_network_given: bool
    """Whether the scenario names this network."""
    topology: Topology
    flops: Flops
    footprints: Sequence[Footprint]
    process: Estimate
    """Bytes of the whole run in one process."""
    train_s: float | None = None
    """Seconds that training takes here; None if nothing was timed."""
    evaluate_s: float | None = None
    """Seconds that evaluation takes here."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What was assumed, and what is not counted."""
    noise: Sequence[Mapping[str, Any]] = ()
    """The noise that reaches a budget, if one was asked for."""
    uncovered: Sequence[Mapping[str, str]] = ()
    """What no guarantee covers, as the run's summary will say it."""
    privacy: Sequence[Mapping[str, Any]] = ()
    """The guarantees of methods' noise, as in the `summary.json` of a run."""
    chains: Sequence[str] = ()
    """The methods at each client's cut, where they differ; else empty."""

    @property
    def wall_s(self) -> float | None:
        """Seconds that the run takes here; None if nothing was timed."""
        if self.train_s is None or self.evaluate_s is None:
            return None
        return self.train_s + self.evaluate_s

    @property
    def evaluation_share(self) -> float:
        """The share of evaluation in these seconds."""
        return (self.evaluate_s or 0.0) / (self.wall_s or 1.0)

    @property
    def evaluates_long(self) -> bool:
        """Whether evaluation takes longer than training."""
        return self.evaluation_share > 0.5


class Forecast:
    """What a run will take.

    >>> import simsplit
    >>> forecast = simsplit.plan("quickstart", timing=False)  # doctest: +SKIP
    >>> forecast.bytes, forecast.memory  # doctest: +SKIP
    """

    def __init__(self, facts: Facts, rounds: Iterable[DraftRound]) -> None:
        self.facts = facts
        self._rounds = list(rounds)

    def __repr__(self) -> str:
        return (
            f"<Forecast {self.facts.name}: {self.facts.num_clients} clients, "
            f"{self.num_rounds} rounds, {self.bytes_total:,} bytes>"
        )

    @property
    def num_rounds(self) -> int:
        """The number of rounds of training."""
        return sum(each.times for each in self._rounds if each.number > 0)

    @property
    def bytes_total(self) -> int:
        """The bytes of training that cross."""
        rows = self._list_rows()
        return sum(row.bytes * each.times for each, row in rows if row.phase != EVALUATE)

    @property
    def simulated_s(self) -> float | None:
        """Simulated seconds on the scenario's network; None if they are not known."""
        return self.times_s.get(OWN)

    @cached_property
    def times_s(self) -> dict[str, float]:
        """Simulated seconds by network; that of the scenario has an empty name."""
        names = self._rounds[0].seconds if self._rounds else {}
        return {
            name: sum(each.seconds[name] * each.times for each in self._rounds) for name in names
        }

    @cached_property
    def wire(self) -> "pd.DataFrame":
        """One row per round, client, phase and leg, as in the table `wire` of a run.

        Rounds that others stand for have no rows.
        """
        rows = []
        for each, row in self._list_rows():
            number = each.number if each.was_repeated else row.round
            rows.append((number, row.client, row.phase, str(row.leg), row.packets, row.bytes))
        return _make_frame(("round", "client", "phase", "leg", "packets", "bytes"), rows)

    @cached_property
    def bytes(self) -> "pd.DataFrame":
        """One row per leg: its direction, packets, bytes of training and of evaluation."""
        sums: dict[Leg, Counter[str]] = {}
        for each, row in self._list_rows():
            what = "evaluation" if row.phase == EVALUATE else "training"
            more = {what: row.bytes * each.times, "packets": row.packets * each.times}
            sums.setdefault(row.leg, Counter()).update(more)
        rows = [
            (str(leg), "up" if leg.up else "down", s["packets"], s["training"], s["evaluation"])
            for leg, s in sums.items()
        ]
        return _make_frame(("leg", "direction", "packets", "training", "evaluation"), rows)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round: who takes part, bytes of training, and simulated time.

        Of very many rounds some stand for others, `times` in all; the totals include these.
        """
        rows, total, seconds = [], 0, 0.0
        some = any(each.times > 1 for each in self._rounds)
        for each in self._rounds:
            trained = [row for row in each.sent if row.phase != EVALUATE]
            up, down = (sum(r.bytes for r in trained if r.leg.up == way) for way in (True, False))
            total += (up + down) * each.times
            cells: list[Any] = [each.number, each.phase.name, each.clients]
            # Parties' steps, and their samples, are the same ones.
            total_up = max if self.facts.topology.joint else sum
            counts = [[work[place] for work in each.work.values()] for place in (0, 1)]
            cells += [total_up(count) if count else 0 for count in counts]
            cells += [up, down, total]
            if OWN in each.seconds:
                seconds += each.seconds[OWN] * each.times
                cells += [each.seconds[OWN], seconds]
            rows.append((*cells, each.times) if some else tuple(cells))
        names = ["round", "phase", "clients", "steps", "samples"]
        names += ["bytes_up", "bytes_down", "bytes_total"]
        timed = ["simulated_s", "simulated_total_s"] if OWN in self.times_s else []
        return _make_frame([*names, *timed, *(["times"] if some else [])], rows)

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per client: rounds in which it takes part, steps, samples, bytes of training.

        Of a crowd it has those that take part.
        """
        count = self.facts.num_clients
        took_part = {client for each in self._rounds for client in each.work}
        listed = sorted(took_part) if is_crowd(count) else range(count)
        sums: dict[ClientId, Counter[str]] = {client: Counter() for client in listed}
        for each in self._rounds:
            for client, (steps, samples) in each.work.items():
                own = {"rounds": 1, "steps": steps, "samples": samples}
                sums[client].update({name: count * each.times for name, count in own.items()})
            for row in each.sent:
                if row.phase != EVALUATE and row.client in sums:
                    way = "bytes_up" if row.leg.up else "bytes_down"
                    sums[row.client].update({way: row.bytes * each.times})
        names = ("rounds", "steps", "samples", "bytes_up", "bytes_down")
        called, chains = self.facts.client_names, self.facts.chains
        rows = [
            (
                client,
                *([called.get(client)] if called else []),
                *([chains[client]] if chains else []),
                *(each[name] for name in names),
            )
            for client, each in sums.items()
        ]
        words = [*(["name"] if called else []), *(["methods"] if chains else [])]
        return _make_frame(("client", *words, *names), rows)

    @cached_property
    def memory(self) -> "pd.DataFrame":
        """One row per party (a client, the server): bytes of tensors by purpose."""
        rows = [(*astuple(each), each.total) for each in self.facts.footprints]
        names = ("party", "weights", "gradients", "moments", "activations", "total")
        return _make_frame(names, rows)

    @cached_property
    def flops(self) -> "pd.DataFrame":
        """One row per segment: its party, FLOPs of a sample's passes, and of all training."""
        rows = []
        for segment in _SEGMENTS:
            each = float(getattr(self.facts.flops, segment))
            forward, backward = self._count_totals(segment)
            party = "server" if segment in self.facts.topology.served else "client"
            rows.append((segment, party, each, 2 * each, forward, backward))
        names = ("segment", "party", "forward", "backward", "forward_total", "backward_total")
        return _make_frame(names, rows)

    @cached_property
    def times(self) -> "pd.DataFrame":
        """The scenario's own network, and a row per link profile: seconds of all rounds."""
        rows = [(name or OWN_ROW, seconds) for name, seconds in self.times_s.items()]
        return _make_frame(("link", "simulated_s"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `simsplit plan --json` prints them."""
        facts = self.facts
        frames = {
            name: getattr(self, name).to_dict("records")
            for name in ("bytes", "rounds", "clients", "memory", "flops", "times")
        }
        return {
            "name": facts.name,
            "clients": facts.num_clients,
            "rounds": self.num_rounds,
            "samples": dict(facts.samples),
            "bytes_total": self.bytes_total,
            "simulated_s": self.simulated_s,
            "network": facts.network,
            "network_given": facts.is_network_given,
            "wall_s": facts.wall_s,
            "train_s": facts.train_s,
            "evaluate_s": facts.evaluate_s,
            "process_bytes": facts.process.total,
            "process_parts": dict(facts.process.parts),
            "disk_bytes": facts.process.on_disk,
            "tables": frames,
            "noise": [dict(each) for each in facts.noise],
            "uncovered": [dict(each) for each in facts.uncovered],
            "privacy": [dict(each) for each in facts.privacy],
            "notes": list(facts.notes),
        }

    def _list_rows(self) -> Iterator[tuple[DraftRound, WireRow]]:
        return ((each, row) for each in self._rounds for row in each.sent)

    def _count_totals(self, segment: str) -> tuple[float, float]:
        """Return the FLOPs of all samples that pass a segment forward and backward in training.

        A backward pass counts as two. Where nothing crosses, the trunk takes no part; without
        gradients of the cut only the tail learns.
        """
        work = Counter[str]()
        protocol = self.facts.topology.training
        for turn in protocol.turns:
            work.update(turn.work)
        # Samples by the FLOPs of one, which differ where clients have cuts of their own.
        forward, backward = Counter[float](), Counter[float]()
        for each in self._rounds:
            if segment == "trunk" and not each.phase.crosses:
                continue
            for client, (_, samples) in self._list_work(each, segment):
                of_one = float(getattr(self.facts.flops.of(client), segment))
                forward[of_one] += samples * each.times
                if each.phase.gradients or segment == "tail":
                    backward[of_one] += samples * each.times * max(0, work[segment] - 1)
        total, back = (sum(f * n for f, n in each.items()) for each in (forward, backward))
        return total, back

    def _list_work(
        self, each: DraftRound, segment: str
    ) -> Sequence[tuple[ClientId, tuple[int, int]]]:
        """List the clients whose samples pass a segment in a round, with steps and samples."""
        work = [*each.work.items()]
        if segment == "head" or not self.facts.topology.joint:
            return work
        return sorted(work, key=lambda one: one[1])[-1:]  # the trunk takes all parties' at once


@dataclass(frozen=True)
class SweepForecast:
    """What a sweep's cells will take."""

    name: str
    cells: Mapping[str, Forecast]
    notes: Sequence[str] = ()
    """What holds for the sweep rather than for a cell."""

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row per cell: rounds, bytes, simulated and wall seconds, memory."""
        rows = []
        for name, each in self.cells.items():
            # Where clients' cuts differ, the largest client counts.
            *clients, server = (part.total for part in each.facts.footprints)
            client = max(clients)
            cells = (each.bytes_total, each.simulated_s, each.facts.wall_s, client, server)
            rows.append((name, each.facts.num_clients, each.num_rounds, *cells))
        names = ("cell", "clients", "rounds", "bytes_total", "simulated_s", "wall_s")
        return _make_frame((*names, "client_bytes", "server_bytes"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `simsplit plan --json` prints them."""
        return {
            "name": self.name,
            "cells": {name: each.to_dict() for name, each in self.cells.items()},
            "notes": list(self.notes),
        }


def _make_frame(names: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows, columns=list(names))
