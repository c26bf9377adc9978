"""SafeSplit against its paper's formulas, written out once more with loops."""

import itertools
import math

import numpy as np
import pytest
import torch

from simsplit.detectors import DETECTORS, TrunkTurn
from simsplit.detectors.thresholds import FixedConfig
from simsplit.seeds import rng_for

SHAPES = {"conv": (3, 2, 2, 1), "fc": (4, 3), "bias": (5,)}


def turns(count: int, size: float = 0.1, seed: int = 0, shapes=None) -> list[TrunkTurn]:
    """Draw turns one after another, each from where the one before it ended."""
    shapes = shapes or SHAPES
    rng = rng_for(seed, "turns")
    now = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    made = []
    for client in range(count):
        then = {name: t + size * torch.randn(t.shape, generator=rng) for name, t in now.items()}
        made.append(TrunkTurn(client, now, then))
        now = then
    return made


def detector(**options):
    return DETECTORS["safesplit"].model_validate({"kind": "safesplit", **options}).build()


def as_matrix(tensor):
    array = tensor.double().numpy()
    return array[None] if array.ndim == 1 else array.reshape(len(array), -1)


def transform(signal):
    """Compute their Eq. 8, scaled to be orthonormal."""
    rows, columns = signal.shape
    out = np.zeros_like(signal)
    for k, o in itertools.product(range(rows), range(columns)):
        scale = math.sqrt((1 if k == 0 else 2) / rows) * math.sqrt((1 if o == 0 else 2) / columns)
        out[k, o] = scale * sum(
            signal[m, n]
            * math.cos(k * math.pi * (2 * m + 1) / (2 * rows))
            * math.cos(o * math.pi * (2 * n + 1) / (2 * columns))
            for m, n in itertools.product(range(rows), range(columns))
        )
    return out


def angles(matrix):
    """Compute their Eq. 4 and Appendix H."""
    return np.array(
        [
            math.atan2(matrix[:, n].mean() * matrix[m, n], matrix[m].mean() * matrix[m, n])
            for m, n in itertools.product(*map(range, matrix.shape))
        ]
    )


def scores(apart):
    """Compute their Algorithm 1, lines 12 and 16."""
    half = len(apart) // 2 + 1
    return np.array([sum(sorted(row)[:half]) for row in apart])


def by_hand(made, low=1.0):
    """Compute scores by frequencies and by rotation, and list who is in both majorities."""
    changes, rotations = [], []
    for turn in made:
        names = sorted(turn.after)
        pairs = [(as_matrix(turn.before[n]), as_matrix(turn.after[n])) for n in names]
        corner = []
        for before, after in pairs:
            result = transform(after - before)
            rows, columns = result.shape
            side = low if rows == 1 else math.sqrt(low)
            corner.append(result[: max(1, round(side * rows)), : max(1, round(side * columns))])
        changes.append(np.concatenate([each.ravel() for each in corner]))
        turned = [(angles(after) - angles(before)) / (2 * math.pi) for before, after in pairs]
        rotations.append(np.concatenate(turned))
    static = scores([[np.linalg.norm(a - b) for b in changes] for a in changes])
    dynamic = scores([[np.abs(a - b).sum() for b in rotations] for a in rotations])
    half = len(made) // 2 + 1
    both = set(np.argsort(static)[:half]) & set(np.argsort(dynamic)[:half])
    return static, dynamic, both


@pytest.mark.parametrize("count", [4, 7, 10])
@pytest.mark.parametrize("low", [1.0, 0.25])
def test_scores_and_majorities_are_the_paper_s(count, low):
    made = turns(count)
    result = detector(low=low)
    static, dynamic, both = by_hand(made, low)
    half = count // 2 + 1
    worse = np.maximum(static / sorted(static)[half - 1], dynamic / sorted(dynamic)[half - 1])
    assert list(result._score(made).values()) == pytest.approx(worse.tolist(), rel=1e-4)
    assert set(range(count)) - result.find_flagged(made) == both


def test_a_turn_that_only_turns_weights_over_is_outside_by_its_rotation_alone():
    """As large a change as anybody's: the first measure sees no more of it than of the others."""
    made = turns(9, size=0.05, shapes={"fc": (12, 12)})
    last = made[-1]
    weights = last.before["fc"]
    small = weights.abs().flatten().argsort()[:14]
    flipped = weights.flatten().clone()
    flipped[small] *= -1
    step = flipped.view_as(weights) - weights
    usual = (made[0].after["fc"] - made[0].before["fc"]).norm()
    assert step.norm() < usual
    made[-1] = TrunkTurn(8, last.before, {"fc": weights + step})
    static, dynamic, _ = by_hand(made)
    assert dynamic.argmax() == 8
    assert 8 in detector().find_flagged(made)
    assert detector()._score(made)[8] == pytest.approx(
        max(static[8] / sorted(static)[4], dynamic[8] / sorted(dynamic)[4]), rel=1e-3
    )


def test_its_rule_leaves_out_two_fifths_of_ten_turns_of_any_clients():
    """Why a clean run is rolled back: a majority is half of the turns and one, however alike."""
    result = detector()
    shares = [len(result.find_flagged(turns(10, seed=seed))) / 10 for seed in range(40)]
    assert min(shares) >= 0.4
    wide, layers = detector(threshold={"kind": "fixed", "above": 1.5}), {"fc": (40, 40)}
    spared = [len(wide.find_flagged(turns(10, 0.05, seed, layers))) / 10 for seed in range(40)]
    assert np.mean(spared) < 0.1


def test_nothing_but_a_factor_over_the_majority_is_a_threshold_for_it():
    with pytest.raises(ValueError, match="threshold"):
        detector(threshold={"kind": "calibrated"})
    with pytest.raises(ValueError, match="window"):
        detector(window=3)
    assert isinstance(detector().config.threshold, FixedConfig)
