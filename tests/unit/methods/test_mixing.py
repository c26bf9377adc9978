"""MixGuard's secrets keep their equations, and undo linear (and affine) trunks exactly."""

import numpy as np
import pytest
from pydantic import ValidationError

from simsplit.methods.mixguard import MixguardConfig
from simsplit.methods.mixing import draw_secrets, measure_amplification, measure_purity

SIZES = pytest.mark.parametrize(("messages", "inputs"), [(3, 3), (3, 10), (5, 3), (9, 3)])
SAMPLERS = pytest.mark.parametrize("sampler", ["general", "affine"])


def secrets(messages, inputs, sampler, count=50, **options):
    return [
        draw_secrets(messages, inputs, sampler, np.random.default_rng(seed), **options)
        for seed in range(count)
    ]


@SIZES
@SAMPLERS
def test_the_weights_undo_the_mixture(messages, inputs, sampler):
    for drawn in secrets(messages, inputs, sampler):
        kept = drawn.decode @ drawn.encode
        assert np.abs(kept - np.eye(inputs)[drawn.target]).max() < 1e-12


@SIZES
@SAMPLERS
def test_a_linear_trunk_is_undone_exactly_and_an_affine_one_by_affine_secrets(
    messages, inputs, sampler
):
    rng = np.random.default_rng(0)
    hidden, weights, offset = rng.normal(size=(inputs, 20, 8)), rng.normal(size=(8, 8)), 3.0
    for drawn in secrets(messages, inputs, sampler, count=10):
        sent = np.tensordot(drawn.encode, hidden, 1)
        linear = np.tensordot(drawn.decode, sent @ weights, 1)
        exact = hidden[drawn.target] @ weights
        assert np.abs(linear - exact).max() < 1e-12
        affine = np.tensordot(drawn.decode, sent @ weights + offset, 1)
        undone = np.abs(affine - exact - offset).max() < 1e-12
        assert undone == (sampler == "affine")


@SIZES
@SAMPLERS
def test_every_message_mixes_all_inputs_and_signs_differ(messages, inputs, sampler):
    for drawn in secrets(messages, inputs, sampler, blind=False):
        assert (drawn.encode > 0).all()
        assert set(np.unique(drawn.decode)) == {-1, 1}
        if sampler == "affine":
            assert np.abs(drawn.encode.sum(1) - 1).max() < 1e-12
            assert drawn.decode.sum() == 1


@SIZES
@SAMPLERS
def test_blinding_hides_the_signed_sum_and_can_be_inverted(messages, inputs, sampler):
    plain = secrets(messages, inputs, sampler, count=1, blind=False)[0]
    drawn = secrets(messages, inputs, sampler, count=1)[0]
    assert np.abs(drawn.encode - plain.encode).max() > 0.1


@SAMPLERS
def test_a_lower_condition_number_amplifies_less(sampler):
    def largest(condition):
        drawn = secrets(3, 3, sampler, condition=condition)
        return max(np.linalg.norm(each.decode) for each in drawn)

    # |B^-1 s| <= |B^-1| sqrt(m), and |B^-1| = condition / |B|
    assert largest(4.0) < largest(20.0) < largest(500.0)
    for each in secrets(3, 3, sampler, blind=False):
        assert np.linalg.norm(each.decode) == pytest.approx(np.sqrt(3))


@pytest.mark.slow
def test_blinding_that_would_never_be_drawn_is_refused_at_once():
    many = {"messages": 200, "sampler": "general", "condition": 20.0}
    for fields in (many, {"condition": 1.001}):
        with pytest.raises(ValidationError, match="condition: "):
            MixguardConfig(**fields)
    MixguardConfig(**many, blind=False)


@SAMPLERS
def test_the_target_stands_anywhere(sampler):
    targets = [drawn.target for drawn in secrets(3, 3, sampler, count=90)]
    assert min(targets.count(place) for place in range(3)) > 15


@pytest.mark.parametrize(("sampler", "condition"), [("general", 20.0), ("affine", 4.0)])
def test_no_message_is_nearly_a_single_text(sampler, condition):
    pure = [measure_purity(each.encode) for each in secrets(3, 3, sampler, condition=condition)]
    mixed = secrets(3, 3, sampler, condition=condition, purest=0.9)
    assert max(pure) > 0.97
    assert max(measure_purity(each.encode) for each in mixed) < 0.9
    alone = secrets(3, 1, "general", purest=0.9, count=2)[0]  # nothing to mix it with
    assert measure_purity(alone.encode) == 1


@SAMPLERS
def test_of_many_draws_the_one_that_amplifies_least_is_taken(sampler):
    fields = {"condition": 4.0, "purest": 0.9}
    one = secrets(3, 3, sampler, count=20, **fields)
    least = secrets(3, 3, sampler, count=20, draws=100, **fields)
    amplified, before = (np.mean([*map(measure_amplification, each)]) for each in (least, one))
    assert amplified < 0.75 * before
    assert max(measure_purity(each.encode) for each in least) < 0.9
    for each in least:
        assert np.abs(each.decode @ each.encode - np.eye(3)[each.target]).max() < 1e-12
