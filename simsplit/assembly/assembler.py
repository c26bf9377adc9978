"""From a scenario and its data to live parts: clients, server, wire, course, evaluator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from simsplit.assembly.courses import clock_for, course_for, federation_for, pace_for
from simsplit.assembly.frozen import fingerprint
from simsplit.assembly.making import Maker
from simsplit.assembly.ownership import Ownership
from simsplit.assembly.sizing import flops_of
from simsplit.data import Prepared
from simsplit.data.batches import Batches
from simsplit.data.samples import Samples
from simsplit.data.texts import TextBatcher, TextStock
from simsplit.detectors import Sensor
from simsplit.detectors.watch import signals_of, sketched_of
from simsplit.engine.pool import Crew, InlinePool, Pool
from simsplit.errors import ScenarioError
from simsplit.evaluation import TRIGGERED, Evaluator
from simsplit.evaluation.writing import Pen, Writer
from simsplit.held import hold
from simsplit.models.language import CausalLM
from simsplit.network.clock import Flops
from simsplit.network.timing import Clock
from simsplit.packets import ClientId, Packet
from simsplit.parties.feed import Exam
from simsplit.parties.precision import autocast_for
from simsplit.parties.seats import SEATS, Roster
from simsplit.parties.server import Server
from simsplit.phases import Moment
from simsplit.plugins import gathered_again
from simsplit.poisons import Aim, Poison, Scene
from simsplit.scenario import Scenario
from simsplit.scenario.own import held_by
from simsplit.scenario.sessions import writes_in_sessions
from simsplit.schedules.aggregation import SplitFedV1
from simsplit.schedules.copies import TrunkCopies
from simsplit.schedules.courses import Course
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.seeds import seed_for
from simsplit.wire import Wire

TARGETS, QUERIES = "targets", "queries"
"""What attacks are to recover, and what the greediest have a client encode."""


@dataclass
class Assembly:
    """The live parts of a run."""

    pool: Pool
    server: Server
    wire: Wire
    exchange: Exchange
    federation: Federation | None
    course: Course
    evaluator: Evaluator
    clients: range
    frozen: torch.Tensor | None
    """What the weights that never learn are known by."""


@dataclass(frozen=True)
class CrewRecipe:
    """All that another process needs to build some of a run's clients; it travels there."""

    scenario: Scenario
    data: Prepared
    device: str
    held: Mapping[str, object]
    """What was passed from Python, by digest."""

    @classmethod
    def of(cls, scenario: Scenario, data: Prepared, device: str) -> "CrewRecipe":
        """For hosts that compute on `device`."""
        return cls(scenario, data, device, held_by(scenario.model))

    @property
    def imports(self) -> Callable[[], object] | None:
        """What a host has to do before it is sent this; None where all its parts ship."""
        away = tuple(origin for origin in self.scenario.plugins.origins if origin.portable)
        return partial(gathered_again, away) if away else None

    def build(self, numbers: Sequence[ClientId]) -> Crew:
        """These clients, as they are before training."""
        hold(self.held)
        assembler = Assembler(self.scenario, self.data, torch.device(self.device))
        crew = assembler.crew(numbers)
        if self.scenario.aggregation.kind == "splitfed_v1":
            exchange = assembler.exchange(InlinePool(crew))
            crew.workshop = assembler.workshop(exchange)
        return crew


class Assembler:
    """Builds the parts of one run, step by step."""

    seats: int = SEATS
    """How many clients are live at once where the others may rest."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        secret: int | None = None,
    ) -> None:
        """`secret` is a deployed client's own, in place of the seed that all know."""
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.autocast = autocast_for(scenario.train.precision, device)
        train = data.train if data.at_hand else None
        self.owners = Ownership(scenario, data.info, device, train, secret)

    @cached_property
    def flops(self) -> Flops:
        """What one sample's forward pass takes in each segment."""
        return flops_of(self.owners)

    @cached_property
    def clock(self) -> Clock | None:
        """Simulated time, if the scenario names a network."""
        return clock_for(self.scenario, self.flops) if self.scenario.network else None

    def assemble(self, pool: Pool | None = None) -> Assembly:
        """The live parts, around clients that live in `pool`, or here."""
        pool = pool or InlinePool(self.crew(self.clients))
        exchange = self.exchange(pool)
        if isinstance(self.scenario.aggregation, SplitFedV1):
            pool.crew.workshop = self.workshop(exchange)
        federation = federation_for(exchange, self.owners)
        return Assembly(
            pool,
            exchange.server,
            exchange.wire,
            exchange,
            federation,
            course_for(self.scenario, exchange, federation, self.clock),
            self._evaluator(exchange),
            self.clients,
            fingerprint([self.owners.model.head, self.owners.model.trunk, self.owners.model.tail]),
        )

    def exchange(self, pool: Pool) -> Exchange:
        """A server, a wire, and the choreography between them and the pool's clients."""
        exchange = Exchange(pool, self._server(), Wire(), self.owners.topology)
        detectors = self.scenario.detectors
        if signals_of(detectors) or sketched_of(detectors):
            exchange.sensor = self._sensor(exchange.server, exchange.moment)
            exchange.wire.taps.append(exchange.sensor)
        return exchange

    def _sensor(self, server: Server, moment: Moment) -> Sensor:
        """What reads packets as the server does: of several messages in one, the first."""

        def decode(packet: Packet) -> torch.Tensor:
            message = server.stack.messages(packet.leg, packet.tensors)[0]
            return server.stack.unpack(packet.leg, message, server.end.step(packet))

        detectors = self.scenario.detectors
        seed = seed_for(self.scenario.seed, "server", "sensor")
        return Sensor(signals_of(detectors), sketched_of(detectors), decode, seed, moment=moment)

    def workshop(self, exchange: Exchange) -> TrunkCopies:
        """Where clients train against copies of the trunk: the exchange's server."""
        config = self.scenario.aggregation
        assert isinstance(config, SplitFedV1), "made for no other"
        pace = pace_for(self.scenario, exchange, self.clock)

        def elsewhere() -> TrunkCopies:
            made = Assembler(self.scenario, self.data, self.device)
            return made.workshop(made.exchange(exchange.pool))

        keeps = config.moments == "keep"
        return TrunkCopies(exchange, pace, keep_moments=keeps, elsewhere=elsewhere)

    def crew(self, numbers: Sequence[ClientId]) -> Crew:
        """Some of the clients."""
        exams: dict[str, Exam] = {split: self._exam(split) for split in self.scenario.splits}
        if self.aim is not None:
            exams[TRIGGERED] = self._triggered(self.aim)
        maker = Maker(self, exams | self._exposed(numbers))
        if len(numbers) > self.seats and self.owners.may_rest:
            return Crew(Roster(numbers, maker, self.seats))
        return Crew({number: maker.make(number) for number in numbers})

    def writer(self, exchange: Exchange) -> Writer | None:
        """What has clients' models write; None where they write nothing."""
        pen = self.pen
        return None if pen is None else Writer(**vars(pen), exchange=exchange)

    @property
    def pen(self) -> Pen | None:
        """How clients' models write; None where they write nothing."""
        model = self.scenario.model
        if not isinstance(model, CausalLM):
            return None
        reader, evaluate = model.reader(), self.scenario.evaluate
        read = (reader.end, reader.pad, model.measures()[2])
        in_sessions = partial(writes_in_sessions, self.scenario)
        return Pen(self.scenario.seed, *read, evaluate.sampling, in_sessions)

    def _evaluator(self, exchange: Exchange) -> Evaluator:
        splits = {split: self._samples(split) for split in self.scenario.splits}
        own_models = self.scenario.clients.heads == "per_client"
        return Evaluator(
            self.scenario.evaluate,
            exchange,
            splits,
            self.clients if own_models else None,
            self.scenario.seed,
            metrics=self.scenario.metrics,
            wanted=None if self.aim is None else self.aim.wanted,
            choices=None if self.data.vocabulary is None else self.data.vocabulary.choices,
            reader=self.scenario.text_reader() if self.scenario.reads_texts else None,
            writer=self.writer(exchange),
            own=self.scenario.plugins.of("METRICS"),
            malicious=self.scenario.malicious,
        )

    def _server(self) -> Server:
        owners = self.owners
        end = owners.topology.server(
            owners.model.trunk,
            owners.model.tail if "tail" in owners.topology.served else None,
            owners.server_stack,
            owners.server_learner(),
            owners.loss,
            seed=seed_for(self.scenario.seed, "server"),
            device=self.device,
            autocast=self.autocast,
        )
        return Server(end)

    @property
    def public_batch_size(self) -> int | None:
        """Public samples per step, if a method says how many; the first that does."""
        return next(filter(None, (each.public_batch_size for each in self.scenario.method)), None)

    def batcher(self, samples: Samples, *, augment: bool) -> Batches:
        """What makes batches of some of the data."""
        return self.data.batches(
            samples,
            self.device,
            self.scenario.data.augment if augment else (),
            channels_last=self.scenario.train.channels_last,
        )

    def _exam(self, split: str) -> Exam:
        samples = self._samples(split)
        batcher = self.batcher(samples, augment=False)
        rows, config = torch.arange(len(samples)), self.scenario.evaluate
        return Exam(batcher, rows, config.batch_size, views=config.views)

    @cached_property
    def stock(self) -> TextStock | None:
        """What clients may add to their texts."""
        support, vocabulary = self.data.support, self.data.vocabulary
        if support is None or vocabulary is None:
            return None
        return TextStock(TextBatcher(support, self.device), len(support), vocabulary)

    @cached_property
    def poisons(self) -> list[Poison]:
        """Of the malicious clients, before any of them has made them its own."""
        malicious = self.scenario.clients.malicious
        if malicious is None:
            return []
        data = self.data
        return [
            config.build(
                Scene(
                    data.train,
                    data.info.classes,
                    tuple(data.mean),
                    tuple(data.std),
                    self.scenario.seed,
                    f"clients.malicious.poison.{index}",
                    tuple(self.scenario.malicious),
                )
            )
            for index, config in enumerate(malicious.poison)
        ]

    @cached_property
    def aim(self) -> Aim | None:
        """What the malicious clients want of the test samples; None where there is nothing."""
        aims = [aim for poison in self.poisons if (aim := poison.aim(self.data.test)) is not None]
        if not aims:
            return None
        if not len(aims[0].rows):
            raise ScenarioError("clients.malicious.poison", "no test sample shows whether it works")
        return aims[0]

    def _triggered(self, aim: Aim) -> Exam:
        batcher = self.batcher(self.data.test, augment=False)
        return Exam(batcher, aim.rows, self.scenario.evaluate.batch_size, aim.trigger)

    def _exposed(self, numbers: Sequence[ClientId]) -> dict[str, Exam]:
        """What the client that attacks are after is made to encode, if it is among these."""
        scenario, data = self.scenario, self.data
        if not scenario.attacks or scenario.targets.client not in numbers:
            return {}
        size = scenario.train.batch_size
        samples, rows = scenario.aims.chosen(data)
        at_once = scenario.targets.at_once(size)
        exams = {TARGETS: Exam(self.batcher(samples, augment=False), rows, at_once)}
        if data.auxiliary is not None:
            public = self.batcher(data.auxiliary, augment=False)
            exams[QUERIES] = Exam(public, torch.arange(len(data.auxiliary)), size)
        return exams

    def _samples(self, split: str) -> Samples:
        samples = self.data.test if split == "test" else self.data.validation
        assert samples is not None, "scenario.splits names only splits that exist"
        return samples
