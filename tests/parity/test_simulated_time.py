"""Simulated time in the tables: sums of what was computed and sent, over rates, done by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import StopAt, experiment, run_to_end, scenario
from plain_loops import train

from simsplit.experiment import Experiment
from simsplit.network.profiles import Rates
from simsplit.report.timing import time_to_accuracy, write_duration
from simsplit.results import Run

NETWORK: dict[str, Any] = {
    "device": {"phone": 1, "laptop": 1},
    "link": {"lte": 1, "lan": 1},
    "server": {"gflops": 50, "slots": 2},
    "spread": 0.7,
}
UP = {"smashed", "features_grad", "labels", "handover"}


def transfers_s(run: Experiment, wire: pd.DataFrame) -> list[float]:
    """Compute each row's latencies (labels travel with smashed data), and bytes over a rate."""
    rates = run.ledger.clock.rates
    return [
        (0.0 if row.leg == "labels" else row.packets * rates[row.client].latency_s)
        + row.bytes
        / (
            rates[row.client].up_bytes_per_s
            if row.leg in UP
            else rates[row.client].down_bytes_per_s
        )
        + _time_receipt(rates[row.client], row)
        for row in wire.itertuples()
    ]


def _time_receipt(rates: Rates, row: Any) -> float:
    """Compute the time of another client's hand-over on this client's downlink."""
    if pd.isna(getattr(row, "received_bytes", None)):
        return 0.0
    return row.received_packets * rates.latency_s + row.received_bytes / rates.down_bytes_per_s


def check(run: Experiment) -> Run:
    """Check every column that a clock adds, under a schedule without overlap."""
    result = Run.load(run.path)
    wire, clients, rounds = result.wire, result.clients, result.rounds
    assert wire["transfer_s"].tolist() == pytest.approx(transfers_s(run, wire))
    flops, vanilla = run.live.flops, run.scenario.topology == "vanilla"
    theirs = 3 * (flops.head + (0 if vanilla else flops.tail))
    served = 3 * (flops.trunk + (flops.tail if vanilla else 0)) / 50e9
    training = wire[wire["phase"] != "evaluate"]
    sent_s = training.groupby(["round", "client"])["transfer_s"].sum()
    total_s = sent_s.get(0, pd.Series(dtype=float)).sum()  # before the first round
    assert (total_s > 0) == bool(run.scenario.method)
    for row in rounds.itertuples():
        now_s, spent, announced_s = 0.0, [], total_s if row.round == 1 else 0.0
        for one in clients[clients["round"] == row.round].itertuples():
            compute_s = one.samples * theirs / run.ledger.clock.rates[one.client].flops_per_s
            transfer_s = sent_s.get((row.round, one.client), 0.0)
            now_s += compute_s + transfer_s + one.samples * served
            assert one.compute_s == pytest.approx(compute_s)
            assert one.transfer_s == pytest.approx(transfer_s)
            assert one.simulated_s == pytest.approx(now_s)
            spent.append((one.waiting, compute_s + transfer_s))
        assert [waiting for waiting, _ in spent] == pytest.approx(
            [1 - own_s / now_s for _, own_s in spent]
        )
        assert row.waiting == pytest.approx(sum(waiting for waiting, _ in spent) / len(spent))
        assert row.server_busy == pytest.approx(row.samples * served / now_s / 2)
        assert row.simulated_s == pytest.approx(announced_s + now_s)
    assert rounds["simulated_total_s"].tolist() == pytest.approx(rounds["simulated_s"].cumsum())
    return result


CASES: dict[str, dict[str, Any]] = {
    "one head handed round": {"schedule": {"kind": "round_robin"}},
    "vanilla, one after another": {"schedule": {"kind": "per_client"}, "topology": "vanilla"},
    "averages": {"schedule": {"kind": "round_robin"}, "aggregation": "splitfed_v1"},
    "announced": {
        "schedule": {"kind": "round_robin"},
        "method": [{"kind": "lightsplit", "broadcast": "matrix"}],
    },
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_so_all_is_a_sum(case: str, tmp_path: Path) -> None:
    result = check(train(tmp_path / "run", network=NETWORK, **CASES[case]))
    last_s = result.rounds["simulated_total_s"].iloc[-1]
    table = time_to_accuracy(result)
    assert table.columns[3] == "as run"
    assert table.rows[-1][1] == "2"  # scored once, at the end
    assert table.rows[-1][3] == write_duration(last_s)


def test_a_hand_over_takes_its_way_up_one_link_and_down_the_next(tmp_path: Path) -> None:
    """The whole of a run's hand-overs in closed form, at rates that differ."""
    network = {"up_mbps": 8, "down_mbps": 2, "latency_ms": 100, "gflops": 1e9}
    network["server"] = {"gflops": 1e9}
    given = {"schedule": {"kind": "per_client", "rounds": 2}, "network": network}
    run = train(tmp_path / "run", clients={"handover": "weights"}, **given)
    alone = train(tmp_path / "alone", clients={"heads": "per_client"}, **given)
    shared, own = Run.load(run.path), Run.load(alone.path)
    count = run.scenario.clients.count
    handed = 2 * count - 1  # every turn but the first begins with one
    wire = shared.wire[shared.wire["leg"] == "handover"]
    nbytes = wire["bytes"].sum() / handed
    assert wire["received_bytes"].sum() == wire["bytes"].sum()
    assert wire["received_packets"].sum() == wire["packets"].sum() == handed
    expected_s = handed * (0.1 + nbytes / 1e6 + 0.1 + nbytes / 0.25e6)
    took_s = [each.rounds["simulated_total_s"].iloc[-1] for each in (shared, own)]
    assert took_s[0] - took_s[1] == pytest.approx(expected_s, rel=1e-6)


def test_what_a_lost_step_sent_takes_its_time(tmp_path: Path) -> None:
    schedule = {"kind": "round_robin", "local_steps": 1}
    clients = {"heads": "per_client"}
    run = train(
        tmp_path / "run",
        schedule=schedule,
        clients=clients,
        cohort={"dropout": 1},
        network=NETWORK,
    )
    result = check(run)
    assert (result.clients["transfer_s"] > 0).all()
    assert (result.clients["compute_s"] == 0).all()


@pytest.mark.slow
def test_the_running_sum_goes_on_after_a_resumption(tmp_path: Path) -> None:
    given = scenario(network=NETWORK, schedule={"rounds": 3})
    whole = run_to_end(given, tmp_path / "whole")
    steps = int(Run.load(whole.path).rounds["steps"].iloc[0])
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "broken", [StopAt(steps + 1)]).run(resume=False)
    experiment(given, tmp_path / "broken").run(resume=True)
    totals = [Run.load(tmp_path / name).rounds["simulated_total_s"] for name in ("whole", "broken")]
    assert totals[0].tolist() == totals[1].tolist()
    assert totals[0].is_monotonic_increasing
    check(whole)


def test_who_takes_no_part_spends_nothing(tmp_path: Path) -> None:
    schedule = {"kind": "parallel", "rounds": 4}
    run = train(
        tmp_path / "run",
        schedule=schedule,
        clients={"heads": "per_client"},
        cohort={"fraction": 0.34},
        network=NETWORK,
    )
    clients = Run.load(run.path).clients
    idle = clients[clients["steps"] == 0]
    assert len(idle) == 8
    assert idle[["compute_s", "transfer_s", "simulated_s"]].fillna(0).to_numpy().sum() == 0
    busy = clients[clients["steps"] > 0]
    rounds = Run.load(run.path).rounds
    assert busy["simulated_s"].tolist() == pytest.approx(rounds["simulated_s"].tolist())


def test_the_order_of_a_lap_is_the_cohorts(tmp_path: Path) -> None:
    """A slow client that comes first holds the others up, and the table says what `show` says."""
    schedule = {"kind": "parallel", "rounds": 6, "order": "random", "local_steps": 1}
    run = train(
        tmp_path / "run",
        [8, 8, 8],
        schedule=schedule,
        clients={"heads": "per_client"},
        network={"device": {"edge": 1, "gpu": 1}, "link": "lan", "server": {"gflops": 50}},
        seed=4,
    )
    result = Run.load(run.path)
    assert result.rounds["simulated_s"].nunique() > 1
    row = time_to_accuracy(result).rows[-1]
    assert row[3] == write_duration(result.rounds["simulated_total_s"].iloc[-1])
