"""`noise: device` draws methods' noise on the accelerator: as distributed, by the seed alone."""

from pathlib import Path
from typing import Any

import pretend
import pytest
import torch
from builders import StopAt, run_to_end, scenario
from comparing import assert_equal
from torch import Tensor

from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Method, NoiseSource, Site, Step
from simsplit.methods.mixguard import _draw_noise

DEVICE = pretend.NAME
ROWS, LENGTH, WIDTH = 20, 25, 16
SND = {"kind": "snd", "at": "cut", "denoise": False, "clip": None}
ON_SMASHED: list[dict[str, Any]] = [
    {"kind": "noise"},
    {"kind": "noise", "distribution": "laplace"},
    {"kind": "dp_forward", "epsilon": 2.0},
    SND,
    SND | {"lengths": "element"},
    {"kind": "shredder"},
    {"kind": "text_obfuscator"},
]
ON_GRADIENTS: list[dict[str, Any]] = [
    {"kind": "dp_sgd"},
    {"kind": "dp_sgd", "noise": "laplace", "multiplier": 1.0},
    {"kind": "max_norm"},
    {"kind": "private_backprop"},
]


def build(options: dict[str, Any]) -> Method:
    leg = Leg.SMASHED
    site = Site("client", leg, (LENGTH, WIDTH), seed=0, device=torch.device(DEVICE))
    made: Method = METHODS[options["kind"]](**options).build(site)
    if made.module is not None:
        made.module.to(DEVICE)
    return made


def send(method: Method, z: Tensor, noise: NoiseSource, number: int = 0) -> Tensor:
    """Return what a method sends of a payload, or of a gradient, moved to the CPU."""
    step = Step(0, 1, number, 2, noise=noise)
    with torch.no_grad():
        if type(method).encode is not Method.encode:
            sent = method.encode(z, step)
        else:
            sent = torch.stack([share.grad for share in method.split_gradient(z, step)])
    return sent.cpu()


@pytest.mark.parametrize("options", [*ON_SMASHED, *ON_GRADIENTS], ids=str)
def test_noise_of_the_device_is_distributed_as_the_cpus(options: dict[str, Any]) -> None:
    method = build(options)
    rows = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    z = rows.to(DEVICE)
    send(method, z, "device")
    with pretend.counting() as made:
        drawn = send(method, z, "device")
    # what blinds private_backprop's messages is drawn where its inverse is read
    copies = sum(count for (what, _), count in made.items() if what == "to device")
    assert copies == (options["kind"] == "private_backprop")
    assert torch.equal(send(method, z, "device"), drawn)
    assert not torch.equal(send(method, z, "device", number=1), drawn)
    expected = send(method, z, "cpu")
    for moment in (Tensor.mean, Tensor.std):
        assert moment(drawn - rows).item() == pytest.approx(
            moment(expected - rows).item(), rel=0.1, abs=0.1
        )


@pytest.mark.parametrize("options", [*ON_SMASHED, *ON_GRADIENTS], ids=str)
def test_on_a_cpu_the_field_changes_nothing(options: dict[str, Any]) -> None:
    site = Site("client", Leg.SMASHED, (LENGTH, WIDTH), seed=0, device=torch.device("cpu"))
    method = METHODS[options["kind"]](**options).build(site)
    z = torch.ones(ROWS, LENGTH, WIDTH)
    assert torch.equal(send(method, z, "device"), send(method, z, "cpu"))


def test_mixguard_noises_real_tokens_alone() -> None:
    x = torch.zeros(ROWS, LENGTH, WIDTH, device=DEVICE)
    real = torch.ones(ROWS, LENGTH, dtype=torch.bool, device=DEVICE)
    real[:, 20:] = False
    with pretend.counting() as made:
        rng = Step(0, 1, 0, 2, noise="device").make_rng("noise", device=x.device)
        drawn = _draw_noise(x, real, rng)
    assert not made
    assert drawn[:, 20:].cpu().eq(0).all()
    assert drawn[:, :20].cpu().std().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.slow
def test_a_run_with_noise_of_the_device_is_resumed_to_the_bit(tmp_path: Path) -> None:
    given = scenario(
        device="auto", noise="device", method=[{"kind": "noise"}, {"kind": "quantise"}]
    )
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "stopped", [StopAt(8)]).run(resume=False)
    Experiment(given, tmp_path / "stopped").run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "stopped")
