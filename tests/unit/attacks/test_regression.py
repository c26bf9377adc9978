"""Ridge regression from batches: scikit-learn's on the same pairs, in either form."""

import pytest
import torch
from builders import experiment, scenario
from sklearn.linear_model import Ridge as TheirRidge

from simsplit.attacks.regression import STRENGTHS, fit
from simsplit.parties.feed import QUERIES, TARGETS


def draw_pairs(pairs, inputs, outputs, *, noise=0.3):
    """Draw correlated inputs far from zero, and outputs that are nearly a map of them."""
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(inputs, inputs, generator=rng)
    x = torch.randn(pairs, inputs, generator=rng) @ mixing + 5
    y = x @ torch.randn(inputs, outputs, generator=rng) / inputs + 3
    return x, y + noise * torch.randn(pairs, outputs, generator=rng)


def split_batches(x, y, size=7):
    return zip(x.split(size), y.split(size), strict=True)


SHAPES = [(90, 12, 5), (40, 60, 5), (3, 2, 1), (2, 8, 3)]
"""More pairs than values, fewer, and next to none."""


@pytest.mark.parametrize(("pairs", "inputs", "outputs"), SHAPES)
def test_it_is_scikit_learns(pairs, inputs, outputs):
    x, y = draw_pairs(pairs, inputs, outputs)
    ours = fit(split_batches(x, y), pairs)
    theirs = TheirRidge(alpha=ours.penalty).fit(x.double().numpy(), y.double().numpy())
    expected = torch.from_numpy(theirs.predict(x.double().numpy())).view(pairs, outputs)
    torch.testing.assert_close(ours.predict(x).double(), expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("pairs", [60, 25])
def test_left_out_pairs_are_predicted_as_by_a_fit_without_them(pairs):
    x, y = draw_pairs(pairs, 30, 4)
    ours = fit(split_batches(x, y), pairs, [0.1])
    result = ours.predict_left_out(x, y)
    for row in range(0, pairs, 8):
        others = torch.arange(pairs) != row
        theirs = TheirRidge(alpha=ours.penalty).fit(x[others].double(), y[others].double())
        expected = torch.from_numpy(theirs.predict(x[row : row + 1].double().numpy()))
        torch.testing.assert_close(result[row : row + 1].double(), expected, atol=5e-3, rtol=1e-3)


def test_held_out_pairs_choose_the_strength():
    """With pure noise the strongest, with a map and no noise the weakest."""
    rng = torch.Generator().manual_seed(1)
    x, noise = torch.randn(200, 50, generator=rng), torch.randn(200, 9, generator=rng)
    by_noise = fit(split_batches(x, noise), 200)
    by_map = fit(split_batches(x, x[:, :9] * 3), 200)
    assert by_noise.penalty / by_map.penalty == pytest.approx(STRENGTHS[-1] / STRENGTHS[0])


def test_public_samples_have_noise_of_their_own(tmp_path):
    """With the targets' draws, a map would be fitted to the very noise that hides them."""
    given = scenario(
        data={"auxiliary": 0.3},
        method=[{"kind": "noise", "sigma": 1.0}],
        attacks=[{"kind": "ridge", "pairs": 20}],
        targets={"count": 8},
    )
    exposure = experiment(given, tmp_path / "run").parts.pool.clients[0].exposure
    opened = [exposure._open(split, 1, 0, as_in_training=True) for split in (TARGETS, QUERIES)]
    one, other = (torch.randn(8, generator=each.step.make_rng("noise")) for each in opened)
    assert not torch.equal(one, other)
