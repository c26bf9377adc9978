"""What goes wrong on hosts: lost ones change nothing but time, faults are reported as inline."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plugins
import pytest
from builders import TINY, experiment, run_to_end, scenario
from comparing import assert_equal
from hosted import on_hosts

from simsplit.data import Prepared, prepare
from simsplit.engine.ray_pool import Hosts
from simsplit.errors import DataError, PluginFailedError, RunFailedError
from simsplit.experiment import Experiment
from simsplit.packets import Packet
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.running.checkpointing import LOSSES
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.seeds import numpy_rng_for

pytestmark = pytest.mark.ray

OWN = {"heads": "per_client"}
CASES: dict[str, dict[str, Any]] = {
    "shared head": {"clients": {"count": 4}},
    "parallel, own heads": {
        "clients": {**OWN, "count": 4},
        "schedule": {"kind": "parallel", "rounds": 2},
    },
    "splitfed_v1": {
        "clients": {"count": 6},
        "aggregation": "splitfed_v1",
        "train": {"client": {"kind": "adam"}, "server": {"kind": "adam"}},
    },
}
Kills = dict[int, tuple[int, list[int]]]
"""By round: after which step, and which hosts."""


class Kill(Observer):
    """Kills hosts in the middle of rounds, once each, and hears the warnings."""

    def __init__(self, hosts: Hosts, kills: Kills) -> None:
        self.hosts, self.kills = hosts, dict(kills)
        self.current = 1
        self.warnings: list[str] = []

    def step(self, done: int, total: int) -> None:
        after, victims = self.kills.get(self.current, (total + 1, []))
        if done >= after:
            del self.kills[self.current]
            kill(self.hosts, victims)

    def round(self, ended: RoundEnded) -> None:
        self.current = ended.number + 1

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        going_on = re.search(r"end of round (\d+)", message)
        assert going_on
        self.current = int(going_on.group(1)) + 1


def kill(hosts: Hosts, victims: list[int]) -> None:
    import ray

    pids = ray.get([actor.get_pid.remote() for actor in hosts.actors])
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)


def run_undisturbed(given: Scenario, path: Path) -> Path:
    run_to_end(given, path)
    return path


@pytest.mark.parametrize("case", ["shared head", "splitfed_v1"])
def test_killed_hosts_change_nothing(case: str, tmp_path: Path, hosts: Hosts) -> None:
    rounds = 2
    given = scenario(**merge(CASES[case], {"schedule": {"rounds": rounds}}))
    rng = numpy_rng_for(0, "kills", *map(ord, case))
    numbers = range(1, rounds + 1)
    kills = {n: (int(rng.integers(1, 7)), [int(rng.integers(3))]) for n in numbers}
    observer = Kill(hosts, kills)
    on_hosts(given, tmp_path / "hosts", hosts, observer).run(resume=False)
    assert not observer.kills
    assert_equal(run_undisturbed(given, tmp_path / "whole"), tmp_path / "hosts")
    assert len(observer.warnings) == rounds
    four, six = ["0", "1", "2, 3"], ["0, 3", "1, 4", "2, 5"]
    clients = four if given.clients.count == 4 else six
    for (number, (_, (victim,))), message in zip(kills.items(), observer.warnings, strict=True):
        assert message.startswith(f"host {victim} (clients {clients[victim]}) was lost: ")
        assert message.endswith(f"end of round {number - 1}")
        assert len(message) < 200


def test_killed_with_a_checkpoint_every_other_round_only(tmp_path: Path, hosts: Hosts) -> None:
    """Two hosts in round 1, one in round 2 (no checkpoint yet), one in round 4."""
    given = scenario(
        clients=OWN,
        schedule={"rounds": 5},
        checkpoint={"every": 2},
        method=[{"kind": "lightsplit"}],
    )
    observer = Kill(hosts, {1: (4, [0, 1]), 2: (2, [1]), 4: (5, [0])})
    on_hosts(given, tmp_path / "hosts", hosts, observer).run(resume=False)
    assert_equal(run_undisturbed(given, tmp_path / "whole"), tmp_path / "hosts")
    back_to = [message.rpartition("round ")[2] for message in observer.warnings]
    assert back_to == ["0", "0", "2"]
    assert "so was host" in observer.warnings[0]


class KillDuring:
    """A tap that kills a host when the first packet of a phase passes; gone with its wire."""

    def __init__(self, made: Experiment, hosts: Hosts, phase: str) -> None:
        self.wire, self.hosts, self.phase = made.parts.wire, hosts, phase
        self.wire.taps.append(self)

    def observe(self, packet: Packet) -> None:
        if self.wire.moment.counted_phase == self.phase and packet.client == 1:
            self.wire.taps.remove(self)
            kill(self.hosts, [1])


def test_killed_during_an_evaluation(tmp_path: Path, hosts: Hosts) -> None:
    given = scenario(clients=OWN)
    observer = Kill(hosts, {})
    made = on_hosts(given, tmp_path / "hosts", hosts, observer)
    KillDuring(made, hosts, "evaluate")
    made.run(resume=False)
    assert len(observer.warnings) == 1
    assert_equal(run_undisturbed(given, tmp_path / "whole"), tmp_path / "hosts")


def faulty(cause: Path, **fault: Any) -> Scenario:
    cause.touch()
    method = {"kind": "faulty", "while_there": str(cause), **fault}
    return parse(merge(TINY, {"clients": OWN, "method": [method]}), plugins)


def test_a_host_that_dies_every_time(tmp_path: Path, hosts: Hosts) -> None:
    """Client 1's third step is in round 2."""
    cause, path = tmp_path / "cause", tmp_path / "hosts"
    given = faulty(cause, throws="exit", step=2)
    observer = Kill(hosts, {})
    with pytest.raises(RunFailedError) as failure:
        on_hosts(given, path, hosts, observer).run(resume=False)
    text = str(failure.value)
    assert text.startswith("round 2: host 1 (clients 1) was lost: ")
    assert f"{LOSSES + 1}th time" in text
    assert "round 1 is kept" in text
    assert len(observer.warnings) == LOSSES
    run = Run.load(path)
    assert run.rounds["round"].tolist() == [1]
    assert (run.summary["status"], run.summary["reason"]) == ("failed", text)
    cause.unlink()
    on_hosts(given, path, hosts).run(resume=True)
    assert_equal(run_undisturbed(given, tmp_path / "whole"), path, given)


FAULTS = {
    "encode": "smashed",
    "pack": "smashed",
    "lift": "smashed",
    "decode": "features",
    "compute_encode_loss": "smashed_grad",
}
"""By hook of a method: the leg on which it acts."""


def get_failure(made: Experiment) -> str:
    with pytest.raises(RunFailedError) as failure:
        made.run(resume=False)
    return str(failure.value)


@pytest.mark.parametrize(
    ("hook", "aggregation"),
    [*((hook, "none") for hook in FAULTS), ("encode", "splitfed_v1"), ("lift", "splitfed_v1")],
)
def test_what_a_method_throws(hook: str, aggregation: str, tmp_path: Path, hosts: Hosts) -> None:
    cause = tmp_path / "cause"
    given = faulty(cause, hook=hook, step=2).model_copy(
        update={"aggregation": scenario(aggregation=aggregation).aggregation}
    )
    inline, path = tmp_path / "inline", tmp_path / "hosts"
    for made in (experiment(given, inline), on_hosts(given, path, hosts)):
        with pytest.raises(PluginFailedError) as failure:
            made.run(resume=False)
        fault = failure.value.fault
        assert (fault.round, fault.client, fault.hook) == (2, 1, hook)
        assert (fault.part, fault.name, fault.leg) == ("method", "faulty", FAULTS[hook])
        assert fault.came.startswith("ZeroDivisionError: ")
    for each in (inline, path):
        run = Run.load(each)
        assert run.rounds["round"].tolist() == [1]
        assert (run.summary["status"], run.summary["reason"]) == ("failed", str(fault))
        assert "in _reach" in (each / "traceback.txt").read_text()  # the plugin's own line
    cause.unlink()
    on_hosts(given, path, hosts).run(resume=True)
    assert_equal(run_undisturbed(given, tmp_path / "whole"), path, given)


def test_a_host_without_memory_for_a_step(tmp_path: Path, hosts: Hosts) -> None:
    given = faulty(tmp_path / "cause", throws="memory")
    message = "round 1, client 1, leg smashed: MemoryError: cannot allocate 12 GB"
    assert get_failure(experiment(given, tmp_path / "inline")) == message
    assert get_failure(on_hosts(given, tmp_path / "hosts", hosts)) == message


def without(given: Scenario, empty: set[int]) -> Prepared:
    """Take all samples from some clients, as a partition may do."""
    data = prepare(given.data, given.clients.count, given.seed)
    nothing = np.array([], dtype=np.int64)
    return replace(data, parts=[nothing if c in empty else p for c, p in enumerate(data.parts)])


@pytest.mark.parametrize("case", CASES)
def test_clients_without_data_take_no_part(case: str, tmp_path: Path, hosts: Hosts) -> None:
    given = scenario(**CASES[case])
    data = without(given, {0, 3})
    for path, where in ((tmp_path / "inline", None), (tmp_path / "hosts", hosts)):
        Experiment(given, path, (), data, where).run(resume=False)
        rows = Run.load(path).clients.groupby("client")["steps"].sum()
        assert (rows == 0).tolist() == [c in {0, 3} for c in range(given.clients.count)]
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


def test_no_client_with_data(tmp_path: Path) -> None:
    given = scenario()
    with pytest.raises(DataError, match="no client"):
        Experiment(given, tmp_path, (), without(given, {0, 1, 2}))
