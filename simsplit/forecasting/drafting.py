"""A draft of a run: its rounds on paper, one after another, with what crosses in each."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, cast

import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.assembly.dry_step import Events, Prober, drop_values
from simsplit.assembly.exchanges import build_course, build_pace
from simsplit.data.client_parts import count_rows
from simsplit.errors import ScenarioError
from simsplit.evaluation.evaluator import Evaluator, choose
from simsplit.forecasting.outline import Outline
from simsplit.forecasting.paper import PaperChanges, PaperExchange, PaperPool, make_average
from simsplit.legs import ClientId, Leg
from simsplit.network.clock import Clock, simulate_round
from simsplit.packets import Packet
from simsplit.parties.calls import Plan
from simsplit.parties.changes import Changes
from simsplit.parties.feed import Feed, count_batches
from simsplit.phases import EVALUATE, Phase
from simsplit.program import Program
from simsplit.rows import WireRow
from simsplit.schedules.aggregation import SplitFedV1
from simsplit.schedules.cohort import Lineup
from simsplit.schedules.copies import TrunkCopies
from simsplit.schedules.federation import Federation
from simsplit.wire import Counts

MOST_PLAYED, ENOUGH_PLAYED = 10_000, 2000
"""Rounds of a phase that are all played, at most; of more, so many are, and some stand for others.
"""
MOST_STEPS = 2_000_000
"""Steps of a round, at most."""
DRAWN = "batches are drawn (train.dp.sampling: poisson), so a run's have other sizes than these"
"""Said of drawn batches."""
BatchKey = tuple[int, int]
"""All of a batch on which the sizes of packets depend: rows, and tokens of the longest text."""
Exam = Mapping[Leg, tuple[int, int]]
"""Packets and bytes by leg."""


@dataclass(frozen=True)
class DraftRound:
    """One round of a draft."""

    number: int
    phase: Phase
    clients: int
    """The number of clients that take part."""
    work: Mapping[ClientId, tuple[int, int]]
    """Steps and samples by client."""
    sent: Sequence[WireRow]
    seconds: Mapping[str, float]
    """Simulated seconds by the name of a clock."""
    was_repeated: bool = False
    """Whether `work`, `sent` and `seconds` are those of an earlier round."""
    times: int = 1
    """The number of rounds for which it stands: itself, and later ones that are not played."""


class _Played(NamedTuple):
    """A round that was played, and the state after it."""

    round: DraftRound
    taken: Mapping[ClientId, Counter[str]]
    """Batches that clients took in it."""
    holder: ClientId | None
    up_to_date: set[ClientId] | None


class StepBook:
    """The events of steps by phase and batch, and how many batches each client has taken."""

    def __init__(self, prober: Prober, outline: Outline) -> None:
        self.prober, self.outline = prober, outline
        self.scenario, self.data = prober.scenario, outline.data
        self.taken: dict[ClientId, Counter[str]] = defaultdict(Counter)
        """Batches taken so far, by client and source."""
        self.phase: Phase | None = None
        self._known: dict[tuple[ClientId, str, str, str, BatchKey], Events] = {}
        self._feeds: dict[tuple[ClientId, str], Feed] = {}
        self._rows = count_rows(self.data.parts)  # parts of many clients are drawn when asked for
        self._fresh = {each: prober.hand_over(each) for each in prober.numbers}
        self._trained: dict[ClientId, Packet] = {}

    @property
    def varies(self) -> bool:
        """Whether batches differ from epoch to epoch in what crosses."""
        return self.data.info.texts and self.outline.was_read

    @property
    def trained(self) -> frozenset[ClientId]:
        """The clients that have taken a step here, so that their optimizers have moments."""
        return frozenset(self._trained)

    def count_batches(self, client: ClientId, source: str) -> int:
        """Count the batches in one pass over a client's data."""
        if source not in self.prober.feeds:
            return 0
        count, size = self._count_rows(client, source), self.prober.feeds[source].batch_size
        return count_batches(count, size, drop_last=self.scenario.train.drop_last)

    def _count_rows(self, client: ClientId, source: str) -> int:
        private = source == "private"
        return int(self._rows[client]) if private else self.outline.counts.get("auxiliary", 0)

    def take_next(
        self, client: ClientId, manner: str, batch: int | None = None
    ) -> tuple[Events, int]:
        """Return the events of a client's next step, and the number of its samples.

        `batch` is the number of its batch, where a party may have missed some; None: the next one.
        """
        assert self.phase is not None, "entered before each round"
        return self._take(client, manner, self.phase, batch)

    def take_between(self, client: ClientId) -> Events:
        """Return the events of the step between others, if one is due."""
        assert self.phase is not None, "entered before each round"
        interleaved = self.phase.interleaved
        assert interleaved is not None, "asked for where there is one"
        if self.taken[client][self.phase.source] % interleaved.every:
            return ()
        return self._take(client, "between", interleaved.phase)[0]

    def hand_over(self, client: ClientId) -> Packet:
        """Return the form of the packet by which a client hands shared weights on."""
        number = self.prober.turn_to(client)
        return self._trained.get(number) or self._fresh[number]

    def _take(
        self, client: ClientId, manner: str, phase: Phase, batch: int | None = None
    ) -> tuple[Events, int]:
        number = self.taken[client][phase.source] if batch is None else batch
        self.taken[client][phase.source] = number + 1
        key, rows = self._find_batch(client, phase.source, number)
        place = (self.prober.turn_to(client), manner, phase.name, phase.source, key)
        if place not in self._known:
            self._known[place] = self._probe(manner, phase, rows)
        return self._known[place], key[0]

    def _probe(self, manner: str, phase: Phase, rows: Tensor) -> Events:
        # The samples of all kinds of batches that clients have.
        size = self.scenario.train.batch_size
        lasts: set[int] = {*(count_rows(self.data.parts) % size).tolist()}
        probed = (size + sum(lasts)) * (self.data.info.shape[0] if self.varies else 1)
        with self.prober.replace_if_costly(probed):
            if manner == "abandon":
                return self.prober.abandon(phase, rows)
            step = self.prober.step_between if manner == "between" else self.prober.step
            events = step(phase, rows)
        self._trained[self.prober.number] = self.prober.hand_over(self.prober.number)
        return events

    def _find_batch(self, client: ClientId, source: str, number: int) -> tuple[BatchKey, Tensor]:
        """Return what decides the sizes of a batch, and rows that make such a one."""
        if self.varies:
            rows = self._get_feed(client, source).indices(number)
            samples = self.data.train if source == "private" else self.data.auxiliary
            assert samples is not None, "a source with batches has samples"
            assert samples.texts is not None, "only texts vary"
            return (len(rows), int(samples.texts.lengths[rows].max())), rows
        count, size = self._count_rows(client, source), self.prober.feeds[source].batch_size
        place = number % self.count_batches(client, source)
        few = min(size, count - place * size)
        return (few, 0), torch.arange(few)

    def _get_feed(self, client: ClientId, source: str) -> Feed:
        if (client, source) not in self._feeds:
            made = self.prober.maker.feeds(client)
            self._feeds |= {(client, name): feed for name, feed in made.items()}
        return self._feeds[client, source]

    def list_exams(self, split: str) -> Iterator[Tensor]:
        """Yield the rows of each batch of a split's evaluation."""
        count, size = self.outline.counts[split], self.scenario.evaluate.batch_size
        for start in range(0, count, size):
            few = min(size, count - start)
            yield torch.arange(start, start + few) if self.varies else torch.arange(few)


class RunDraft:
    """A run's parts on paper."""

    def __init__(self, prober: Prober, outline: Outline, clocks: Mapping[str, Clock]) -> None:
        """Prepare to play the rounds; the first of `clocks` drives them."""
        self.scenario, self.prober, self.clocks = prober.scenario, prober, clocks
        scenario = self.scenario
        self.clients = range(scenario.clients.count)
        self.book = StepBook(prober, outline)
        pool = PaperPool(self.book.count_batches, self._plan, self.book.hand_over)
        parts = scenario.train.accumulate
        self.exchange = PaperExchange(
            pool,
            scenario.crossings,
            parts,
            self.book.take_next,
            self.book.take_between,
            parties=scenario.parties,
        )
        owners, aggregation = prober.assembler.owners, scenario.aggregation
        clock = next(iter(clocks.values()), None)
        federation = None
        if aggregation.kind != "none":
            common = owners.build_client_learner(owners.list_shared_modules(owners.depths.deepest))
            weights, changes = common.weights(), owners.build_changes(common)
            copies = isinstance(aggregation, SplitFedV1)
            federation = Federation(
                pool,
                self.exchange.server,
                self.exchange.wire,
                shared=make_average(weights) if weights else None,
                trunk=make_average({}) if copies else None,
                changes=None if changes is None else cast("Changes", PaperChanges(changes)),
                held=owners.list_held(),
            )
        if isinstance(aggregation, SplitFedV1):
            pace = build_pace(scenario, self.exchange, clock)
            pool.workshop = TrunkCopies(self.exchange, pace, keep_moments=False, elsewhere=_refuse)
        self.course = build_course(scenario, self.exchange, federation, clock)
        self.program = Program(
            scenario,
            Assembly(
                pool=pool,
                server=self.exchange.server,
                wire=self.exchange.wire,
                exchange=self.exchange,
                federation=federation,
                course=self.course,
                evaluator=cast("Evaluator", None),  # nothing is scored
                clients=self.clients,
                frozen=None,
            ),
        )
        self.federation = federation
        self.notes: list[str] = []
        """What was assumed of rounds."""
        if scenario.train.draws:
            self.notes.append(DRAWN)
        self._kinds: dict[object, int] = {}
        """A number for each key of rounds that are alike, since keys may be large."""
        self._memory: dict[tuple[int, bool], _Played] = {}
        """By a round's kind, and whether the models are scored after it."""
        self._exams: dict[ClientId, Exam] = {}

    def play(self) -> Iterable[DraftRound]:
        """Yield the rounds; the first one has the announcements before it."""
        server, parties = self.prober.exchange.server, self.scenario.parties
        everybody: list[Sequence[ClientId]] = [[each] for each in parties] or [self.clients]
        for clients in everybody:
            announced = drop_values(chain.from_iterable(server.announce(clients[0])))
            self.exchange.announce_forms(clients, announced)
        if not self.program.rounds:
            self._evaluate(0, self.program.phases[-1])
            yield self._note(Lineup(0, self.program.phases[-1], 1.0, {}), {})
        first = 1
        for phase in self.program.phases:
            last = first + phase.rounds - 1
            if phase.rounds > MOST_PLAYED:
                yield from self._play_some(first, last)
            else:
                yield from (self._play(number)[0] for number in range(first, last + 1))
            first = last + 1

    def _play_some(self, first: int, last: int) -> Iterator[DraftRound]:
        """Yield the first rounds and the last one; some stand for the rounds between these."""
        played = [self._play(number) for number in range(first, first + ENOUGH_PLAYED)]
        period = self._find_period([kind for _, kind in played])
        if period is None:
            period = ENOUGH_PLAYED // 2
            self.notes.append(
                f"rounds {first + ENOUGH_PLAYED:,} to {last - 1:,} were not played: they are taken "
                f"to be as the {period:,} rounds before them"
            )
        start = first + max(ENOUGH_PLAYED, period)
        # So many more that the last round comes after whole periods.
        start += (last - start) % period
        played += [self._play(number) for number in range(first + ENOUGH_PLAYED, start)]
        yield from (each for each, _ in played[:-period])
        for each, _ in played[-period:]:
            yield replace(each, times=1 + (last - start) // period)
        yield self._play(last)[0]

    def _find_period(self, kinds: Sequence[int]) -> int | None:
        """Return the rounds after which all repeats itself, evaluations too; None if nothing does.

        Where clients drop out by chance, rounds without one of them say nothing of later ones.
        """
        period = None if self.scenario.cohort.dropout else find_period(kinds)
        if period is not None:
            period = math.lcm(period, self.scenario.evaluate.every or 1)
        return None if period is None or period > MOST_PLAYED // 2 else period

    def _play(self, number: int) -> tuple[DraftRound, int]:
        """Play a round; return it and its kind: two of a kind are alike but for evaluations."""
        lineup = self.program.choose_lineup(number)
        if (steps := sum(lineup.steps.values())) > MOST_STEPS:
            raise ScenarioError(
                "schedule",
                f"round {lineup.round} has {steps:,} steps, and a plan plays at most "
                f"{MOST_STEPS:,}; plan with fewer clients or schedule.local_steps",
            )
        self.book.phase = lineup.phase
        key = self._build_key(lineup)
        if key is None:
            return self._play_round(lineup), -number
        kind = self._kinds.setdefault(key, len(self._kinds))
        alike = kind, self.scenario.evaluate.due(number, self.program.rounds)
        if alike in self._memory:
            return self._repeat(lineup, self._memory[alike]), kind
        before = {client: Counter(self.book.taken[client]) for client in lineup.clients}
        made = self._play_round(lineup)
        more = {c: self.book.taken[c] - earlier for c, earlier in before.items()}
        self._memory[alike] = _Played(made, more, self.exchange.holder, self._get_up_to_date())
        return made, kind

    def _play_round(self, lineup: Lineup) -> DraftRound:
        with self.exchange.moment.enter_round(lineup.round, lineup.phase, lineup.clients):
            done = self.course.run(lineup, lambda done, total: None)
            self._evaluate(lineup.round, lineup.phase)
        work = {
            client: (int(report.get("steps", 0)), int(report.get("samples", 0)))
            for client, report in done.reports.items()
        }
        return self._note(lineup, work)

    def _note(self, lineup: Lineup, work: Mapping[ClientId, tuple[int, int]]) -> DraftRound:
        sent = self.exchange.wire.drain()
        number = lineup.round
        seconds = {
            name: simulate_round(clock, work, self.clients, sent, number)[1]
            for name, clock in self.clocks.items()
        }
        return DraftRound(number, lineup.phase, len(lineup.steps), work, sent, seconds)

    def _build_key(self, lineup: Lineup) -> object:
        """Return all on which a round's packets of training depend; None if it is always new."""
        if self.book.varies or lineup.round == 1:  # the first round has announcements
            return None
        phase = lineup.phase
        sources = {phase.source, *((phase.interleaved.phase.source,) if phase.interleaved else ())}
        every = phase.interleaved.every if phase.interleaved else 1
        places = tuple(
            (self.book.taken[client][source] % (self.book.count_batches(client, source) * every))
            for client in lineup.clients
            for source in sorted(sources)
            if self.book.count_batches(client, source)
        )
        steps = tuple(lineup.steps.items())
        up_to_date = self._get_up_to_date()
        had_it = None if up_to_date is None else frozenset(up_to_date)
        state = self.exchange.holder, self.book.trained, had_it
        if self.scenario.parties:  # the round decides which batches they take, whoever is away
            reader = self.scenario.label_party
            begun = (lineup.round - 1) * lineup.most
            places += (begun % max(1, self.book.count_batches(reader, phase.source)),)
        return phase.name, steps, lineup.drops, places, state

    def _repeat(self, lineup: Lineup, played: _Played) -> DraftRound:
        """Return an earlier round again, with the state after it."""
        self.exchange.holder = played.holder
        for client, counts in played.taken.items():
            self.book.taken[client] += counts
        if self.federation is not None:
            self.federation.up_to_date = played.up_to_date
        return replace(played.round, number=lineup.round, was_repeated=True)

    def _get_up_to_date(self) -> set[ClientId] | None:
        """Return the clients that had the last broadcast, where that matters."""
        known = None if self.federation is None else self.federation.up_to_date
        return None if known is None else set(known)

    def _plan(self, rounds: int) -> tuple[list[Phase], Phase]:
        return self.prober.pool.ask(self.prober.number, Plan(rounds))

    def _evaluate(self, number: int, phase: Phase) -> None:
        """Carry what crosses when the models are scored."""
        if not self.scenario.evaluate.due(number, self.program.rounds):
            return
        counts: Counts = {}
        for client in self.list_scored():
            of_cut = self.prober.turn_to(client)
            if of_cut not in self._exams:
                self._exams[of_cut] = self._take_exam()
            for leg, (packets, nbytes) in self._exams[of_cut].items():
                counts[number, client, EVALUATE, leg] = [packets, nbytes, 0, 0]
        self.exchange.wire.absorb(counts)

    def list_scored(self) -> Sequence[ClientId]:
        """List the clients whose models are scored now."""
        if self.scenario.parties:
            return self.scenario.parties  # each sends something for the one model of all
        if self.scenario.has_own_models:
            return choose(self.clients, self.scenario.evaluate.clients, self.scenario.seed)
        return [self.exchange.holder or 0]

    def _take_exam(self) -> Exam:
        """Return packets and bytes by leg of the evaluation of one client's model."""
        found: dict[Leg, tuple[int, int]] = {}
        main = self.program.phases[-1]
        for split in self.scenario.splits:
            batches = list(self.book.list_exams(split))
            sizes = [len(batch) for batch in batches]
            rows = sum(sizes if self.book.varies else set(sizes))
            with self.prober.replace_if_costly(rows):
                for control in ("", *self.scenario.evaluate.controls):
                    known: dict[int, Sequence[Packet]] = {}
                    for batch in batches:
                        if self.book.varies or len(batch) not in known:
                            events = self.prober.predict(main, split, batch, control)
                            known[len(batch)] = [e for e in events if isinstance(e, Packet)]
                        for packet in known[len(batch)]:
                            packets, nbytes = found.get(packet.leg, (0, 0))
                            found[packet.leg] = packets + 1, nbytes + packet.nbytes
        return found


def find_period(kinds: Sequence[int]) -> int | None:
    """Return the number of rounds after which the last half of some repeats itself, if it does."""
    half = kinds[len(kinds) // 2 :]
    periods = range(1, len(half) // 2 + 1)
    return next((n for n in periods if half[n:] == half[:-n]), None)


def _refuse() -> TrunkCopies:
    raise AssertionError("clients of one process share one trunk")
