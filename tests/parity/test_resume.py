"""A run stopped at any point and resumed equals one never stopped: every table, every weight."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders import StopAt, experiment, run_to_end, scenario
from comparing import assert_equal
from pace import quick

from simsplit.experiment import Experiment
from simsplit.results import Run
from simsplit.scenario import Scenario

ADAM = {"kind": "adam", "lr": 2e-3}
PARALLEL = {"kind": "parallel", "rounds": 3}
CASES: dict[str, dict[str, Any]] = {
    "shared head, momentum": {},
    "shared head, adam": {"train": {"client": ADAM, "server": ADAM}},
    "own moments": {"clients": {"handover": "weights"}, "train": {"client": ADAM}},
    "own moments, lookahead": {
        "clients": {"handover": "weights"},
        "train": {
            "client": {"kind": "sgd", "momentum": 0.9, "lookahead": {"every": 2, "rise": 9}},
            "server": ADAM | {"lookahead": {"every": 3}},
        },
    },
    "own heads": {"clients": {"heads": "per_client"}, "train": {"client": ADAM}},
    "own heads, one tail": {"clients": {"heads": "per_client", "tail": "shared"}},
    "vanilla": {"topology": "vanilla"},
    "steps that do not end with an epoch": {"schedule": {"local_steps": 3, "rounds": 4}},
    "learned lift, int8, augmented": {
        "method": [
            {"kind": "lightsplit", "lift": "learned", "hidden": 32},
            {"kind": "cast", "to": "int8"},
            {"kind": "wcc"},
        ],
        "data": {"augment": ["crop"]},
    },
    "labels drawn once, gradients noised and split": {
        "data": {"source": {"kind": "sklearn", "name": "breast_cancer"}},
        "model": {"kind": "mlp", "widths": [8, 8, 8], "learns": ["head", "tail"]},
        "method": [
            {"kind": "randomised_response"},
            {"kind": "pslf"},
            {"kind": "distance_correlation", "alpha": 0.1},
            {"kind": "marvell"},
            {"kind": "max_norm"},
            {"kind": "private_backprop"},
        ],
    },
    "weights that learn by dp, drawn batches": {
        "model": {"kind": "simplecnn", "cut": "l1h", "learns": ["head", "tail"]},
        "train": {"batch_size": 4, "dp": {"multiplier": 1.0, "sampling": "poisson"}},
        "schedule": PARALLEL | {"rounds": 6},
        "clients": {"heads": "per_client"},
        "stop": {"epsilon": 7.0},
    },
    "checkpoints every other round": {"checkpoint": {"every": 2}},
    "early stopping": {
        "data": {"validation": 0.2},
        "schedule": {"rounds": 6},
        "stop": {"metric": "validation_loss", "patience": 1, "min_delta": 10.0},
    },
    "learning rate schedule": {"train": {"lr_schedule": {"kind": "cosine", "warmup": 1}}},
    "splitfed_v1, adam": {
        "schedule": PARALLEL,
        "aggregation": "splitfed_v1",
        "train": {"client": ADAM, "server": ADAM},
    },
    "splitfed_v2, fedadam": {
        "schedule": PARALLEL,
        "aggregation": {"kind": "splitfed_v2", "strategy": "fedadam"},
    },
    "splitfed_v2 in few bits, a cohort that changes": {
        "schedule": PARALLEL | {"rounds": 4},
        "aggregation": {"kind": "splitfed_v2", "bits": 5},
        "cohort": {"fraction": 0.6},
    },
    "fused, in simulated time": {
        "schedule": PARALLEL,
        "aggregation": "fused",
        "network": {"spread": 0.5},
        "method": [{"kind": "lightsplit", "broadcast": "matrix"}],
    },
    "asynchronous, own heads": {
        "schedule": {"kind": "asynchronous", "rounds": 3},
        "clients": {"heads": "per_client"},
        "network": {"spread": 1.5},
    },
    "a cohort that changes": {
        "schedule": PARALLEL | {"order": "random", "local_steps": 2, "rounds": 6},
        "aggregation": "splitfed_v1",
        "cohort": {
            "fraction": 0.6,
            "dropout": 0.4,
            "availability": {"period": 4, "window": 3},
        },
    },
    "a straggler is skipped": {
        "schedule": PARALLEL,
        "aggregation": "splitfed_v2",
        "network": {"device": {"edge": 1, "gpu": 1}, "link": "lan"},
        "cohort": {"deadline_s": 0.0095},
    },
}

QUICK = ("learned lift, int8, augmented",)


def total_steps(path: Path) -> int:
    return int(Run.load(path).rounds["steps"].sum())


def stop_after(given: Scenario, path: Path, after: int, *, resume: bool = False) -> None:
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, path, [StopAt(after)]).run(resume=resume)


@pytest.mark.parametrize("case", quick(CASES, *QUICK))
def test_interrupted_and_resumed(case: str, tmp_path: Path) -> None:
    given = scenario(**({"schedule": {"rounds": 3}} | CASES[case]))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_to_end(given, whole)
    steps = total_steps(whole)
    stop_after(given, broken, after=steps // 5)
    stop_after(given, broken, after=steps // 2, resume=True)
    experiment(given, broken).run(resume=True)
    assert_equal(whole, broken)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    given = scenario()
    run_to_end(given, tmp_path / "run")
    before = {f: f.read_bytes() for f in (tmp_path / "run").glob("*.csv")}
    experiment(given, tmp_path / "run").run(resume=True)
    assert {f: f.read_bytes() for f in (tmp_path / "run").glob("*.csv")} == before


COMMAND = [sys.executable, "-m", "simsplit", "run"]


def kill_when(path: Path, rounds: int, process: "subprocess.Popen[bytes]", delay: float) -> None:
    """Pull the plug a little after so many rounds are in the table."""
    table = path / "rounds.csv"
    while not table.exists() or table.read_text().count("\n") <= rounds:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_and_resumed_from_the_command_line(tmp_path: Path) -> None:
    """Once as soon as a round is in the table, and once in the middle of the next one."""
    given = scenario(schedule={"rounds": 12}, clients={"heads": "per_client"})
    file = tmp_path / "scenario.yaml"
    file.write_text(given.yaml())
    run_to_end(given, tmp_path / "whole")
    broken = tmp_path / "broken"
    command = [*COMMAND, str(file), "--out", str(broken), "--quiet"]
    for rounds, delay in ((2, 0.0), (5, 0.05)):
        resume = ["--resume"] if rounds > 2 else []
        process = subprocess.Popen([*command, *resume])
        kill_when(broken, rounds, process, delay)
    subprocess.run([*command, "--resume"], check=True)
    assert_equal(tmp_path / "whole", broken)
