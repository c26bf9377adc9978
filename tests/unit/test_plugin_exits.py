"""Plugins that call `sys.exit`, or fail where no rehearsal reaches: observers and strategies."""

import pytest
import torch
import yaml
from builders import TINY
from gists import says

from simsplit.errors import PluginError, PluginFailedError
from simsplit.plugins import gather_plugins
from simsplit.progress import Observers, RunPlan
from simsplit.results import Run
from simsplit.scenario import parse
from simsplit.scenario.files import merge
from simsplit.schedules.averaging import Averager
from simsplit.whole_run import run

OBSERVER = """
import sys
from typing import Literal

from simsplit.observers import ObserverConfig
from simsplit.progress import Observer


class MineConfig(ObserverConfig):
    kind: Literal["mine"] = "mine"

    def build(self, path):
        return Mine()


class Mine(Observer):
    def HOOK(self, *given):
        FAULT


OBSERVERS = {"mine": MineConfig}
"""
STRATEGY = """
import sys
from typing import Literal

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from simsplit.schedules.averaging import StrategyConfig


class MineConfig(StrategyConfig):
    kind: Literal["mine"] = "mine"
    flower = "FedAvg"
    OWN


class Mine(FedAvg):
    def aggregate_train(self, number, replies):
        FAULT


STRATEGIES = {"mine": MineConfig}
"""
MAKES = """
    def make_strategy(self):
        return Mine()
"""
EXIT, RAISE = "sys.exit(0)", "raise KeyError('x')"
HOOKS = ("begin", "step", "work", "round", "end")


def write(folder, text, **parts):
    for name, part in parts.items():
        text = text.replace(name, part)
    (folder / "mine.py").write_text(text)
    return folder / "mine.py"


def watched(file):
    return parse(merge(TINY, {"observers": [{"kind": "mine"}], "schedule": {"rounds": 1}}), file)


@pytest.mark.parametrize("fault", [EXIT, RAISE])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_observer_that_fails_is_named_and_ends_the_run_as_failed(hook, fault, tmp_path):
    file = write(tmp_path, OBSERVER, HOOK=hook, FAULT=fault)
    with pytest.raises(PluginFailedError) as failure:
        run(watched(file), tmp_path / "run")
    result = failure.value.fault
    assert (result.plugin, result.file, result.part, result.name) == (
        str(file), str(file), "observer", "mine",
    )  # fmt: skip
    assert (result.hook, file.read_text().splitlines()[result.line - 1].strip()) == (hook, fault)
    assert result.round == (1 if hook == "round" else None)
    kept = "finished" if hook == "end" else "failed"
    assert Run.load(tmp_path / "run").summary["status"] == kept


def test_a_traceback_goes_once_the_resumed_run_has_finished(tmp_path):
    def run_with(fault, rounds, *, resume):
        file = write(tmp_path, OBSERVER, HOOK="round", FAULT=fault)
        given = {"observers": [{"kind": "mine"}], "schedule": {"rounds": rounds}}
        run(parse(merge(TINY, given), file), out, resume=resume)

    out = tmp_path / "run"
    with pytest.raises(PluginFailedError):
        run_with("given[0].number == 2 and sys.exit()", 3, resume=False)
    with pytest.raises(PluginFailedError):
        run_with("given[0].number == 3 and sys.exit()", 3, resume=True)
    assert (out / "traceback.txt").is_file()
    run_with("pass", 3, resume=True)
    assert not (out / "traceback.txt").exists()
    assert Run.load(out).summary["status"] == "finished"


def test_the_first_failure_counts_where_an_observer_cannot_end_either(tmp_path):
    text = OBSERVER.replace("FAULT", f"{RAISE}\n\n    def end(self, status):\n        {EXIT}")
    file = write(tmp_path, text, HOOK="round")
    with pytest.raises(PluginFailedError) as failure:
        run(watched(file), tmp_path / "run")
    assert failure.value.fault.hook == "round"
    assert Run.load(tmp_path / "run").summary["status"] == "failed"


def test_a_dispensable_observer_that_fails_is_dropped(tmp_path):
    text = OBSERVER.replace("    def HOOK", "    dispensable = True\n\n    def HOOK")
    file = write(tmp_path, text, HOOK="begin", FAULT=EXIT)
    (observer,) = (config.build(tmp_path) for config in watched(file).observers)
    together = Observers([observer])
    together.begin(RunPlan(tmp_path, "a", 1, 0, 1, 1, "", "inline"))
    assert together.observers == ()


@pytest.mark.parametrize(
    ("own", "fault", "hook", "came"),
    [
        (MAKES, EXIT, "aggregate_train", "SystemExit: 0"),
        (MAKES, RAISE, "aggregate_train", "KeyError: 'x'"),
        (MAKES, "return None", "aggregate_train", "None"),
        (MAKES, "return None, None", "aggregate_train", "None"),
        (MAKES, "return ArrayRecord(), None", "aggregate_train", "no weights"),
        (MAKES, "return replies, None", "aggregate_train", "list"),
        (MAKES.replace("Mine()", "None"), "pass", "make_strategy", "None"),
        (MAKES.replace("Mine()", "'FedAvg'"), "pass", "make_strategy", "'FedAvg'"),
        (MAKES.replace("Mine()", "Mine"), "pass", "make_strategy", "class Mine"),
        (MAKES.replace("return Mine()", EXIT), "pass", "make_strategy", "SystemExit: 0"),
        ("flower = 'FedAvgg'", "pass", "make_strategy", "FedAvgg"),
        ("options: int = 3", "pass", "make_strategy", "options"),
    ],
)
def test_a_strategy_that_fails_is_named(own, fault, hook, came, tmp_path):
    file = write(tmp_path, STRATEGY, OWN=own, FAULT=fault)
    config = gather_plugins(file).of("STRATEGIES")["mine"]()
    averager = Averager(config, {"w": torch.zeros(2, 3)}, "the average")
    with pytest.raises(PluginError) as failure:
        averager.average(1, {0: ({"w": torch.ones(2, 3)}, 4)})
    result = failure.value.fault
    assert (result.plugin, result.part, result.name) == (str(file), "strategy", "mine")
    assert (result.hook, came in result.came) == (hook, True)
    assert says(str(failure.value), f"{file} ... strategy 'mine', hook {hook} ... {came}")


@pytest.mark.parametrize(
    ("made", "came"),
    [("zeros(3, 2)", "(3, 2)"), ("full((2, 3), float('nan'))", "NaN"), ("zeros(2, 3)", "")],
)
def test_averaged_weights_have_their_shapes_and_no_nan(made, came, tmp_path):
    fault = f"return ArrayRecord({{'w': __import__('torch').{made}}}), None"
    file = write(tmp_path, STRATEGY, OWN=MAKES, FAULT=fault)
    config = gather_plugins(file).of("STRATEGIES")["mine"]()
    averager = Averager(config, {"w": torch.zeros(2, 3)}, "the average")
    updates = {0: ({"w": torch.ones(2, 3)}, 4)}
    if not came:
        averager.average(1, updates)
        assert averager.weights["w"].sum() == 0
        return
    with pytest.raises(PluginError) as failure:
        averager.average(1, updates)
    assert came in failure.value.fault.came


def test_nan_of_updates_is_not_the_strategys(tmp_path):
    fault = "return FedAvg.aggregate_train(self, number, replies)"
    config = gather_plugins(write(tmp_path, STRATEGY, OWN=MAKES, FAULT=fault)).of("STRATEGIES")
    averager = Averager(config["mine"](), {"w": torch.zeros(2)}, "the average")
    averager.average(1, {0: ({"w": torch.full((2,), torch.nan)}, 4)})
    assert averager.weights["w"].isnan().all()


METRIC = """
import sys
from typing import Literal

from pydantic import model_validator
from torch import nn

from simsplit import CodecConfig, Method


class MineConfig(CodecConfig):
    kind: Literal["mine"] = "mine"
    size: int = 0

    @model_validator(mode="after")
    def _look(self):
        VALIDATES
        return self

    def build(self, site):
        return Method()


METHODS = {"mine": MineConfig}
"""


@pytest.mark.parametrize("command", ["validate", "run", "plan"])
def test_an_exit_outside_of_a_hook_is_named_too(command, simsplit, tmp_path):
    write(tmp_path, METRIC, VALIDATES="sys.exit(0)")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(merge(TINY, {"method": [{"kind": "mine"}]})))
    code, out, err = simsplit(command, "a.yaml", "--plugin", "mine.py")
    assert (code, out) == (2, "")
    assert says(err, "mine.py ... _look ... SystemExit: 0")


def test_an_exit_that_no_plugin_asked_for_passes(simsplit):
    assert simsplit("--version")[0] == 0
    assert simsplit("list", "--nothing")[0] == 2
