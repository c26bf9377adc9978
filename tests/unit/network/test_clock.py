"""Durations here are whole seconds: every rate is 1, so FLOPs, bytes and seconds are the same."""

from dataclasses import replace
from typing import get_args

import pytest

from simsplit.legs import Leg
from simsplit.network.clock import ClientWork, Clock, Flops, Order, choose_order
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.topologies import TOPOLOGIES

ORDERS = get_args(Order)
RATES = Rates(flops_per_s=1, up_bytes_per_s=1, down_bytes_per_s=1, latency_s=0)
SERVER = ServerConfig(gflops=1e-9)
FLOPS = Flops(head=2, trunk=5, tail=1)

U_LEGS = {Leg.SMASHED: 3, Leg.FEATURES: 7, Leg.FEATURES_GRAD: 13, Leg.SMASHED_GRAD: 17}
U_STEP = [2, 3, 5, 7, 3, 13, 10, 17, 4]
"""head, up, trunk, down, tail there and back, up, trunk back, down, head back."""
VANILLA_LEGS = {Leg.SMASHED: 3, Leg.LABELS: 1, Leg.SMASHED_GRAD: 17}
VANILLA_STEP = [2, 4, 18, 17, 4]
"""head, smashed and labels up, trunk and tail there and back, down, head back."""


def work(steps, legs=U_LEGS, **once):
    """Build a client's work; `legs` are bytes a step, `once` bytes a round."""
    packets = dict.fromkeys(legs, steps) if steps else {}
    nbytes = {leg: steps * size for leg, size in legs.items()} if steps else {}
    for leg, size in once.items():
        packets[Leg(leg)], nbytes[Leg(leg)] = 1, size
    return ClientWork(steps, steps, packets, nbytes)


PROTOCOLS = {name: topology.training for name, topology in TOPOLOGIES.items()}


def time_round(
    order, works, topology="u_shaped", *, server=SERVER, rates=None, flops=FLOPS, ahead=None
):
    works = dict(enumerate(works)) if isinstance(works, list) else works
    clock = Clock(order, PROTOCOLS[topology], rates or [RATES] * 10, server, flops, ahead)
    return clock.time_round(works)


def list_stages(topology, given, rates=RATES, server=SERVER, flops=FLOPS):
    return Clock("sequential", PROTOCOLS[topology], [rates], server, flops).list_stages(0, given)


def through(times):
    return {client: one.seconds for client, one in times.clients.items()}


def test_a_step_by_hand():
    stages = list_stages("u_shaped", work(2))
    assert [stage.seconds for stage in stages] == pytest.approx(U_STEP)
    assert [stage.where for stage in stages] == [
        "client", "wire", "server", "wire", "client", "wire", "server", "wire", "client"
    ]  # fmt: skip
    stages = list_stages("vanilla", work(2, VANILLA_LEGS))
    assert [stage.seconds for stage in stages] == pytest.approx(VANILLA_STEP)
    assert [stage.where for stage in stages] == ["client", "wire", "server", "wire", "client"]


def test_where_nothing_crosses_the_client_computes_all_and_the_server_nothing():
    """Head and tail there and back, 3 x (2 + 1), and what stands in for the trunk, 3 x 4."""
    flops = Flops(head=2, trunk=5, tail=1, stand_in=4)
    (alone,) = list_stages("u_shaped", work(2, {}), flops=flops)
    assert (alone.where, alone.seconds) == ("client", pytest.approx(9 + 12))
    assert time_round("sequential", [work(2, {})], flops=flops).server_busy == 0


def test_a_gradient_in_several_messages_takes_a_backward_pass_each():
    flops = replace(FLOPS, replies=3)
    stages = list_stages("u_shaped", work(2), flops=flops)
    made = [stage.seconds for stage in stages]
    assert made[6] == pytest.approx(3 * U_STEP[6])
    assert [*made[:6], *made[7:]] == pytest.approx([*U_STEP[:6], *U_STEP[7:]])


def test_a_step_takes_the_rounds_means():
    """4 steps of 7.5 samples; 3 messages a step; 10 bytes a step at 2 a second."""
    given = ClientWork(4, 30, {Leg.SMASHED: 12}, {Leg.SMASHED: 40})
    rates = Rates(flops_per_s=3, up_bytes_per_s=2, down_bytes_per_s=99, latency_s=0.5)
    server = ServerConfig(gflops=5e-9)
    head, up, trunk, down, tail = list_stages("u_shaped", given, rates, server)
    assert head.seconds == pytest.approx(7.5 * 2 / 3)
    assert up.seconds == pytest.approx(3 * 0.5 + 10 / 2)
    assert trunk.seconds == pytest.approx(7.5 * 5 / 5)
    assert down.seconds == 0
    assert tail.seconds == pytest.approx(7.5 * 3 / 3)


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_that_stay_home_cost_nobody_a_backward_pass(order):
    times = time_round(order, [work(3, {Leg.SMASHED: 3, Leg.FEATURES: 7})])
    assert times.seconds == pytest.approx(3 * (2 + 3 + 5 + 7 + 3))
    assert times.server_busy == pytest.approx(5 / 20)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("topology", "legs", "step"),
    [("u_shaped", U_LEGS, U_STEP), ("vanilla", VANILLA_LEGS, VANILLA_STEP)],
)
def test_one_client_alone_takes_the_same_time_in_every_order(order, topology, legs, step):
    times = time_round(order, [work(4, legs, broadcast=6, handover=8)], topology, ahead=0)
    assert times.seconds == pytest.approx(6 + 4 * sum(step) + 8)
    served = sum(step[2::4])
    computes = 4 * (2 + 4 + (3 if topology == "u_shaped" else 0))
    assert times.server_busy == pytest.approx(4 * served / times.seconds)
    (alone,) = times.clients.values()
    assert alone.compute_s == pytest.approx(computes)
    assert alone.transfer_s == pytest.approx(times.seconds - computes - 4 * served)
    assert alone.waiting == times.waiting == pytest.approx(4 * served / times.seconds)


def test_sequential_is_the_sum():
    given = {3: work(2, broadcast=6), 0: work(0), 1: work(1, handover=8)}
    times = time_round("sequential", given, server=ServerConfig(gflops=1e-9, slots=2))
    assert times.seconds == pytest.approx(6 + 2 * 64 + 64 + 8)
    assert through(times) == pytest.approx({3: 134, 0: 0, 1: 206})
    assert times.server_busy == pytest.approx(3 * 15 / 206 / 2)
    assert times.clients[3].waiting == pytest.approx(1 - (134 - 30) / 206)
    assert times.clients[1].waiting == pytest.approx(1 - (72 - 15) / 206)
    assert times.waiting == pytest.approx(1 - (104 + 57) / 206 / 2)


def test_copies_bound_by_the_server_fill_serve_and_drain():
    """3 clients' 4 vanilla steps: the server never waits, for 2 others serve 36 s > 27 s."""
    times = time_round("copies", [work(4, VANILLA_LEGS)] * 3, "vanilla")
    assert times.seconds == pytest.approx((2 + 4) + 3 * 4 * 18 + (17 + 4))
    times = time_round("copies", [work(5)] * 8)
    assert times.seconds == pytest.approx((2 + 3) + 8 * 5 * 15 + (17 + 4))


def test_copies_bound_by_the_clients_wait_once():
    """Once they have queued behind each other at the start, they never meet again."""
    quick = Flops(head=2, trunk=0.5, tail=0.5)
    times = time_round("copies", [work(4, VANILLA_LEGS)] * 3, "vanilla", flops=quick)
    step = 2 + 4 + 3 + 17 + 4
    assert through(times) == pytest.approx({0: 4 * step, 1: 4 * step + 3, 2: 4 * step + 6})


@pytest.mark.parametrize("order", ["copies", "asynchronous"])
def test_a_slot_each_is_as_good_as_being_alone(order):
    times = time_round(order, [work(4)] * 5, server=ServerConfig(gflops=1e-9, slots=5))
    assert times.seconds == pytest.approx(4 * 64)
    assert times.server_busy == pytest.approx(15 / 64)
    assert times.waiting == pytest.approx(15 / 64)


def test_in_order_holds_the_trunk_from_forward_to_backward():
    """The trunk is held 5 + 7 + 3 + 13 + 10 = 38 s a client, though it computes 15 of them."""
    times = time_round("in_order", [work(1)] * 2)
    assert through(times) == pytest.approx({0: 5 + 38 + 21, 1: 5 + 76 + 21})
    assert times.server_busy == pytest.approx(30 / 102)


def test_in_order_vanilla_bound_by_the_server():
    times = time_round("in_order", [work(4, VANILLA_LEGS)] * 3, "vanilla")
    assert times.seconds == pytest.approx((2 + 4) + 3 * 4 * 18 + (17 + 4))


def test_in_order_waits_for_a_slow_first_client_where_copies_do_not():
    slow = Rates(flops_per_s=0.1, up_bytes_per_s=1, down_bytes_per_s=1, latency_s=0)
    given = [work(1, VANILLA_LEGS)] * 2
    args = {"topology": "vanilla", "rates": [slow, RATES]}
    first = 20 + 4 + 18  # its head takes 20 s
    assert through(time_round("in_order", given, **args)) == pytest.approx(
        {0: first + 17 + 40, 1: first + 18 + 17 + 4}
    )
    assert through(time_round("copies", given, **args))[1] == pytest.approx(sum(VANILLA_STEP))
    # the other way round nothing is lost; the order is the mapping's, not the numbers'
    turned = time_round("in_order", {1: given[0], 0: given[0]}, **args)
    assert through(turned)[1] == pytest.approx(sum(VANILLA_STEP))


def test_nothing_crosses_in_a_phase_and_clients_work_alone():
    flops = replace(FLOPS, stand_in=4)
    times = time_round("in_order", [work(2, {}), work(3, {})], flops=flops)
    alone = time_round("sequential", [work(2, {})], flops=flops)
    assert through(times)[0] == through(alone)[0] > 0
    joint = time_round("joint", [work(2, {}), work(3, {})], flops=flops)
    assert through(joint)[1] > through(joint)[0] > 0


def test_in_order_passes_over_clients_that_are_through():
    times = time_round("in_order", [work(1), work(2)])
    second_start = 5 + 38 + 38 + 21 + 5  # its own first step, and its head again
    assert through(times) == pytest.approx({0: 64, 1: second_start + 38 + 21})


def test_fused_waits_for_the_straggler_twice_a_lap():
    """A link at half the speed: 6 up, 14 and 26 between, 34 down."""
    straggler = Rates(flops_per_s=1, up_bytes_per_s=0.5, down_bytes_per_s=0.5, latency_s=0)
    times = time_round("fused", [work(4)] * 3, rates=[RATES, straggler, RATES])
    lap = (2 + 6) + 3 * 5 + (14 + 3 + 26) + 3 * 10 + (34 + 4)
    assert times.seconds == pytest.approx(4 * lap)
    assert through(times) == pytest.approx({0: 4 * lap - 17, 1: 4 * lap, 2: 4 * lap - 17})
    assert times.server_busy == pytest.approx(45 / lap)
    assert times.clients[0].waiting == pytest.approx(1 - (9 + 40) / lap)


def test_fused_goes_on_without_clients_that_have_no_steps_left():
    straggler = Rates(flops_per_s=1, up_bytes_per_s=0.5, down_bytes_per_s=0.5, latency_s=0)
    times = time_round("fused", [work(3), work(1, handover=4)], rates=[RATES, straggler])
    lap = (2 + 6) + 2 * 5 + (14 + 3 + 26) + 2 * 10 + (34 + 4)
    assert through(times) == pytest.approx({0: lap + 2 * 64, 1: lap + 8})


def test_asynchronous_lockstep_and_free():
    slow = Rates(flops_per_s=0.1, up_bytes_per_s=1, down_bytes_per_s=1, latency_s=0)
    two = ServerConfig(gflops=1e-9, slots=2)
    slow_step = 64 + 9 * 9  # 9 s of its own at a tenth of the speed
    for ahead, fast in ((0, 2 * slow_step + 64), (1, slow_step + 64), (None, 3 * 64)):
        times = time_round(
            "asynchronous", [work(3), work(3)], rates=[RATES, slow], server=two, ahead=ahead
        )
        assert through(times) == pytest.approx({0: fast, 1: 3 * slow_step})


def test_a_bound_is_of_asynchronous_alone_and_clients_without_steps_hold_nobody():
    two = ServerConfig(gflops=1e-9, slots=2)
    idle = work(0, broadcast=500)
    times = time_round("asynchronous", [work(3), idle], server=two, ahead=0)
    assert through(times) == pytest.approx({0: 3 * 64, 1: 500})
    fast = time_round("copies", [work(3), work(9)], server=two, ahead=0)
    assert through(fast)[0] == pytest.approx(3 * 64)


@pytest.mark.parametrize("order", ORDERS)
def test_broadcasts_and_hand_overs_of_clients_at_once_overlap(order):
    times = time_round(order, [work(0, broadcast=6), work(0, handover=8), work(0)])
    assert times.seconds == (14 if order == "sequential" else 8)
    assert times.server_busy == 0
    assert times.clients[2].waiting == 0
    assert times.waiting == pytest.approx(1 - (6 + 8) / times.seconds / 2)


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_round_takes_no_time(order):
    for works in ([], [work(0)] * 3):
        times = time_round(order, works)
        assert (times.seconds, times.server_busy, times.waiting) == (0, 0, 0)
        assert through(times) == dict.fromkeys(range(len(works)), 0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("slots", [1, 3])
def test_shares_lie_between_0_and_1_and_no_order_is_slower_than_one_at_a_time(order, slots):
    rates = [Rates(1 + c / 3, 1 + c / 7, 2, 0.1 * c) for c in range(5)]
    given = [work(1 + c % 3, broadcast=c, handover=1) for c in range(5)]
    times = time_round(order, given, server=ServerConfig(gflops=1e-9, slots=slots), rates=rates)
    assert 0 < times.server_busy <= 1
    assert all(0 <= one.waiting <= 1 for one in times.clients.values())
    alone = [time_round(order, {c: one}, rates=rates).seconds for c, one in enumerate(given)]
    assert max(alone) - 1e-9 <= times.seconds <= sum(alone) + 1e-9


def test_a_server_that_never_rests_is_busy_all_the_time():
    only_server = Flops(head=0, trunk=5, tail=1)
    free = dict.fromkeys(VANILLA_LEGS, 0)
    assert time_round("copies", [work(7, free)] * 3, "vanilla", flops=only_server).server_busy == 1


@pytest.mark.parametrize(
    ("schedule", "aggregation", "order"),
    [
        ("round_robin", "none", "sequential"),
        ("per_client", "splitfed_v2", "sequential"),
        ("parallel", "none", "in_order"),
        ("parallel", "splitfed_v2", "in_order"),
        ("parallel", "splitfed_v1", "copies"),
        ("parallel", "fused", "fused"),
        ("asynchronous", "none", "asynchronous"),
    ],
)
def test_schedules_and_aggregations_have_an_order(schedule, aggregation, order):
    assert choose_order(schedule, aggregation) == order


def test_an_unknown_schedule_has_none():
    with pytest.raises(ValueError, match="'gossip'"):
        choose_order("gossip", "none")
