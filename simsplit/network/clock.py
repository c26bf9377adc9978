"""How long a round takes: what clients and server do, laid out in time by the schedule's order.

A client's step takes its mean over the round: a batch is samples / steps, a leg its bytes / steps.
Every second comes from counted FLOPs, counted bytes and assumed rates; none is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simsplit.network.events import RoundTimes, Stage, StepDone, Where, play
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.packets import ClientId, Leg
from simsplit.protocol import Protocol
from simsplit.protocol import Work as PassesBySegment

Order = Literal["sequential", "in_order", "copies", "fused", "asynchronous"]
"""sequential: one client at a time, nothing overlaps. Everywhere else a cohort works at once:
in_order: one trunk takes a lap's clients in turn, each from its forward to its backward pass;
fused: one trunk step for a whole lap's batches, which all wait for;
copies: a trunk copy per client, served first come first served;
asynchronous: the same, with a bound on how far a client may run ahead."""


@dataclass(frozen=True)
class Flops:
    """One sample's forward pass by segment; a backward pass counts as two forward ones."""

    head: float
    trunk: float
    tail: float
    stand_in: float = 0.0
    """What a method has in the trunk's place, where nothing crosses."""
    replies: int = 1
    """Backward passes of a server for one batch: of the messages that its gradient crosses in."""

    def of(self, work: PassesBySegment) -> float:
        """One sample's share of some computing."""
        return sum(passes * float(getattr(self, name)) for name, passes in work.items())


@dataclass(frozen=True)
class Work:
    """What one client did and sent in a round's training."""

    steps: int
    samples: int
    packets: Mapping[Leg, int]
    nbytes: Mapping[Leg, int]
    received: tuple[int, int] = (0, 0)
    """Packets and bytes of other clients' hand-overs."""


def order_of(schedule_kind: str, aggregation_kind: str) -> Order:
    """In which order a scenario's schedule and aggregation let clients work."""
    if schedule_kind in ("round_robin", "per_client"):
        return "sequential"
    if schedule_kind == "asynchronous":
        return "asynchronous"
    if schedule_kind == "parallel":
        cohorts: dict[str, Order] = {"splitfed_v1": "copies", "fused": "fused"}
        return cohorts.get(aggregation_kind, "in_order")
    raise ValueError(f"the schedule '{schedule_kind}' has no order in simulated time")


def step_stages(
    protocol: Protocol, work: Work, rates: Rates, server: ServerConfig, flops: Flops
) -> tuple[Stage, ...]:
    """One step of one client, stage by stage, as far as anything was sent.

    Where nothing at all was sent, a stand-in took the trunk's place and the client did all of its
    turns alone.
    """
    if not work.steps:
        return ()
    batch = work.samples / work.steps
    if not any(work.packets.get(leg) for leg in protocol.legs):
        own = sum(flops.of(turn.work) for turn in protocol.turns if turn.by_client)
        there_and_back = 3 * flops.stand_in
        return (Stage("client", batch * (own + there_and_back) / rates.flops_per_s),)
    stages: list[Stage] = []
    for turn in protocol.turns:
        operations = batch * flops.of(turn.work)
        if turn.by_client:
            stages.append(Stage("client", operations / rates.flops_per_s))
        else:
            passes = flops.replies if Leg.FEATURES_GRAD in turn.takes else 1
            stages.append(Stage("server", passes * operations / (server.gflops * 1e9)))
        sent = any(work.packets.get(leg) for leg in turn.sends)
        if not turn.sends or (protocol.gradients.issuperset(turn.sends) and not sent):
            break  # who gets no gradient has no backward pass
        seconds = sum(_transfer_s(work, rates, leg) for leg in turn.sends)
        stages.append(Stage("wire", seconds / work.steps))
    return tuple(stages)


def round_times(  # noqa: PLR0917 - all of it makes a round
    order: Order,
    protocol: Protocol,
    works: Mapping[ClientId, Work],
    rates: Sequence[Rates],
    server: ServerConfig,
    flops: Flops,
    max_ahead: int | None = None,
) -> RoundTimes:
    """How long a round takes, whom it keeps busy and who waits.

    `works` are in the cohort's order, `rates` by client number; `max_ahead` is of `asynchronous`
    alone. A client first receives its BROADCAST and what it is handed, then takes its steps, then
    sends its HANDOVER.
    """
    rounds = {
        client: _ClientRound(
            before_s=_before_s(work, rates[client]),
            steps=work.steps,
            stages=step_stages(protocol, work, rates[client], server, flops),
            after_s=_transfer_s(work, rates[client], Leg.HANDOVER),
        )
        for client, work in works.items()
    }
    if order in ("copies", "asynchronous"):
        actors = {client: _actor(one) for client, one in rounds.items()}
        return play(actors, server.slots, max_ahead if order == "asynchronous" else None)
    lay_out = {"sequential": _sequential, "in_order": _in_order, "fused": _fused}[order]
    spent = {client: one.spent() for client, one in rounds.items()}
    return RoundTimes.of(spent, lay_out(rounds), server.slots)


def _before_s(work: Work, rates: Rates) -> float:
    """What is sent before the first step; and in a step that was lost, where there is no other."""
    lost = [] if work.steps else [leg for leg in work.packets if leg not in _ONCE]
    sent_s = sum(_transfer_s(work, rates, leg) for leg in (Leg.BROADCAST, *lost))
    return sent_s + rates.received_s(*work.received)


_ONCE = (Leg.BROADCAST, Leg.HANDOVER)


def _transfer_s(work: Work, rates: Rates, leg: Leg) -> float:
    return rates.transfer_s(leg, work.packets.get(leg, 0), work.nbytes.get(leg, 0))


@dataclass(frozen=True)
class _ClientRound:
    """One client's round: what comes before its steps, equal steps, and what comes after."""

    before_s: float
    steps: int
    stages: tuple[Stage, ...]
    after_s: float

    def spent(self) -> dict[Where, float]:
        """Seconds in all, by place."""
        spent: dict[Where, float] = {"client": 0.0, "wire": self.before_s + self.after_s}
        spent["server"] = 0.0
        for stage in self.stages:
            spent[stage.where] += self.steps * stage.seconds
        return spent

    def visits(self) -> tuple[list[tuple[float, float]], float]:
        """A step as its visits to the server (seconds on the way, served), and what is left."""
        visits, way = [], 0.0
        for stage in self.stages:
            if stage.where == "server":
                visits.append((way, stage.seconds))
                way = 0.0
            else:
                way += stage.seconds
        return visits, way


_Rounds = Mapping[ClientId, _ClientRound]


def _actor(one: _ClientRound) -> Iterator[Stage | StepDone]:
    """A client whose steps have no order but the clock's."""
    if not one.steps:
        yield StepDone(last=True)  # nobody need wait for it
    yield Stage("wire", one.before_s)
    for step in range(1, one.steps + 1):
        yield from one.stages
        yield StepDone(last=step == one.steps)
    yield Stage("wire", one.after_s)


def _sequential(rounds: _Rounds) -> dict[ClientId, float]:
    """When each client is through, if each waits for the one before it.

    Clients that take turns step by step come to the same sum; only who is through when differs.
    """
    through, now = {}, 0.0
    for client, one in rounds.items():
        own = sum(one.spent().values())
        now += own
        through[client] = now if own else 0.0
    return through


def _in_order(rounds: _Rounds) -> dict[ClientId, float]:
    """The same, if the trunk takes the clients in turn, lap by lap, and all else overlaps."""
    ready = {client: one.before_s for client, one in rounds.items()}
    free = 0.0
    for lap in range(_laps(rounds)):
        for client, one in rounds.items():
            if lap >= one.steps:
                continue
            ((way, served), *more), rest = one.visits()
            free = max(free, ready[client] + way) + served + sum(map(sum, more))
            ready[client] = free + rest
    return {client: ready[client] + one.after_s for client, one in rounds.items()}


def _fused(rounds: _Rounds) -> dict[ClientId, float]:
    """The same, if the trunk takes a lap's batches as one and the next lap waits for all."""
    through = {client: one.before_s for client, one in rounds.items()}
    ready = dict(through)
    for lap in range(_laps(rounds)):
        steps = {client: one.visits() for client, one in rounds.items() if lap < one.steps}
        now = {client: ready[client] for client in steps}
        for number in range(max(len(visits) for visits, _ in steps.values())):
            due = {c: visits[number] for c, (visits, _) in steps.items() if number < len(visits)}
            begun = max(now[client] + way for client, (way, _) in due.items())
            now |= dict.fromkeys(due, begun + sum(served for _, served in due.values()))
        through |= {client: now[client] + rest for client, (_, rest) in steps.items()}
        ready |= dict.fromkeys(steps, max(through[client] for client in steps))
    return {client: through[client] + one.after_s for client, one in rounds.items()}


def _laps(rounds: _Rounds) -> int:
    return max((one.steps for one in rounds.values()), default=0)
