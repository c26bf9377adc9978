"""A step's streams of randomness: each draw has one of its own."""

from dataclasses import replace

import pytest
import torch

from simsplit.methods import Method, Step

STEP = Step(client=1, round=2, number=3, seed=4)


def draw(step: Step, *scope: str | int) -> list[float]:
    return torch.rand(4, generator=step.make_rng(*scope)).tolist()


@pytest.mark.parametrize(
    "changes",
    [{"client": 2}, {"round": 3}, {"number": 4}, {"seed": 5}, {"training": False}],
    ids=str,
)
def test_another_step_has_another_stream(changes):
    """A method that draws the same in each round gives the noise of one round away."""
    other = replace(STEP, **changes)
    assert draw(other, "noise") == draw(replace(other), "noise")
    assert draw(other, "noise") != draw(STEP, "noise")


def test_another_purpose_has_another_stream():
    assert draw(STEP, "noise") == draw(STEP, "noise")
    assert draw(STEP, "noise") != draw(STEP, "mask")
    assert draw(STEP, "noise", 1) != draw(STEP, "noise", 2)


def test_each_call_of_a_method_has_another_stream():
    step, method = replace(STEP, memo={}), Method()
    first, second = (torch.rand(4, generator=step.make_next_rng(method, "noise")) for _ in range(2))
    assert not torch.equal(first, second)
    again = replace(STEP, memo={})
    assert torch.equal(torch.rand(4, generator=again.make_next_rng(Method(), "noise")), first)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_noise_of_a_device_without_generator_is_the_cpus(device):
    step, where = replace(STEP, noise="device"), torch.device(device)
    assert step.make_rng("noise", device=where).device.type == "cpu"
    drawn = torch.rand(4, generator=step.make_rng("noise", device=where)).tolist()
    assert drawn == draw(STEP, "noise")
