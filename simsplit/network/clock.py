"""This module computes how long a round takes if clients and server work in the schedule's order.

All steps of a client take equally long: a batch counts samples / steps, a leg bytes / steps. Times
follow from counted FLOPs, counted bytes and assumed rates; none is measured.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from simsplit.legs import ClientId, Leg
from simsplit.network.events import RoundTimes, Stage, StepDone, Where, play
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.phases import EVALUATE
from simsplit.protocol import Passes as PassesBySegment
from simsplit.protocol import Protocol, Turn
from simsplit.rows import WireRow

if TYPE_CHECKING:
    from simsplit.packets import Packet

Order = Literal["sequential", "in_order", "copies", "fused", "joint", "asynchronous"]
"""The order in which the clients of a round work.

- sequential: one client at a time; nothing overlaps.
- in_order: all clients work at once; one trunk takes a lap's clients in turn, each from its forward
  to its backward pass.
- fused: all clients work at once; the trunk takes one step for all batches of a lap, and the
  clients wait for it.
- joint: all clients work at once, each on its portion of the same samples; the trunk waits for
  all, and for the one that has the labels.
- copies: all clients work at once, each with a trunk copy; the server serves them first come, first
  served.
- asynchronous: like copies, with a bound on how far a client may run ahead.
"""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Flops:
    """FLOPs of a sample's forward pass by segment; a backward pass counts as two forward passes."""

    head: float
    trunk: float
    tail: float
    stand_in: float = 0.0
    """FLOPs of the stand-in that a method uses instead of the trunk when nothing crosses."""
    replies: int = 1
    """Number of messages in which a batch's gradient crosses; each takes a backward pass of the
    server."""
    own: "Mapping[ClientId, Flops]" = field(default_factory=dict)
    """Those of clients with a deeper cut than the model's own."""

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "Flops":
        """Return what `to_dict` has made."""
        own = {int(client): cls(**each) for client, each in facts.get("own", {}).items()}
        return cls(**{**facts, "own": own})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without `own` where there are none."""
        values = asdict(replace(self, own={}))
        del values["own"]
        if self.own:
            values["own"] = {str(client): each.to_dict() for client, each in self.own.items()}
        return values

    def of(self, client: ClientId) -> "Flops":
        """Return the FLOPs of a client's samples."""
        return self.own.get(client, self)

    def count(self, work: PassesBySegment) -> float:
        """Return the FLOPs of one sample for some passes through segments."""
        return sum(passes * float(getattr(self, name)) for name, passes in work.items())


@dataclass(frozen=True)
class ClientWork:
    """The steps, samples and packets of one client in a round's training."""

    steps: int
    samples: int
    packets: Mapping[Leg, int]
    nbytes: Mapping[Leg, int]
    received: tuple[int, int] = (0, 0)
    """Packets and bytes of hand-overs received from other clients."""


def choose_order(schedule_kind: str, aggregation_kind: str, *, joint: bool = False) -> Order:
    """Return the order in which a schedule and an aggregation let clients, or parties, work."""
    if joint:
        return "joint"
    if schedule_kind in ("round_robin", "per_client"):
        return "sequential"
    if schedule_kind == "asynchronous":
        return "asynchronous"
    if schedule_kind == "parallel":
        cohorts: dict[str, Order] = {"splitfed_v1": "copies", "fused": "fused"}
        return cohorts.get(aggregation_kind, "in_order")
    raise ValueError(f"the schedule '{schedule_kind}' has no order in simulated time")


def _get_before_s(work: ClientWork, rates: Rates) -> float:
    """Return the seconds of transfers before the steps, or of a lost step if there is no other."""
    once = (Leg.BROADCAST, Leg.HANDOVER)
    lost = [] if work.steps else [leg for leg in work.packets if leg not in once]
    sent_s = sum(_compute_transfer_s(work, rates, leg) for leg in (Leg.BROADCAST, *lost))
    return sent_s + rates.compute_received_s(*work.received)


def _compute_transfer_s(work: ClientWork, rates: Rates, leg: Leg) -> float:
    return rates.compute_transfer_s(leg, work.packets.get(leg, 0), work.nbytes.get(leg, 0))


@dataclass(frozen=True)
class _ClientRound:
    """One client's round: seconds before its steps, equal steps of some stages, seconds after."""

    before_s: float
    steps: int
    stages: tuple[Stage, ...]
    after_s: float

    def sum_by_place(self) -> dict[Where, float]:
        """Return the total seconds by place."""
        spent: dict[Where, float] = {"client": 0.0, "wire": self.before_s + self.after_s}
        spent["server"] = 0.0
        for stage in self.stages:
            spent[stage.where] += self.steps * stage.seconds
        return spent

    def list_visits(self) -> tuple[list[tuple[float, float]], float]:
        """Return a step's visits to the server (seconds before, served) and the seconds after."""
        visits, way = [], 0.0
        for stage in self.stages:
            if stage.where == "server":
                visits.append((way, stage.seconds))
                way = 0.0
            else:
                way += stage.seconds
        return visits, way


_Rounds = Mapping[ClientId, _ClientRound]


def _play_client(one: _ClientRound) -> Iterator[Stage | StepDone]:
    """Yield the stages of a client that starts its steps as soon as it can."""
    if not one.steps:
        yield StepDone(last=True)  # so that no other client waits for its steps
    yield Stage("wire", one.before_s)
    for step in range(1, one.steps + 1):
        yield from one.stages
        yield StepDone(last=step == one.steps)
    yield Stage("wire", one.after_s)


def _time_sequential(rounds: _Rounds) -> dict[ClientId, float]:
    """Return when each client is done if each waits for the client before it.

    If clients took turns step by step, the round's sum would be the same.
    """
    through, now = {}, 0.0
    for client, one in rounds.items():
        own = sum(one.sum_by_place().values())
        now += own
        through[client] = now if own else 0.0
    return through


def _time_in_order(rounds: _Rounds) -> dict[ClientId, float]:
    """Return when each client is done if the trunk takes clients in turn and all else overlaps."""
    ready = {client: one.before_s for client, one in rounds.items()}
    free = 0.0
    for lap in range(_count_laps(rounds)):
        for client, one in rounds.items():
            if lap >= one.steps:
                continue
            visits, rest = one.list_visits()
            if not visits:  # nothing crosses in this phase
                ready[client] += rest
                continue
            (way, served), *more = visits
            # the trunk is kept from a client's first visit to its last, the way between included
            free = max(free, ready[client] + way) + served + sum(map(sum, more))
            ready[client] = free + rest
    return {client: ready[client] + one.after_s for client, one in rounds.items()}


def _time_fused(rounds: _Rounds) -> dict[ClientId, float]:
    """Return when each client is done if the trunk takes a lap's batches at once and all wait."""
    through = {client: one.before_s for client, one in rounds.items()}
    ready = dict(through)
    for lap in range(_count_laps(rounds)):
        steps = {client: one.list_visits() for client, one in rounds.items() if lap < one.steps}
        now = {client: ready[client] for client in steps}
        for number in range(max(len(visits) for visits, _ in steps.values())):
            due = {c: visits[number] for c, (visits, _) in steps.items() if number < len(visits)}
            # the trunk starts when the last client's batch has arrived
            begun = max(now[client] + way for client, (way, _) in due.items())
            now |= dict.fromkeys(due, begun + sum(served for _, served in due.values()))
        through |= {client: now[client] + rest for client, (_, rest) in steps.items()}
        ready |= dict.fromkeys(steps, max(through[client] for client in steps))
    return {client: through[client] + one.after_s for client, one in rounds.items()}


def _time_joint(rounds: _Rounds) -> dict[ClientId, float]:
    """Return when each party is done if the trunk waits for all parties' packets of a step."""
    ready = {client: one.before_s for client, one in rounds.items()}
    for lap in range(_count_laps(rounds)):
        steps = {client: one.list_visits() for client, one in rounds.items() if lap < one.steps}
        firsts = [ready[client] + visits[0][0] for client, (visits, _) in steps.items() if visits]
        now = max(firsts, default=max(ready.values()))
        # The trunk's work, and the way between two visits, are those of the party with labels.
        for first, *more in (visits for visits, _ in steps.values() if visits):
            now += first[1] + sum(map(sum, more))
        ready |= {client: now + rest for client, (_, rest) in steps.items()}
    return {client: ready[client] + one.after_s for client, one in rounds.items()}


def _count_laps(rounds: _Rounds) -> int:
    return max((one.steps for one in rounds.values()), default=0)


def count_flops(function: Callable[[], Result]) -> tuple[int, Result]:
    """Run `function`; return its floating-point operations (a multiply-add is two) and its result.

    torch counts matrix products, convolutions and attention; the operations that it does not count
    (activations, normalisation, pooling) are few in comparison.
    """
    from torch.utils.flop_counter import FlopCounterMode  # its import takes a second

    with FlopCounterMode(display=False) as counter:
        result = function()
    return int(counter.get_total_flops()), result


@dataclass(frozen=True)
class Clock:
    """The simulated time that a run's steps, packets and rounds take on the scenario's devices."""

    order: Order
    protocol: Protocol
    """The protocol of a step."""
    rates: Sequence[Rates]
    """Rates by client number."""
    server: ServerConfig
    flops: Flops
    max_ahead: int | None = None
    """The bound of `asynchronous`, which no other order has."""
    reader: ClientId | None = None
    """The party that has the labels, where clients are parties."""

    def time_round(self, works: Mapping[ClientId, ClientWork]) -> RoundTimes:
        """Return how long a round takes, and how long each client computes, transfers and waits.

        `works` are in the cohort's order. A client first receives BROADCAST and hand-overs, then
        takes its steps, then sends its HANDOVER.
        """
        rounds = {
            client: _ClientRound(
                before_s=_get_before_s(work, self.rates[client]),
                steps=work.steps,
                stages=self.list_stages(client, work),
                after_s=_compute_transfer_s(work, self.rates[client], Leg.HANDOVER),
            )
            for client, work in works.items()
        }
        if self.order in ("copies", "asynchronous"):
            actors = {client: _play_client(one) for client, one in rounds.items()}
            most = self.max_ahead if self.order == "asynchronous" else None
            return play(actors, self.server.slots, most)
        lay_out = {
            "sequential": _time_sequential,
            "in_order": _time_in_order,
            "fused": _time_fused,
            "joint": _time_joint,
        }[self.order]
        spent = {client: one.sum_by_place() for client, one in rounds.items()}
        return RoundTimes.from_spent(spent, lay_out(rounds), self.server.slots)

    def list_stages(self, client: ClientId, work: ClientWork) -> tuple[Stage, ...]:
        """Return the stages of one step of one client, up to the last packet sent.

        If nothing was sent, a stand-in replaced the trunk and the client did all of its turns
        alone.
        """
        if not work.steps:
            return ()
        protocol, rates, flops = self.protocol, self.rates[client], self.flops.of(client)
        if self.order == "joint":
            passed = protocol.list_legs_of_labels()
            if not passed & work.packets.keys():
                protocol = protocol.select_without(passed)  # of a party that has no labels
        batch = work.samples / work.steps
        if not any(work.packets.get(leg) for leg in protocol.legs):
            own = sum(flops.count(turn.work) for turn in protocol.turns if turn.by_client)
            both_passes = 3 * flops.stand_in  # forward, and backward counted as two
            return (Stage("client", batch * (own + both_passes) / rates.flops_per_s),)
        stages: list[Stage] = []
        for turn in protocol.turns:
            passes = flops.replies if Leg.FEATURES_GRAD in turn.takes else 1
            stages.append(self.build_computing(client, turn, batch, passes))
            sent = any(work.packets.get(leg) for leg in turn.sends)
            if not turn.sends or (protocol.gradients.issuperset(turn.sends) and not sent):
                break  # without a gradient there is no backward pass
            seconds = sum(_compute_transfer_s(work, rates, leg) for leg in turn.sends)
            stages.append(Stage("wire", seconds / work.steps))
        return tuple(stages)

    def compute_transfer_s(self, client: ClientId, leg: Leg, packets: int, nbytes: int) -> float:
        """Return the seconds that `packets` packets of one leg take, one after another."""
        return self.rates[client].compute_transfer_s(leg, packets, nbytes)

    def build_sending(self, packet: "Packet") -> Stage:
        """Return the stage in which a packet crosses."""
        return Stage("wire", self.compute_transfer_s(packet.client, packet.leg, 1, packet.nbytes))

    def build_computing(self, client: ClientId, turn: Turn, rows: float, passes: int = 1) -> Stage:
        """Return the stage in which one side computes a turn, for a batch of `rows` rows.

        `passes`: how many backward passes the server takes.
        """
        operations = rows * self.flops.of(client).count(turn.work)
        if turn.by_client:
            return Stage("client", operations / self.rates[client].flops_per_s)
        return Stage("server", passes * operations / (self.server.gflops * 1e9))

    def compute_own_s(self, packet: "Packet") -> float:
        """Return a packet's seconds for its client; a step's first packet counts all computing."""
        seconds = self.build_sending(packet).seconds
        if packet.leg is self.protocol.legs[0]:
            protocol = self.protocol
            if self.reader not in (None, packet.client):
                protocol = protocol.select_without(protocol.list_legs_of_labels())
            turns = [turn for turn in protocol.turns if turn.by_client]
            flops = self.flops.of(packet.client)
            operations = len(packet.tensors[0]) * sum(flops.count(turn.work) for turn in turns)
            seconds += operations / self.rates[packet.client].flops_per_s
        return seconds


def simulate_round(
    clock: Clock,
    counts: Mapping[ClientId, tuple[int, int]],
    everybody: Iterable[ClientId],
    sent: Sequence[WireRow],
    round_number: int,
) -> tuple[RoundTimes, float]:
    """Return a round's simulated times, and its seconds with those of announcements before it.

    `counts` are the steps and samples of the clients that take part. Announcements count into the
    first round, as their bytes do.
    """
    times = clock.time_round(collect_works(counts, sent, round_number))
    announced = [row for row in sent if row.round == 0]
    if not announced:
        return times, times.seconds
    idle = dict.fromkeys(everybody, (0, 0))
    return times, times.seconds + clock.time_round(collect_works(idle, announced, 0)).seconds


def collect_works(
    counts: Mapping[ClientId, tuple[int, int]], sent: Iterable[WireRow], round_number: int
) -> dict[ClientId, ClientWork]:
    """Return the work and packets of each client of `counts` in a round, without evaluation.

    `counts` are the clients' steps and samples.
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
        client: ClientWork(steps, samples, packets[client], nbytes[client], received[client])
        for client, (steps, samples) in counts.items()
    }
