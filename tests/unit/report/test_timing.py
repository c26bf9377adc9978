import json

import pytest
import yaml
from builders import run_to_end, scenario

from simsplit.network.profiles import DEVICES, LINKS
from simsplit.report.run_tables import show
from simsplit.report.timing import time_to_accuracy, write_duration
from simsplit.results import Run

FLOPS = {"head": 3e7, "trunk": 5e8, "tail": 2e7}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four rounds of three clients, scored by hand: 40 %, not at all, 85 %, 83 %."""
    path = tmp_path_factory.mktemp("runs") / "timed"
    run_to_end(
        scenario(schedule={"rounds": 4}, method=[{"kind": "lightsplit", "ratio": 8}]),
        path,
    )
    rounds = Run.load(path).rounds
    rounds["test_accuracy"] = [0.4, float("nan"), 0.85, 0.83]
    rounds.to_csv(path / "rounds.csv", index=False)
    facts = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(facts | {"flops": FLOPS}))
    return path


@pytest.fixture
def altered(trained):
    """The run under a scenario with other fields, put back afterwards."""
    file = trained / "scenario.yaml"
    before = file.read_text()

    def change(**fields):
        file.write_text(yaml.safe_dump(yaml.safe_load(before) | fields))
        return Run.load(trained)

    yield change
    file.write_text(before)


def one_at_a_time_s(run, last_round, gflops, link, server_gflops=10_000):
    """Sum the time of all that was computed and sent until then."""
    sent = run.wire[(run.wire["phase"] != "evaluate") & (run.wire["round"] <= last_round)]
    up = sent["leg"].isin(["smashed", "features_grad", "handover"])
    samples = run.clients.loc[run.clients["round"] <= last_round, "samples"].sum()
    return (
        sent.loc[up, "bytes"].sum() * 8e-6 / link.up_mbps
        + sent.loc[~up, "bytes"].sum() * 8e-6 / link.down_mbps
        + sent["packets"].sum() * link.latency_ms / 1000
        # what is handed over also goes down to whom it is for
        + sent["received_bytes"].sum() * 8e-6 / link.down_mbps
        + sent["received_packets"].sum() * link.latency_ms / 1000
        + samples * 3 * (FLOPS["head"] + FLOPS["tail"]) / (gflops * 1e9)
        + samples * 3 * FLOPS["trunk"] / (server_gflops * 1e9)
    )


@pytest.mark.slow
def test_levels_stand_at_the_round_that_first_reached_them(trained):
    run = Run.load(trained)
    table = time_to_accuracy(run)
    assert table.columns == ("accuracy", "round", "sent", "phone, lte", "laptop, wifi")
    assert [row[:2] for row in table.rows] == [("50%", "3"), ("80%", "3"), ("best: 85.00%", "3")]
    assert "simulated" in table.title
    assert "assumed" in table.title


@pytest.mark.slow
def test_times_are_all_that_was_computed_and_sent_until_then(trained):
    run = Run.load(trained)
    assert set(run.wire["leg"]) >= {"handover", "broadcast"}
    assert (run.wire["phase"] == "evaluate").any()
    first, *_ = time_to_accuracy(run).rows
    phone = one_at_a_time_s(run, 3, DEVICES["phone"].gflops, LINKS["lte"])
    laptop = one_at_a_time_s(run, 3, DEVICES["laptop"].gflops, LINKS["wifi"])
    assert first[3:] == (write_duration(phone), write_duration(laptop))
    other = time_to_accuracy(run, [("gpu", "lan")])
    lan = one_at_a_time_s(run, 3, DEVICES["gpu"].gflops, LINKS["lan"])
    assert other.columns[3:] == ("gpu, lan",)
    assert other.rows[0][3:] == (write_duration(lan),)


def test_the_scenarios_own_network_comes_first_and_its_server_serves_all(altered):
    network = {"gflops": 7, "up_mbps": 2, "down_mbps": 3, "latency_ms": 70}
    network["server"] = {"gflops": 11}
    run = altered(network=network)
    table = time_to_accuracy(run)
    assert table.columns[3:] == ("as run", "phone, lte", "laptop, wifi")

    class Link:
        up_mbps, down_mbps, latency_ms = 2, 3, 70

    own = one_at_a_time_s(run, 3, 7, Link, 11)
    phone = one_at_a_time_s(run, 3, DEVICES["phone"].gflops, LINKS["lte"], 11)
    assert table.rows[0][3:5] == (write_duration(own), write_duration(phone))


def test_the_order_is_the_schedules(altered):
    """Whatever overlaps is faster than one client at a time."""

    def first_time(**fields):
        run = altered(**fields)
        text = time_to_accuracy(run, [("phone", "wan")]).rows[0][3]
        assert text.endswith(" s")
        return float(text.removesuffix(" s"))

    schedule = {"kind": "parallel", "rounds": 4}
    together = {"schedule": schedule}
    copies = first_time(**together, aggregation={"kind": "splitfed_v1"})
    assert copies < first_time(**together) < first_time()
    assert copies <= first_time(**together, aggregation={"kind": "fused"}) < first_time()
    lockstep = {"kind": "asynchronous", "max_ahead": 0, "rounds": 4}
    assert copies <= first_time(schedule=lockstep) < first_time()


def test_an_asynchronous_run_keeps_its_bound(altered):
    """Client 0 takes 20 short steps; in lockstep all but the first few come after the others'."""

    def best(**bound):
        run = altered(schedule={"kind": "asynchronous", "rounds": 4, **bound})
        few = run.clients["client"] != 0
        run.__dict__["clients"] = run.clients.assign(steps=run.clients["steps"].where(few, 20))
        return float(time_to_accuracy(run, [("edge", "lte")]).rows[0][3].removesuffix(" s"))

    assert best(max_ahead=0) > 1.3 * best(max_ahead=None) == 1.3 * best()


def test_show_prints_it_where_flops_are_known(trained, finished_run):
    assert show(Run.load(trained))[-1].columns[0] == "accuracy"
    old = Run.load(finished_run.path)
    del old.summary["flops"]
    assert len(show(old)) == 2


def test_a_run_that_was_never_scored_by_accuracy_has_no_such_table(trained):
    for column in ("drop", "empty"):
        run = Run.load(trained)
        if column == "drop":
            run.__dict__["rounds"] = run.rounds.drop(columns="test_accuracy")
        else:
            run.__dict__["rounds"] = run.rounds.assign(test_accuracy=float("nan"))
        assert time_to_accuracy(run).rows == []
        assert len(show(run)) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1.0 min"),
        (3599.9, "1.0 h"),
        (5400, "1.5 h"),
        (86400 * 2.5, "2.5 d"),
    ],
)
def test_durations(seconds, text):
    assert write_duration(seconds) == text
