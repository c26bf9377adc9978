"""A crowd, whose clients rest and which lists those that took part, is a run of live clients."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import StopAt, run_to_end, scenario
from comparing import assert_equal, weights
from pace import quick

from simsplit import legs
from simsplit.assembly import Assembler
from simsplit.experiment import Experiment
from simsplit.parties.seats import InMemory, Roster
from simsplit.report.run_figures import draw_holdings
from simsplit.results import Run
from simsplit.scenario import Scenario
from simsplit.seeds import numpy_rng_for

SHARED: dict[str, Any] = {
    "clients": {"count": 9, "heads": "shared", "handover": "weights"},
    "data": {"partition": {"kind": "drawn", "samples": 8}},
    "cohort": {"fraction": 0.5},
    "train": {"batch_size": 4, "client": {"kind": "sgd", "lr": 0.02, "momentum": 0}},
    "schedule": {"kind": "per_client", "rounds": 3},
}
AVERAGED = {"kind": "parallel"}
MOMENTUM = {"client": {"kind": "sgd", "lr": 0.02, "momentum": 0.9}}
CASES: dict[str, dict[str, Any]] = {
    "weights are handed over": {},
    "moments stay": {"train": MOMENTUM, "schedule": {"kind": "round_robin"}},
    "moments are handed over": {"train": MOMENTUM, "clients": {"handover": "state"}},
    "averaged, one trunk, moments stay": {
        "train": MOMENTUM,
        "schedule": AVERAGED,
        "aggregation": "splitfed_v2",
        "cohort": {"fraction": 0.6, "dropout": 0.4, "availability": {"period": 3, "window": 2}},
    },
    "averaged, a trunk each, norms, some are late": {
        "data": {"source": {"kind": "digits", "size": 8}},
        "model": {"kind": "resnet20"},
        "schedule": AVERAGED,
        "aggregation": {"kind": "splitfed_v1", "moments": "reset"},
        "network": {"device": {"phone": 1, "gpu": 1}, "spread": 0.5},
        "cohort": {"deadline_s": 0.5, "sampling": "weighted"},
    },
    "fused": {"schedule": AVERAGED, "aggregation": "fused"},
    "own heads": {"clients": {"heads": "per_client"}, "evaluate": {"clients": 2}},
}
FEW, ALL = 4, 10**6


def make_scenario(**changes: Any) -> Scenario:
    merged = {
        name: {**SHARED.get(name, {}), **change} if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return scenario(**SHARED | merged)


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """More clients than this are a crowd; two of them may be live."""

    def set_limit(count: int) -> None:
        monkeypatch.setattr(legs, "CROWD", count)
        monkeypatch.setattr(Assembler, "seats", 2 if count == FEW else ALL)

    return set_limit


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("case", quick(CASES, *list(CASES)[1:4:2]))
def test_a_crowd_is_live_clients_bit_for_bit(case: str, tmp_path: Path, crowd: Any) -> None:
    wanted = make_scenario(**CASES[case])
    crowd(ALL)
    plain = run_to_end(wanted, tmp_path / "plain")
    crowd(FEW)
    resting = run_to_end(wanted, tmp_path / "crowd")
    assert not isinstance(plain.parts.pool.clients, Roster)
    assert isinstance(resting.parts.pool.clients, Roster)
    whole, parts = tmp_path / "plain", tmp_path / "crowd"
    for table in ("rounds", "wire"):
        assert (whole / f"{table}.csv").read_text() == (parts / f"{table}.csv").read_text()
    rows = read(parts / "clients.csv")
    assert [row for row in read(whole / "clients.csv") if row in rows] == rows
    took_part = {(row["round"], row["client"]) for row in rows}
    for row in read(whole / "clients.csv"):
        if (row["round"], row["client"]) not in took_part:
            assert row["steps"] == "0"
            assert row["train_loss"] == row.get("test_accuracy", "") == ""
    ours, theirs = weights(parts), weights(whole)
    differing = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not differing
    assert {name.split("/")[0] for name in theirs} == {name.split("/")[0] for name in ours}
    never = theirs.keys() - ours.keys()
    assert all(int(theirs[name]) == 0 for name in never if "/taken." in name)
    assert not any("/moments." in name for name in never)


@pytest.mark.parametrize("case", quick(CASES, list(CASES)[3]))
def test_a_crowd_resumes_to_the_bit(case: str, tmp_path: Path, crowd: Any) -> None:
    wanted = make_scenario(**CASES[case])
    crowd(FEW)
    run_to_end(wanted, tmp_path / "whole")
    for after in (12, 7, 1000):
        try:
            Experiment(wanted, tmp_path / "broken", [StopAt(after)]).run(resume=True)
        except KeyboardInterrupt:
            continue
    assert_equal(tmp_path / "whole", tmp_path / "broken")


def count_kept(made: Experiment) -> int:
    """Count the bytes of tensors that resting clients keep."""
    roster = made.parts.pool.clients
    assert isinstance(roster, Roster)
    assert isinstance(roster.rest, InMemory)
    flats = [each for flat in roster.rest.values() for each in (flat.weights, flat.moments)]
    return sum(t.nbytes for kept in flats if kept is not None for t in kept.flats)


def test_a_million_clients_cost_those_that_take_part(tmp_path: Path) -> None:
    """Four of a million: as many rows as of four of four, and nothing is kept of the others."""
    changes: dict[str, Any] = {"schedule": {"rounds": 2}, "evaluate": {"every": 0}}
    many = make_scenario(clients={"count": 10**6}, cohort={"fraction": 4e-6}, **changes)
    made = run_to_end(many, tmp_path / "many")
    roster, kept = made.parts.pool.clients, weights(tmp_path / "many")
    assert isinstance(roster, Roster)
    assert (len(roster), count_kept(made)) == (10**6, 0)
    run = Run.load(tmp_path / "many")
    took_part = set(run.clients["client"])
    assert len(run.clients) == 8
    assert {name.split("/")[1] for name in kept if name.startswith("client/")} == {
        str(client) for client in took_part
    }
    assert set(run.holdings["client"]) == took_part
    assert draw_holdings(run) is None
    assert made.live.estimate.parts["clients' own parts"] < 2**20


def test_copies_of_an_average_are_kept_for_a_round(tmp_path: Path, crowd: Any) -> None:
    crowd(FEW)
    changes = CASES["averaged, one trunk, moments stay"] | {"train": {}, "cohort": {}}
    made = run_to_end(make_scenario(**changes), tmp_path / "run")
    one = sum(t.nbytes for t in made.parts.federation.shared.weights.values())
    assert count_kept(made) <= 9 * one
    made.live.enter(made.live.program.choose_lineup(3))
    assert count_kept(made) == 0


def test_what_keeps_a_crowd_live(tmp_path: Path, crowd: Any) -> None:
    crowd(FEW)
    for changes in (
        {"method": [{"kind": "cast", "to": "int8"}]},
        {"aggregation": {"kind": "splitfed_v2", "bits": 8}, "schedule": AVERAGED},
        {"aggregation": {"kind": "splitfed_v2", "proximal": 0.1}, "schedule": AVERAGED},
    ):
        pool = Experiment(make_scenario(**changes), tmp_path / "run").parts.pool
        assert not isinstance(pool.clients, Roster)


def test_rates_of_a_crowd_are_those_of_fewer(crowd: Any) -> None:
    from simsplit.network.profiles import NetworkConfig

    network = NetworkConfig(spread=0.5)
    crowd(ALL)
    few = network.draw_rates(6, seed=3)
    crowd(FEW)
    many = network.draw_rates(6, seed=3)
    assert many[1:3] == few[1:3]
    assert [many[n] for n in range(6)] == [*few]


def test_availability_of_all_is_that_of_each() -> None:
    from simsplit.schedules.cohort import AvailabilityConfig

    config = AvailabilityConfig(period=5, window=2)
    for number in (1, 4):
        marked = config.mark_available(30, number, seed=2)
        drawn = (numpy_rng_for(2, "availability", client) for client in range(30))
        starts = [int(rng.integers(5)) for rng in drawn]
        assert marked.tolist() == [(number - 1 + start) % 5 < 2 for start in starts]
    assert isinstance(marked, np.ndarray)
