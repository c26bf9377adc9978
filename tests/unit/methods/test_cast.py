"""Narrow formats: unbiased where they say so, within their step, no noise used twice."""

import pytest
import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods import Method, Site, Step
from simsplit.methods.quantise import CastConfig

FLOAT = torch.finfo(torch.float32)


def cast(to: str) -> Method:
    return CastConfig(to=to).build(Site("client", Leg.SMASHED, (50,), 0, torch.device("cpu")))


def step(number: int = 0) -> Step:
    return Step(0, 0, number, 0)


def restore(method: Method, x: Tensor, number: int = 0) -> Tensor:
    return method.unpack(method.pack(x, step(number)), step(number))


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_int8_is_unbiased():
    method, x, draws = cast("int8"), values(4, 50), 4000
    mean = torch.stack([restore(method, x, number) for number in range(draws)]).mean(0)
    scale_B1 = x.abs().amax(1, keepdim=True) / 127
    # one draw deviates by at most half a scale (root mean square); 200 values at 5 sigma
    assert ((mean - x).abs() <= 5 * 0.5 * scale_B1 / draws**0.5).all()


def test_int8_is_within_one_scale_and_its_scale_is_each_samples_own():
    x = values(6, 50) * torch.tensor([1e-20, 1e-3, 1.0, 50.0, 1e6, 1e30])[:, None]
    packed = cast("int8").pack(x, step())
    error = (cast("int8").unpack(packed, step()) - x).abs()
    scale_B1 = x.abs().amax(1, keepdim=True) / 127
    torch.testing.assert_close(packed[1], scale_B1.squeeze(1))
    assert (error <= scale_B1 * (1 + 1e-4)).all()
    assert (error.amax(1) > 0.5 * scale_B1.squeeze(1)).all()  # stochastic, not to the nearest
    assert packed[0].dtype is torch.int8


def test_int8_keeps_the_largest_value_of_a_sample_and_zeros():
    x = values(6, 50)
    x[:, 7], x[:, 8], x[:, 9] = 9.0, -9.0, 0.0
    back = restore(cast("int8"), x)
    torch.testing.assert_close(back[:, 7:10], x[:, 7:10])


def test_int8_of_all_zeros_is_zero():
    x = torch.stack([torch.zeros(50), values(50)])
    packed = cast("int8").pack(x, step())
    assert not packed[0][0].any()
    assert not cast("int8").unpack(packed, step())[0].any()


@pytest.mark.parametrize("largest", [FLOAT.max, -FLOAT.max, FLOAT.tiny, 1e-42, 1e38])
def test_int8_survives_extreme_values(largest):
    x = torch.tensor([[largest, largest / 2, 0.0, -largest / 3]])
    scale = max(abs(largest) / 127, FLOAT.tiny)
    for number in range(50):
        back = restore(cast("int8"), x, number)
        assert back.isfinite().all()
        assert ((back - x).double().abs() <= 1.001 * scale).all()


def test_payload_and_gradient_of_a_step_do_not_share_noise():
    method, x, same = cast("int8"), values(4, 50), step()
    payload, gradient = method.pack(x, same)[0], method.pack(x, same)[0]
    assert not torch.equal(payload, gradient)
    again = step()
    assert torch.equal(method.pack(x, again)[0], payload)
    assert torch.equal(method.pack(x, again)[0], gradient)
    assert not torch.equal(method.pack(x, step(1))[0], payload)


@pytest.mark.parametrize(("to", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_floats_round_to_the_nearest(to, dtype):
    x = values(4, 50)
    (packed,) = cast(to).pack(x, step())
    assert packed.dtype is dtype
    back = cast(to).unpack((packed,), step())
    assert back.dtype is torch.float32
    neighbours = torch.stack([packed.view(torch.int16) + shift for shift in (-1, 1)])
    others = (neighbours.view(dtype).float() - x).abs().amin(0)
    assert ((back - x).abs() <= others).all()


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_what_the_format_holds_comes_back_whole(to):
    x = torch.tensor([[0.0, 1.0, -2.5, 0.125, 96.0]])
    assert torch.equal(restore(cast(to), x), x)
