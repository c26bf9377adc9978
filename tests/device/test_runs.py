"""Whole runs on the pretended accelerator: the CPU's tables and weights, few copies and waits.

SIMSPLIT_GOLDEN=all compares every golden case that runs in one process, for about half an hour.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import pretend
import pytest
import torch
from builders import run_to_end, scenario
from deployed import Deployment, assert_as_inline
from gists import gist, says
from golden.cases import CASES
from golden.on_device import Values, find_differences, find_far
from on_device import count_per_step

from simsplit import machine
from simsplit.assembly import HostRecipe
from simsplit.engine import host
from simsplit.engine.host import Failure, Host
from simsplit.errors import ScenarioError
from simsplit.models import frozen
from simsplit.models.frozen import refuse_missing_dtype
from simsplit.scenario.files import merge

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("SIMSPLIT_GOLDEN") == "all"
FEW = ("lightsplit-fixed-wcc", "resumed-mixguard", "rmle", "shipped-p3eft")
ALL = {name for name, case in CASES.items() if not case.hosted}
ROUNDED = {
    *("dualguard", "shipped-generation-defences"),  # GRUs
    *("shipped-cifar10-fast", "shipped-cifar10-fast-table", "shipped-sixteen-cifar10"),
    *("fora", "fsha", "fsha-as-run-bf16", "fsha-asynchronous-vanilla"),  # from their critics on
    "trained-otherwise",  # the scatter within classes, in bf16; all weights are equal
}
"""Cases for which torch chooses other kernels there, whose sums have another order."""
CLOSE = 5e-3


@pytest.mark.parametrize("name", sorted(ALL - ROUNDED) if WHOLE else FEW)
def test_a_case_is_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    assert find_differences(name, tmp_path) == []


@pytest.mark.parametrize("name", sorted(ROUNDED) if WHOLE else ("dualguard",))
def test_a_case_of_other_kernels_is_close(name: str) -> None:
    assert find_far(name, "auto", CLOSE) == []


def test_a_host_that_has_a_gpu_computes_on_the_accelerator_that_is_there() -> None:
    given = scenario(clients={"heads": "per_client"})
    recipe = HostRecipe.of(given, given.prepare_data(), "auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "register_numpy_transport", lambda: None)  # it is Ray's
        made = Host(threads=1)
        assert made.build(recipe, [0], "auto") is None
        head = made.pool.clients[0].training.end.head
        assert {weight.device.type for weight in head.parameters()} == {pretend.NAME}
        patch.setattr(machine, "ACCELERATORS", ())
        failed = made.build(recipe, [0], "auto")
    assert isinstance(failed, Failure)
    assert says(str(failed.error), "engine.gpus_per_host")


def test_a_dtype_that_the_accelerator_emulates_is_refused() -> None:
    frozen._computes.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretend._Module, "is_bf16_supported", lambda _, *, including_emulation: False)
        with pytest.raises(ScenarioError, match=gist("model.dtype: ... bfloat16 ... float32")):
            refuse_missing_dtype(SimpleNamespace(dtype="bfloat16"), torch.device(pretend.NAME))
    frozen._computes.cache_clear()
    refuse_missing_dtype(SimpleNamespace(dtype="bfloat16"), torch.device(pretend.NAME))


def test_a_deployment_is_as_on_the_cpu(tmp_path: Path) -> None:
    given: Values = {
        "clients": {"count": 2, "heads": "per_client"},
        "schedule": {"rounds": 1},
        "method": [{"kind": "lightsplit", "ratio": 8}, {"kind": "cast", "to": "int8"}],
    }
    deployment = Deployment.of(tmp_path, 2, pretend.prepare)
    try:
        with pretend.counting() as made:
            deployment.run(scenario(**merge(given, {"device": "auto"})), tmp_path / "out")
        assert deployment.ends(2)
    finally:
        deployment.stop()
    assert ("to device", "packets.py::Packet.to_device") in made
    run_to_end(scenario(**given), tmp_path / "inline")
    assert_as_inline(tmp_path / "out", tmp_path / "inline", range(2))


OWN = {"heads": "per_client"}
NOISE = [{"kind": "noise"}, {"kind": "quantise"}]
BUDGETS: dict[str, tuple[Values, dict[str, float]]] = {
    "raw": ({}, {}),
    "own heads, in parallel, clipped": (
        {
            "clients": OWN,
            "schedule": {"kind": "parallel"},
            "train": {"client": {"kind": "adam"}, "server": {"kind": "adam"}, "clip_norm": 1.0},
        },
        {},
    ),
    "vanilla, int8": (
        {"topology": "vanilla", "method": [{"kind": "cast", "to": "int8"}]},
        {"to device, methods/step.py::Step.draw_rows": 2},
    ),
    "noise and few bits": (
        {"method": NOISE},
        {"to device, methods/step.py::Step.draw_rows": 3},
    ),
    "noise and few bits, drawn there": ({"method": NOISE, "noise": "device"}, {}),
    "int8, drawn there": ({"method": [{"kind": "cast", "to": "int8"}], "noise": "device"}, {}),
    "gradients, drawn there": (
        {"method": [{"kind": "dp_sgd", "clip": 2.0, "relative": False}], "noise": "device"},
        {},
    ),
    "topk": ({"method": [{"kind": "topk", "ratio": 8}]}, {}),
}
"""Scenarios, and what a training step may cost beside its computation: draws alone.

They are made on the CPU, so that results do not depend on the device, unless `noise` is `device`.
"""


@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_copies_and_waits_no_more_than_its_budget(name: str, tmp_path: Path) -> None:
    values, budget = BUDGETS[name]
    assert count_per_step(values, tmp_path) == budget
