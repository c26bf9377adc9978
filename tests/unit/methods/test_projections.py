"""Projections: orthonormal, their own adjoint, fair to any input, and drawn from the seed alone."""

import pytest
import torch
from pace import quick
from torch import Tensor

from simsplit.methods.lightsplit import Kind, draw_projection, factorise

CPU = torch.device("cpu")
KINDS: tuple[Kind, ...] = ("gaussian", "uniform", "hadamard")
every_kind = pytest.mark.parametrize("kind", KINDS)
# the papers' cuts, to one, a few and an eighth of their values; to all only where that is quick
SIZES = [
    *((4096, k) for k in (1, 100, 512)),
    *((2880, k) for k in (1, 360)),
    *((5684, k) for k in (1, 177)),
    *((784, k) for k in (1, 98, 784)),
    *((3920, k) for k in (1, 490)),
    *((509, k) for k in (1, 63, 509)),  # a prime
]
EVERY = [(kind, *size) for kind in KINDS for size in SIZES]
SOME = [each for each in EVERY if each[1] < 1000 or each[2] == 360]
SHAPES = [(64, 8, 8), (29, 14, 14), (20, 12, 12)]


def whole(kind: Kind, d: int, k: int, seed: int = 0) -> Tensor:
    """Compute R as a matrix, in double precision: the projection of every unit vector."""
    return draw_projection(kind, seed, d, k, CPU).project(torch.eye(d)).double()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def measure_kept(kind: Kind, inputs: Tensor, k: int, seed: int = 0) -> Tensor:
    """Compute each input's share of squared norm that is kept, over the expected k / d."""
    d = inputs.shape[1]
    down = draw_projection(kind, seed, d, k, CPU).project(inputs)
    return down.square().sum(1) / inputs.square().sum(1) * (d / k)


# of module scope, so that the tests of one R follow each other while it is still kept
@pytest.fixture(
    scope="module",
    params=quick(EVERY, *SOME),
    ids=str,
)
def sized(request):
    return request.param


def test_orthonormal(sized):
    kind, d, k = sized
    R = whole(kind, d, k)
    assert R.shape == (d, k)
    assert (R.T @ R - torch.eye(k)).abs().max() <= 1e-6


@pytest.mark.slow
def test_up_is_the_adjoint_of_down(sized):
    kind, d, k = sized
    drawn = draw_projection(kind, 0, d, k, CPU)
    x, y = draw(5, d), draw(5, k, seed=1)
    one, other = (drawn.project(x) * y).sum(1), (x * drawn.lift(y)).sum(1)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * d**0.5)


@every_kind
@pytest.mark.parametrize(("d", "k"), [(2880, 361), (509, 63), (784, 784), (4096, 1)])
def test_up_after_down_projects(kind, d, k):
    """Twice is once, nothing is added at right angles, and of k dimensions all are left alone."""
    drawn = draw_projection(kind, 0, d, k, CPU)
    x, y = draw(5, d), draw(5, k, seed=1)
    once = drawn.lift(drawn.project(x))
    torch.testing.assert_close(drawn.lift(drawn.project(once)), once, rtol=0, atol=1e-5)
    assert ((x - once) * once).sum(1).abs().max() <= 1e-3
    torch.testing.assert_close(drawn.project(drawn.lift(y)), y, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("d", "k"), [(2880, 361), (4096, 512), (509, 63), (784, 784)])
def test_structured_is_its_own_matrix(d, k):
    drawn = draw_projection("hadamard", 0, d, k, CPU)
    R = whole("hadamard", d, k).float()
    x, y = draw(5, d), draw(5, k, seed=1)
    torch.testing.assert_close(drawn.project(x), x @ R, rtol=0, atol=1e-4)
    torch.testing.assert_close(drawn.lift(y), y @ R.T, rtol=0, atol=1e-4)
    assert torch.equal(drawn.project(x.T.contiguous().T), drawn.project(x))


def test_structured_is_far_smaller_than_the_matrix():
    drawn = draw_projection("hadamard", 0, 4096, 512, CPU)
    stored = sum(tensor.numel() for tensor in vars(drawn).values() if isinstance(tensor, Tensor))
    assert stored == 4096 + 64 * 64 + 512 * 64  # signs, one factor, the kept rows of the other


@pytest.mark.parametrize("kind", ["gaussian", "hadamard"])
@pytest.mark.parametrize("shape", quick(SHAPES, SHAPES[2]), ids=str)
def test_squared_norms_are_kept(kind, shape):
    """Of each kind of input, by k / d in the mean over seeds; each seed is good to sqrt(2 / k)."""
    k, seeds = 128, 12
    channel, position = torch.zeros(shape), torch.zeros(shape)
    channel[3] = draw(*shape[1:]).abs()
    position[:, 2, 5] = draw(shape[0])
    inputs = torch.stack([draw(*shape), 5 + draw(*shape).abs(), channel, position]).flatten(1)
    shares = torch.stack([measure_kept(kind, inputs, k, seed) for seed in range(seeds)])
    spread = (2 / k) ** 0.5
    assert ((shares.mean(0) - 1).abs() <= 4 * spread / seeds**0.5).all()
    assert ((shares - 1).abs() <= 5 * spread).all()


@pytest.mark.parametrize("kind", quick(["gaussian", "hadamard"], "hadamard"))
@pytest.mark.parametrize("shape", quick(SHAPES, SHAPES[2]), ids=str)
def test_no_value_or_channel_is_lost_or_favoured(kind, shape):
    """Of one draw, as a run has it: each value alone, and each channel alone, is kept like any."""
    d = torch.Size(shape).numel()
    values = measure_kept(kind, torch.eye(d), d // 8)
    assert values.mean() == pytest.approx(1, abs=1e-4)
    assert values.min() > 0.5
    assert values.max() < 1.7
    channels = torch.block_diag(*draw(shape[0], d // shape[0]).abs().unsqueeze(1))
    shares = measure_kept(kind, channels, d // 8)
    assert shares.min() > 0.7
    assert shares.max() < 1.35


def test_hadamard_keeps_each_value_exactly_alike_where_d_is_a_power_of_two():
    shares = measure_kept("hadamard", torch.eye(4096), 512)
    torch.testing.assert_close(shares, torch.ones(4096), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_uniform_range_holds_the_all_ones_direction():
    """0.999 of its energy, against k / d and chance for the others (0.118 in the specification)."""
    ones = torch.ones(1, 4096)
    energy = {kind: measure_kept(kind, ones, 512).item() / 8 for kind in KINDS}
    assert energy["uniform"] == pytest.approx(0.999, abs=5e-4)
    assert energy["gaussian"] == pytest.approx(0.125, abs=0.03)
    assert energy["hadamard"] == pytest.approx(0.125, abs=0.03)


@every_kind
def test_the_seed_alone_decides(kind):
    draw_projection.cache_clear()
    first = whole(kind, 120, 15)
    draw_projection.cache_clear()
    assert torch.equal(whole(kind, 120, 15), first)
    assert not torch.equal(whole(kind, 120, 15, seed=1), first)
    assert not torch.equal(whole(kind, 120, 16)[:, :15], first)


@pytest.mark.parametrize("d", [1, 2, 12, 509, 784, 2880, 3920, 4096, 5684, 2 * 1021, 16384])
def test_factors_multiply_back(d):
    small, large = factorise(d)
    assert small * large == d
    assert small <= large
    assert not [n for n in range(small + 1, large) if d % n == 0 and n <= d // n]


@every_kind
def test_gradients_are_the_other_direction(kind):
    drawn = draw_projection(kind, 0, 60, 7, CPU)
    z, g = draw(3, 60).requires_grad_(), draw(3, 7, seed=1)
    drawn.project(z).backward(g)
    torch.testing.assert_close(z.grad, drawn.lift(g), rtol=0, atol=1e-5)
