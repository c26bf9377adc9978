"""The exchange is built here: a server and a wire that are connected to a pool's clients.

So are the course of a scenario's rounds, with its averages, deadlines and clock; the evaluator, and
the writer that has models write texts.
"""

from functools import partial

from torch import Tensor

from simsplit.assembly.ownership import Ownership
from simsplit.assembly.supplies import Supplies
from simsplit.detectors import Sensor
from simsplit.detectors.watch import list_signals, list_sketched
from simsplit.engine.pool import Pool
from simsplit.evaluation.evaluator import Evaluator
from simsplit.evaluation.writing import Pen, Writer
from simsplit.machine import Autocast
from simsplit.models.language import CausalLM
from simsplit.network.clock import Clock, Flops, choose_order
from simsplit.packets import Packet
from simsplit.parties.joined import JoinedEnd, Joining
from simsplit.parties.learner import Learner
from simsplit.parties.server import Server
from simsplit.scenario import Scenario
from simsplit.scenario.session_rules import writes_in_sessions
from simsplit.schedules.aggregation import Fused, NoAggregation, SplitFedV1
from simsplit.schedules.cohort import RoundPace
from simsplit.schedules.courses import Apart, AsTheyCome, Course, InTurn, Jointly, Together
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.schedules.overlaps import AnyAverager, Names, build_averager
from simsplit.schedules.schedule import AsynchronousConfig, LapsConfig
from simsplit.seeds import derive_seed
from simsplit.wire import Wire


def build_exchange(
    owners: Ownership, autocast: Autocast, pool: Pool, supplies: Supplies
) -> Exchange:
    """Build a pool's exchange: a server, a wire, and a sensor if detectors ask for one."""
    server, parts = _build_server(owners, autocast, supplies), owners.scenario.train.accumulate
    parties = owners.scenario.parties
    exchange = Exchange(pool, server, Wire(), owners.topology, parts, parties=parties)
    if parties:
        exchange.holder = owners.scenario.label_party  # the one model of all parties is read there
    exchange.watch = pool.watch(exchange.server.learner)
    detectors = owners.scenario.detectors
    if list_signals(detectors) or list_sketched(detectors):
        exchange.sensor = _build_sensor(owners.scenario, exchange)
        exchange.wire.taps.append(exchange.sensor)
    return exchange


def _build_sensor(scenario: Scenario, exchange: Exchange) -> Sensor:
    """Build the sensor, which reads packets, of several messages the first, as the server does."""
    server, detectors = exchange.server, scenario.detectors

    def decode(packet: Packet) -> Tensor:
        message = server.stack.split_messages(packet.leg, packet.tensors)[0]
        return server.stack.unpack(packet.leg, message, server.end.open_step(packet))

    signals, sketched = list_signals(detectors), list_sketched(detectors)
    seed = derive_seed(scenario.seed, "server", "sensor")
    return Sensor(signals, sketched, decode, seed, moment=exchange.moment)


def _build_server(owners: Ownership, autocast: Autocast, supplies: Supplies) -> Server:
    """Build the server around its end of the topology; it gets the tail if the topology says so."""
    scenario = owners.scenario
    end = owners.topology.server(
        owners.model.trunk,
        owners.model.tail if "tail" in owners.topology.served else None,
        owners.server_stack,
        owners.build_server_learner(),
        owners.loss,
        seed=derive_seed(scenario.seed, "server"),
        device=owners.device,
        autocast=autocast,
        noise=scenario.noise,
    )
    end.entries = owners.depths.list_entries()
    if isinstance(end, JoinedEnd):
        shapes = {
            p: scenario.model.compute_shapes(owners.info.parts[p])[0] for p in scenario.parties
        }
        end.joining = Joining(
            scenario.joining.join,
            scenario.label_party,
            owners.party_stacks,
            shapes,
            memory=supplies.build_memory(shapes) if scenario.joining.absent == "last" else None,
        )
    return Server(end, owners.topology.returned)


def build_evaluator(supplies: Supplies, exchange: Exchange) -> Evaluator:
    """Build the evaluator, which scores the models of an exchange's clients."""
    scenario, aim, vocabulary = supplies.scenario, supplies.aim, supplies.data.vocabulary
    return Evaluator(
        scenario.evaluate,
        exchange,
        {split: supplies.samples(split) for split in scenario.splits},
        range(scenario.clients.count) if scenario.has_own_models else None,
        scenario.seed,
        metrics=scenario.metrics,
        wanted=None if aim is None else aim.wanted,
        choices=None if vocabulary is None else vocabulary.choices,
        reader=scenario.text_reader() if scenario.reads_texts else None,
        writer=build_writer(scenario, exchange),
        own=scenario.plugins.of("METRICS"),
        malicious=scenario.malicious,
    )


def build_writer(scenario: Scenario, exchange: Exchange) -> Writer | None:
    """Build the writer that has clients' models write texts; None if the model writes none."""
    pen = build_pen(scenario)
    return None if pen is None else Writer(**vars(pen), exchange=exchange)


def build_pen(scenario: Scenario) -> Pen | None:
    """Build the settings by which clients' models write; None if the model writes no texts."""
    model = scenario.model
    if not isinstance(model, CausalLM):
        return None
    reader, evaluate = model.make_reader(), scenario.evaluate
    read = (reader.end, reader.pad, model.get_sizes()[2])
    return Pen(scenario.seed, *read, evaluate.sampling, partial(writes_in_sessions, scenario))


def build_course(
    scenario: Scenario, exchange: Exchange, federation: Federation | None, clock: Clock | None
) -> Course:
    """Build the course that runs this scenario's rounds."""
    schedule, aggregation = scenario.schedule, scenario.aggregation
    pace = build_pace(scenario, exchange, clock)
    if isinstance(aggregation, SplitFedV1):
        return Apart(exchange, pace, federation)
    if scenario.parties:
        absent = scenario.joining.absent
        return Jointly(exchange, pace, None, scenario.label_party, waits=absent == "wait")
    if isinstance(schedule, AsynchronousConfig):
        assert clock is not None, "a scenario without network is refused"
        return AsTheyCome(exchange, pace, federation, clock, schedule.max_ahead)
    if isinstance(aggregation, Fused):
        assert isinstance(schedule, LapsConfig), "fused with another schedule is refused"
        return Together(exchange, pace, federation, schedule)
    hands_over = federation is None and scenario.shares
    return InTurn(exchange, pace, federation, schedule, hands_over=hands_over)


def build_federation(exchange: Exchange, owners: Ownership) -> Federation | None:
    """Build the averages of a scenario, of what learns; None if nothing is averaged."""
    config = owners.scenario.aggregation
    if isinstance(config, NoAggregation):
        return None
    common = owners.build_client_learner(owners.list_shared_modules(owners.depths.deepest))
    server = exchange.server.learner
    held, passed = owners.list_held(), owners.depths.list_passed(server.weights())

    def averager(learner: Learner, parts: Names | None) -> AnyAverager:
        where = "aggregation.strategy"
        return build_averager(config.strategy, learner.weights(), where, learner.buffers, parts)

    return Federation(
        exchange.pool,
        exchange.server,
        exchange.wire,
        shared=averager(common, held) if common.weights() else None,
        trunk=averager(server, passed) if isinstance(config, SplitFedV1) else None,
        changes=owners.build_changes(common),
        held=held,
        passed=passed,
    )


def build_pace(scenario: Scenario, exchange: Exchange, clock: Clock | None) -> RoundPace:
    """Build the pace, which decides who is late; it reads the wire only if there is a deadline."""
    cohort = scenario.cohort
    pace = RoundPace(clock, deadline_s=cohort.deadline_s, skips=cohort.late == "skip")
    if cohort.deadline_s is not None:
        exchange.wire.taps.append(pace)
    return pace


def build_clock(scenario: Scenario, flops: Flops) -> Clock:
    """Build the clock of simulated time on the network that the scenario names."""
    assert scenario.network is not None, "only a scenario with a network has a clock"
    schedule = scenario.schedule
    bound = schedule.max_ahead if isinstance(schedule, AsynchronousConfig) else None
    return Clock(
        choose_order(schedule.kind, scenario.aggregation.kind, joint=scenario.crossings.joint),
        scenario.crossings.training,
        scenario.network.draw_rates(scenario.clients.count, scenario.seed),
        scenario.network.server,
        flops,
        bound,
        scenario.reader,
    )
