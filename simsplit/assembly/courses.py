"""The course of a scenario's rounds is chosen here, with its averages, deadlines and clock."""

from simsplit.assembly.ownership import Ownership
from simsplit.network.clock import Flops, choose_order
from simsplit.network.timing import Clock
from simsplit.parties.learner import Learner
from simsplit.scenario import Scenario
from simsplit.schedules.aggregation import Fused, NoAggregation, SplitFedV1
from simsplit.schedules.asynchronous import AsTheyCome
from simsplit.schedules.averaging import Averager
from simsplit.schedules.courses import Apart, Course, InTurn, Together
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.schedules.pace import RoundPace
from simsplit.schedules.schedule import AsynchronousConfig, LapsConfig


def build_course(
    scenario: Scenario, exchange: Exchange, federation: Federation | None, clock: Clock | None
) -> Course:
    """Build the course that runs this scenario's rounds."""
    schedule, aggregation = scenario.schedule, scenario.aggregation
    pace = build_pace(scenario, exchange, clock)
    if isinstance(aggregation, SplitFedV1):
        return Apart(exchange, pace, federation)
    if isinstance(schedule, AsynchronousConfig):
        assert clock is not None, "a scenario without network is refused"
        return AsTheyCome(exchange, pace, federation, clock, schedule.max_ahead)
    if isinstance(aggregation, Fused):
        assert isinstance(schedule, LapsConfig), "fused with another schedule is refused"
        return Together(exchange, pace, federation, schedule)
    hands_over = federation is None and scenario.shares
    return InTurn(exchange, pace, federation, schedule, hands_over=hands_over)


def build_federation(exchange: Exchange, owners: Ownership) -> Federation | None:
    """Build the averages of a scenario; None if nothing is averaged.

    Shared segments are averaged only if some of their weights learn.
    """
    config = owners.scenario.aggregation
    if isinstance(config, NoAggregation):
        return None
    common = owners.build_client_learner(owners.list_shared_modules())

    def averager(learner: Learner) -> Averager:
        where = "aggregation.strategy"
        return config.strategy.build(learner.weights(), where, learner.buffers)

    return Federation(
        exchange.pool,
        exchange.server,
        exchange.wire,
        shared=averager(common) if common.weights() else None,
        trunk=averager(exchange.server.learner) if isinstance(config, SplitFedV1) else None,
        changes=owners.build_changes(common),
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
        choose_order(schedule.kind, scenario.aggregation.kind),
        scenario.crossings.training,
        scenario.network.draw_rates(scenario.clients.count, scenario.seed),
        scenario.network.server,
        flops,
        bound,
    )
