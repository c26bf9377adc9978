"""The codecs and noises that papers compare with, against their definitions written as loops."""

import numpy as np
import pytest
import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.bits import compute_normal_levels, count_bits, pack_bits, unpack_bits
from simsplit.methods.distance_correlation import compute_distance_correlation
from simsplit.methods.lightsplit import draw_projection

CPU = torch.device("cpu")


def build(kind: str, shape: tuple[int, ...], side: str = "client", **fields) -> Method:
    site = Site(side, Leg.SMASHED, shape, 4, CPU)
    config = METHODS[kind](**fields)
    config.compute_sent_shape(shape, "method.0")
    return config.build(site)


def both(kind: str, shape: tuple[int, ...], **fields) -> tuple[Method, Method]:
    client, server = (build(kind, shape, side, **fields) for side in ("client", "server"))
    client.receive_announcement(server.announce())
    return client, server


def step(*, training: bool = True, number: int = 0) -> Step:
    return Step(0, 0, number, 0, training)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", range(1, 17))
def test_bits_come_back_in_as_few_bytes_as_hold_them(bits):
    numbers = torch.from_numpy(np.random.default_rng(bits).integers(0, 2**bits, (5, 7)))
    packed = pack_bits(numbers, bits)
    assert packed.shape == (5, -(-7 * bits // 8))
    assert torch.equal(unpack_bits(packed, bits, 7), numbers)


@pytest.mark.parametrize(("values", "bits"), [(1, 1), (2, 1), (3, 2), (4096, 12), (4097, 13)])
def test_an_index_takes_the_logarithm(values, bits):
    assert count_bits(values) == bits


def count_sent_bytes(method: Method, z: Tensor) -> int:
    here = step()
    return sum(tensor.nbytes for tensor in method.pack(method.encode(z, here), here))


@pytest.mark.parametrize(("match", "expected"), [("values", 512 * 5.5), ("bits", 372 * 5.5)])
def test_topk_pays_for_its_indices(match, expected):
    """At 4096 values one costs 1.375 times as much, so an eighth of the bits is fewer of them."""
    topk = build("topk", (4096,), ratio=8, match=match)
    assert count_sent_bytes(topk, normal(1, 4096)) == expected
    if match == "bits":
        assert expected <= 4096 * 4 / 8 < expected + 5.5


@pytest.mark.parametrize("kind", ["topk", "randtopk"])
def test_the_largest_are_kept_in_evaluation(kind):
    client, server = both(kind, (8,), ratio=4, match="values")
    z = torch.tensor([[0.1, -5.0, 0.2, 3.0, 0.0, 1.0, -1.0, 2.0]])
    there, here = step(training=False), step(training=False)
    arrived = server.unpack(client.pack(client.encode(z, here), here), there)
    assert arrived.tolist() == [[0.0, -5.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0]]


def test_no_gradient_comes_back_for_what_was_not_sent():
    topk = build("topk", (8,), ratio=4, match="values")
    z = normal(3, 8).requires_grad_()
    topk.encode(z, step()).sum().backward()
    assert z.grad.count_nonzero(1).tolist() == [2, 2, 2]


@pytest.mark.parametrize(("k", "d"), [(1, 10), (3, 12)])
def test_randtopk_draws_as_numpy_does(k, d):
    alpha, rows = 0.3, 4000
    z = torch.arange(d).float().expand(rows, d)
    method = build("randtopk", (d,), ratio=d / k, match="values", alpha=alpha)
    kept = method.encode(z + 1, step()).count_nonzero(0).numpy() / rows
    odds = np.array([alpha / (d - k)] * (d - k) + [(1 - alpha) / k] * k)
    rng = np.random.default_rng(0)
    drawn = np.zeros(d)
    for _ in range(rows):
        drawn[rng.choice(d, k, replace=False, p=odds)] += 1 / rows
    assert np.abs(kept - drawn).max() < 0.04
    assert kept[0] > 0.01  # even the smallest gets its turn


def test_c3sl_is_circular_convolution_and_correlation():
    d, ratio = 6, 2
    client, server = both("c3sl", (d,), ratio=ratio)
    keys = torch.fft.irfft(client.keys_RF, n=d)
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(ratio))
    z = normal(5, d)  # the last of three groups has one sample
    sent = client.encode(z, here := step())
    for group in range(3):
        members = range(2 * group, min(2 * group + 2, 5))
        expected = sum(convolve(z[m], keys[m % ratio], 1) for m in members)
        torch.testing.assert_close(sent[group], expected)
    arrived = server.unpack(client.pack(sent, here), there := step())
    lifted = server.lift(arrived, there)
    assert lifted.shape == (5, d)
    for row in range(5):
        expected = convolve(sent[row // ratio], keys[row % ratio], -1)
        torch.testing.assert_close(lifted[row], expected)


def convolve(x: Tensor, key: Tensor, sign: int) -> Tensor:
    """Convolve circularly, or with sign -1 correlate, index by index."""
    d = len(x)
    if sign == 1:
        rows = [sum(x[j] * key[(i - j) % d] for j in range(d)) for i in range(d)]
    else:
        rows = [sum(x[j] * key[(j - i) % d] for j in range(d)) for i in range(d)]
    return torch.stack(rows)


@pytest.mark.slow
def test_quantisation_is_right_on_average_and_to_half_a_level():
    z = normal(1, 50)
    method = build("quantise", (50,), bits=3)
    draws = [method.unpack(method.pack(z, here), here) for here in map(make_step, range(2000))]
    level = (z.max() - z.min()) / 7
    assert (torch.stack(draws).mean(0) - z).abs().max() < level / 10
    nearest = build("quantise", (50,), bits=3, rounding="nearest")
    back = nearest.unpack(nearest.pack(z, step()), step())
    assert (back - z).abs().max() <= level / 2 * (1 + 1e-5)
    assert len(back.unique()) <= 8


@pytest.mark.parametrize(
    ("bits", "positive", "error"),  # of Max, Quantizing for minimum distortion, 1960, table I
    [
        (1, [0.7980], 0.3634),
        (2, [0.4528, 1.510], 0.1175),
        (3, [0.2451, 0.7560, 1.344, 2.152], 0.03454),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
    ],
)
def test_normal_levels_are_maxs_and_keep_a_sample_along_itself(bits, positive, error):
    levels = compute_normal_levels(bits)
    torch.testing.assert_close(levels[2 ** (bits - 1) :], torch.tensor(positive), rtol=0, atol=5e-4)
    torch.testing.assert_close(levels, -levels.flip(0), rtol=0, atol=1e-5)
    z_BD = normal(4, 50000) * torch.tensor([[1e-30], [1.0], [100.0], [1e30]])
    method = build("quantise", (50000,), bits=bits, levels="normal")
    back_BD = method.unpack(method.pack(z_BD, step()), step())
    z_BD, back_BD = z_BD.double(), back_BD.double()
    along = (z_BD * back_BD).sum(1) / z_BD.square().sum(1)
    torch.testing.assert_close(along, torch.ones_like(along), rtol=0, atol=1e-5)
    lost = (back_BD - z_BD).square().sum(1) / z_BD.square().sum(1)
    # the scale that keeps it loses D / (1 - D) of it, where the levels alone lose D
    torch.testing.assert_close(lost, torch.full_like(lost, error / (1 - error)), rtol=0.03, atol=0)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_rotated_values_on_normal_levels_lose_half_of_what_they_lose_on_even_ones(bits):
    z = normal(8, 1024).relu().pow(2)
    rotation = draw_projection("hadamard", 3, 1024, 1024, CPU)
    lost = {}
    for levels in ("even", "normal"):
        method = build("quantise", (1024,), bits=bits, levels=levels, rounding="nearest")
        sent = method.pack(rotation.project(z), step())
        lost[levels] = float((rotation.lift(method.unpack(sent, step())) - z).square().mean())
    assert lost["normal"] < 0.5 * lost["even"]


@pytest.mark.parametrize("bits", [{"bits": 7}, {"gradient_bits": 7, "bits": 1}])
def test_more_bits_than_there_are_normal_levels_for_are_refused(bits):
    with pytest.raises(ValueError, match=r"takes 1 to 6 bits, got 7; use levels: even"):
        METHODS["quantise"](levels="normal", **bits)


def test_nothing_is_read_of_a_sample_that_is_zero():
    method = build("quantise", (5,), bits=1, levels="normal")
    assert method.unpack(method.pack(torch.zeros(2, 5), step()), step()).eq(0).all()


def make_step(number: int) -> Step:
    return step(number=number)


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
@pytest.mark.parametrize("training", [True, False])
def test_noise_has_the_spread_that_it_is_asked_for(distribution, training):
    z = torch.zeros(100, 1000)
    noise = build("noise", (1000,), sigma=0.3, distribution=distribution)
    drawn = noise.encode(z, step(training=training))
    assert drawn.std() == pytest.approx(0.3, rel=0.02)
    fourth = (drawn / 0.3).pow(4).mean().item()  # 3 of a normal, 6 of a Laplace distribution
    assert fourth == pytest.approx({"gaussian": 3, "laplace": 6}[distribution], rel=0.1)


def test_noise_in_standard_deviations_of_the_batch():
    z = 7 * normal(100, 1000)
    noise = build("noise", (1000,), sigma=0.5, unit="batch_std")
    assert (noise.encode(z, step()) - z).std() == pytest.approx(3.5, rel=0.02)


def test_distance_correlation_is_the_textbooks():
    x, z = normal(9, 4).double(), normal(9, 3, seed=1).double()
    z[:, 0] += x[:, 0]
    n = len(x)

    def centre(v: Tensor) -> np.ndarray:
        a = np.array([[float((v[i] - v[j]).norm()) for j in range(n)] for i in range(n)])
        return a - a.mean(0) - a.mean(1)[:, None] + a.mean()

    a, b = centre(x), centre(z)
    expected = ((a * b).mean() / ((a * a).mean() * (b * b).mean()) ** 0.5) ** 0.5
    assert float(compute_distance_correlation(x, z)) == pytest.approx(expected, rel=1e-4)
    assert float(compute_distance_correlation(x, 3 * x)) == pytest.approx(1, rel=1e-4)


def test_nopeek_lowers_the_correlation_and_not_without_weight():
    from simsplit.data.batches import Batch

    x = normal(32, 6)
    for alpha, falls in ((0.8, True), (0.0, False)):
        method = build("nopeek", (6,), alpha=alpha)
        weights = torch.eye(6).requires_grad_()
        for number in range(60):
            here = make_step(number)
            batch = method.transform(Batch(x, torch.zeros(32), torch.arange(32)), here)
            method.encode(torch.tanh(batch.inputs @ weights), here)
            if (term := method.compute_encode_loss(here)) is not None:
                (grad,) = torch.autograd.grad(term, weights)
                weights.data -= 0.3 * grad
        after = float(compute_distance_correlation(x, torch.tanh(x @ weights.detach())))
        assert (after < 0.9) == falls


def test_shredders_reward_ends_at_the_privacy_asked_for():
    z = torch.ones(4, 5)
    for privacy, rewarded in ((1e6, True), (1e-6, False)):
        method = build("shredder", (5,), tensors=3, weight=1.0, privacy=privacy)
        here = step()
        method.encode(z, here)
        expected = -method.bank["noise"].abs().mean() if rewarded else torch.tensor(0.0)
        assert method.compute_encode_loss(here).item() == pytest.approx(expected.item())


def test_a_bottleneck_needs_positions():
    from simsplit.errors import ScenarioError

    with pytest.raises(ScenarioError, match=r"method\.0: .*\(32,\)"):
        build("bottlenet", (32,))
