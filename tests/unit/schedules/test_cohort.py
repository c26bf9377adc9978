"""Who takes part: how many, how often, when they can be reached, and that others do not matter."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import enter_round
from pace import quick
from plain_loops import assert_equal, begin, train, weights_of

from simsplit.legs import ClientId
from simsplit.phases import Phase
from simsplit.results import Run
from simsplit.schedules.cohort import AvailabilityConfig, CohortConfig, Lineup, choose
from simsplit.schedules.schedule import RoundRobinConfig

TEN = dict.fromkeys(range(10), 4)
ROUNDS = range(1, 1501)


def choose_clients(
    round_number: int = 1,
    batches: Mapping[ClientId, int] = TEN,
    *,
    order: Any = "number",
    local_steps: int | None = None,
    seed: int = 0,
    **fields: Any,
) -> list[ClientId]:
    schedule = RoundRobinConfig(order=order, local_steps=local_steps)
    counts = np.array([*batches.values()])
    taken, _ = choose(CohortConfig(**fields), schedule, counts, round_number, seed)
    return list(taken)


# how many


@pytest.mark.parametrize(
    ("fraction", "count", "size"),
    [(1, 10, 10), (0.3, 10, 3), (0.25, 10, 2), (0.35, 10, 4), (0.01, 10, 1), (0.5, 3, 2)],
)
def test_a_fraction_of_all_clients_and_at_least_one(fraction: float, count: int, size: int) -> None:
    steps = dict.fromkeys(range(count), 1)
    assert all(len(choose_clients(n, steps, fraction=fraction)) == size for n in range(1, 20))


def test_it_is_a_fraction_of_all_clients_reachable_or_not() -> None:
    """Half of ten are five; of four that can be reached all are asked."""
    batches = {client: int(client < 4) for client in range(10)}
    assert choose_clients(batches=batches, fraction=0.5) == [0, 1, 2, 3]
    assert len(choose_clients(batches=batches, fraction=0.3)) == 3


def test_clients_without_samples_are_never_asked() -> None:
    steps = {0: 3, 1: 0, 2: 1, 3: 0, 4: 2}
    for fields in ({}, {"fraction": 0.4}, {"fraction": 0.4, "sampling": "weighted"}):
        seen = {client for n in range(1, 50) for client in choose_clients(n, steps, **fields)}
        assert seen == {0, 2, 4}


def test_nobody_can_be_reached() -> None:
    availability = {"period": 2, "window": 1, "phases": "same"}
    assert choose_clients(2, availability=availability) == []
    assert choose_clients(2, dict.fromkeys(range(3), 0), fraction=0.5) == []


# how often


def frequencies(**fields: Any) -> dict[ClientId, float]:
    """Compute each client's share of the places."""
    result = Counter(client for number in ROUNDS for client in choose_clients(number, **fields))
    return {client: count / result.total() for client, count in sorted(result.items())}


@pytest.mark.parametrize("fraction", [0.1, 0.4])
def test_uniform_chances_are_equal(fraction: float) -> None:
    batches = {client: client + 1 for client in range(10)}  # which must not matter
    result = frequencies(fraction=fraction, batches=batches)
    assert list(result.values()) == pytest.approx([0.1] * 10, abs=0.025)


@pytest.mark.slow
def test_weighted_chances_follow_the_batches_that_a_client_has() -> None:
    """Also where all take the same steps in a round."""
    batches = {0: 1, 1: 2, 2: 3, 3: 4}
    for local_steps in (None, 1):
        fields = {"sampling": "weighted", "local_steps": local_steps}
        result = frequencies(fraction=0.25, batches=batches, **fields)
        assert list(result.values()) == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.04)


def test_weighted_draws_are_without_replacement() -> None:
    steps = {0: 1000, 1: 1, 2: 1}
    assert all(
        len(set(choose_clients(n, steps, fraction=0.67, sampling="weighted"))) == 2
        for n in range(1, 30)
    )


# draws


def test_a_rounds_draw_depends_on_seed_and_round_alone() -> None:
    fields: dict[str, Any] = {"fraction": 0.4, "order": "random"}
    backwards = [choose_clients(number, **fields) for number in range(20, 0, -1)]
    forwards = [choose_clients(number, **fields) for number in range(1, 21)]
    assert backwards[::-1] == forwards
    assert len({tuple(each) for each in forwards}) > 15
    assert [choose_clients(number, seed=1, **fields) for number in range(1, 21)] != forwards


def test_a_random_order_is_a_new_permutation_every_round() -> None:
    orders = [tuple(choose_clients(number, order="random")) for number in range(1, 21)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len(set(orders)) == 20
    assert orders == [tuple(choose_clients(number, order="random")) for number in range(1, 21)]
    firsts = Counter(choose_clients(number, order="random")[0] for number in ROUNDS)
    assert all(firsts[client] / len(ROUNDS) == pytest.approx(0.1, abs=0.03) for client in TEN)


def test_the_order_changes_nothing_but_the_order() -> None:
    for number in range(1, 20):
        ordered = choose_clients(number, fraction=0.4)
        assert ordered == sorted(ordered)
        assert sorted(choose_clients(number, fraction=0.4, order="random")) == ordered


# dropping out


@pytest.mark.slow
def test_dropping_out_is_a_clients_own_luck() -> None:
    """At a step that is equally likely to be any of its own, independent of other clients."""
    config, schedule = CohortConfig(dropout=0.25), RoundRobinConfig()
    few, many = dict.fromkeys(range(3), 4), dict.fromkeys(range(9), 4)
    at, together = Counter[int](), Counter[int]()
    for number in ROUNDS:
        steps, drops = choose(config, schedule, np.array([*few.values()]), number, 0)
        others, also = choose(config, schedule, np.array([*many.values()]), number, 0)
        assert {c: others[c] for c in few} == steps
        assert also & few.keys() == drops
        assert all(steps[client] == 4 for client in few.keys() - drops)
        at.update(steps[client] for client in drops)
        together[len(drops)] += 1
    assert at.total() / (3 * len(ROUNDS)) == pytest.approx(0.25, abs=0.02)
    # three coins that know nothing of each other: one of them alone in 3 * 1/4 * 3/4 * 3/4
    assert together[1] / len(ROUNDS) == pytest.approx(27 / 64, abs=0.04)
    assert [at[step] / at.total() for step in (1, 2, 3, 4)] == pytest.approx([0.25] * 4, abs=0.04)


def test_dropping_out_keeps_the_order() -> None:
    whole = choose_clients(order="random")
    assert choose_clients(order="random", dropout=1) == whole


# availability


def reachable(client: ClientId, seed: int = 0, **fields: Any) -> list[bool]:
    config = AvailabilityConfig(**fields)
    marked = (config.mark_available(client + 1, number, seed) for number in range(1, 49))
    return [bool(each[client]) for each in marked]


def test_windows_that_start_together() -> None:
    for client in range(3):
        result = reachable(client, period=6, window=2, phases="same")
        assert result == [True, True, False, False, False, False] * 8


def test_windows_of_ones_own() -> None:
    """As long and as often, from a round that differs by client."""
    results = [reachable(client, period=12, window=5) for client in range(40)]
    for rounds in results:
        assert rounds[:36] == rounds[12:]
        assert sum(rounds[:12]) == 5
        turned = sum(one != other for one, other in pairwise(rounds))
        assert turned in (7, 8)  # one window a period
    assert len({tuple(rounds) for rounds in results}) > 8
    assert results != [reachable(client, seed=1, period=12, window=5) for client in range(40)]


def test_a_window_as_long_as_its_period_is_always_open() -> None:
    assert all(reachable(0, period=4, window=9))


def test_only_those_who_can_be_reached_take_part() -> None:
    availability = AvailabilityConfig(period=5, window=2)
    for number in range(1, 11):
        marked = availability.mark_available(len(TEN), number, 0)
        able = [client for client in TEN if marked[client]]
        assert choose_clients(number, availability=availability) == able


# in a run


def test_clients_without_samples_cost_nothing(tmp_path: Path) -> None:
    run = train(tmp_path / "run", [16, 0, 8], aggregation="splitfed_v2", network={})
    result = Run.load(run.path)
    wire = result.wire[(result.wire["phase"] != "evaluate") & (result.wire["client"] == 1)]
    assert wire.empty
    idle = result.clients[result.clients["client"] == 1]
    assert idle[["steps", "samples"]].to_numpy().tolist() == [[0, 0], [0, 0]]
    assert idle["train_loss"].isna().all()
    assert result.rounds["steps"].tolist() == [3, 3]


def test_a_round_in_which_nobody_can_be_reached(tmp_path: Path) -> None:
    cohort = {"availability": {"period": 2, "window": 1, "phases": "same"}}
    for name, aggregation in (("v1", "splitfed_v1"), ("fused", "fused")):
        run = train(tmp_path / name, aggregation=aggregation, cohort=cohort, network={})
        rounds = Run.load(run.path).rounds
        columns = ["clients", "dropped", "steps", "bytes_up", "simulated_s", "server_busy"]
        assert rounds[columns].iloc[1].tolist() == [0] * 6
        assert rounds["clients"].iloc[0] == 3
        assert rounds["simulated_total_s"].nunique() == 1


@pytest.mark.parametrize(
    "aggregation", quick(["none", "splitfed_v1", "splitfed_v2", "fused"], "none", "splitfed_v1")
)
def test_a_client_alone_in_its_cohort_trains_the_same_whatever_others_exist(
    aggregation: str, tmp_path: Path
) -> None:
    heads = "per_client" if aggregation == "none" else "shared"
    results = []
    for others in ([1] * 9, [1] * 60 + [0] * 39):
        run = begin(
            tmp_path / f"{len(others)}",
            [20, *others],
            aggregation=aggregation,
            clients={"heads": heads},
        )
        for number in (1, 2):
            lineup = Lineup(number, Phase("train", rounds=2), 1.0, {0: 3})
            enter_round(run, number)
            run.parts.course.run(lineup, lambda done, total: None)
        results.append({name: tensor.clone() for name, tensor in weights_of(run).items()})
    assert_equal(*results)
