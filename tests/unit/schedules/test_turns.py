"""Whose turn it is, and how long a run lasts."""

from fractions import Fraction
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from builders import experiment, scenario
from by_hand import Recorder, feed

from simsplit.bench.overhead import feed_of
from simsplit.forecasting.planning import plan
from simsplit.legs import Leg
from simsplit.phases import Phase
from simsplit.schedules.cohort import Lineup
from simsplit.schedules.courses import Together
from simsplit.schedules.schedule import LapsConfig, PerClientConfig, RoundRobinConfig

UNEQUAL = {0: 2, 1: 0, 2: 3, 3: 1}


def test_round_robin_skips_who_is_through() -> None:
    assert list(RoundRobinConfig().turns(UNEQUAL)) == [0, 2, 3, 0, 2, 2]


def test_per_client_takes_one_after_another() -> None:
    assert list(PerClientConfig().turns(UNEQUAL)) == [0, 0, 2, 2, 2, 3]


def test_laps_are_those_of_the_schedule() -> None:
    """A plugin's schedule may order the clients of a lap, or leave some out."""

    class Backwards(LapsConfig):
        def laps(self, steps):
            yield from ([*reversed(lap)] for lap in super().laps(steps))

    taken, left = [], []
    exchange = MagicMock(watch=None, step_together=taken.append)
    exchange.abandon = lambda client, batch: left.append(client)
    pace = MagicMock(stops=lambda client: False, is_late=lambda client: False)
    lineup = Lineup(1, Phase("train", 1), 1.0, UNEQUAL, frozenset({3}))
    Together(exchange, pace, None, Backwards()).train(lineup, lambda done, total: None)
    assert (taken, left) == ([[2, 0], [2, 0], [2]], [3])


@pytest.mark.parametrize("schedule", [RoundRobinConfig, PerClientConfig])
def test_nobody_has_anything_to_do(schedule: type[RoundRobinConfig]) -> None:
    assert list(schedule().turns({0: 0, 1: 0})) == []


@pytest.mark.parametrize(
    ("fields", "rounds"),
    [
        ({}, 10),
        ({"rounds": 4}, 4),
        ({"epochs": 3}, 3),
        ({"epochs": 2.5}, 3),
        ({"epochs": 2, "local_steps": 3}, 4),  # 2 epochs of 18 batches are 36; 9 a round
        ({"epochs": 2, "local_steps": 5}, 3),  # 36 over 15, rounded up
        ({"epochs": 0.1, "local_steps": 1}, 1),
        ({"epochs": 3.5, "local_steps": 1}, 21),
    ],
)
def test_rounds_cover_the_epochs(fields: dict, rounds: int) -> None:
    assert RoundRobinConfig(**fields).count_rounds(np.array([5, 6, 7])) == rounds


def test_epochs_of_a_part_of_the_clients_take_more_rounds() -> None:
    half = Fraction(1, 2)
    assert RoundRobinConfig(epochs=3).count_rounds(np.array([5, 6, 7]), half) == 6
    steps = RoundRobinConfig(epochs=2, local_steps=3)
    assert steps.count_rounds(np.array([5, 6, 7]), half) == 8
    given = scenario(
        clients={"count": 4},
        schedule={"kind": "round_robin", "epochs": 2, "rounds": None},
        cohort={"fraction": 0.25},
    )
    assert plan(given, timing=False).rounds["round"].max() == 8


def test_clients_without_data_take_no_part_in_the_arithmetic() -> None:
    schedule = RoundRobinConfig(epochs=2, local_steps=3)
    with_none, without = np.array([6, 0, 6]), np.array([6, 6])
    assert schedule.count_rounds(with_none) == schedule.count_rounds(without) == 4
    assert schedule.limit_steps(with_none).tolist() == [3, 0, 3]


def test_an_epoch_that_divides_evenly_costs_no_extra_round() -> None:
    """1.1 * 100 / 10 is a little above 11 in binary."""
    assert RoundRobinConfig(epochs=1.1, local_steps=10).count_rounds(np.array([100])) == 11


def test_local_steps_go_on_where_the_last_round_stopped(tmp_path: Path) -> None:
    given = scenario(
        data={"train_samples": 80},
        clients={"count": 1},
        schedule={"local_steps": 3, "rounds": 5},
        evaluate={"every": 0},
    )
    made = experiment(given, tmp_path / "run")
    tap = Recorder()
    made.parts.wire.taps.append(tap)
    made.run(resume=False)
    sent = [(packet.round, packet.step) for packet in tap.on(Leg.SMASHED)[:15]]
    assert sent == [(1 + step // 3, step) for step in range(15)]
    stream = feed_of(made.parts, 0)
    epochs = [torch.cat([stream.indices(step + n) for n in range(5)]) for step in (0, 5, 10)]
    assert all(sorted(epoch.tolist()) == list(range(80)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("samples", "drop_last", "sizes"),
    [
        (20, False, [8, 8, 4]),
        (20, True, [8, 8]),
        (16, True, [8, 8]),
        (5, True, [5]),  # who has less than one batch keeps it
    ],
)
def test_the_last_batch_of_an_epoch(samples: int, drop_last: bool, sizes: list[int]) -> None:
    stream = feed(samples, batch_size=8, drop_last=drop_last)
    assert stream.steps_per_epoch == len(sizes)
    assert [len(stream.batch(number).labels) for number in range(len(sizes))] == sizes
    assert len(stream.indices(len(sizes))) == sizes[0]  # the next epoch's first
