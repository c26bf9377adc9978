"""Correct guesses at coins bound epsilon from below, and noise that is right is never refuted.

Noise is that of the tool's own parts, at the cut and on weights.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from simsplit.methods.dp_forward import DpForward, DpForwardConfig, compute_gaussian_sigma
from simsplit.methods.method import Step
from simsplit.metrics.audit_bounds import audit, bound_epsilon, compute_p_value
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import SgdConfig
from simsplit.parties.private_learning import PrivateLearning, WeightNoise
from simsplit.parties.sample_gradients import SampleGradients
from simsplit.seeds import numpy_rng_for

PRINTED = [
    (1000, 100, 75, 1e-4, 0.673),  # appendix D of the paper
    (100_000, 1510, 1439, 1e-5, 2.675),  # its section 7
]


@pytest.mark.parametrize(("canaries", "guesses", "right", "delta", "printed"), PRINTED)
def test_bounds_equal_the_papers_printed_ones(canaries, guesses, right, delta, printed):
    bound = bound_epsilon(right, guesses, canaries, delta=delta)
    assert bound == pytest.approx(printed, abs=1e-3)


def test_the_p_value_without_delta_is_the_binomial_tail():
    # P[Binomial(3, 3/4) >= 2] = 3 (3/4)^2 (1/4) + (3/4)^3
    assert compute_p_value(2, 3, 3, epsilon=math.log(3), delta=0) == pytest.approx(27 / 32)
    tail = sum(math.comb(100, k) * 3**k for k in range(75, 101)) / 4**100
    assert compute_p_value(75, 100, 100, epsilon=math.log(3), delta=0) == pytest.approx(tail)


def test_delta_counts_once_for_each_canary_and_not_for_each_guess():
    # One guess, and it is right: the only term is P[0 right] = 1/2 at epsilon 0.
    p = compute_p_value(1, 1, 10, epsilon=0, delta=0.01)
    assert p == pytest.approx(0.5 + 2 * 10 * 0.01 * 0.5)


@pytest.mark.parametrize("guesses", [1, 20, 200])
def test_all_guesses_right_bound_epsilon_by_a_root_of_the_failure_probability(guesses):
    share = 0.05 ** (1 / guesses)  # share^guesses = 5 %
    expected = max(0.0, math.log(share / (1 - share)))
    bound = bound_epsilon(guesses, guesses, guesses, delta=0)
    assert bound == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("right", [0, 100])
def test_half_of_the_guesses_right_or_fewer_bound_nothing(right):
    assert bound_epsilon(right, 200, 200, delta=1e-5) == 0


def test_the_surest_guesses_count_where_the_others_are_coins():
    first = np.arange(400) % 2 == 0
    sign = np.where(first, 1.0, -1.0)
    weak = np.where(np.arange(400) // 2 % 2 == 0, 1.0, -1.0)
    scores = np.where(np.arange(400) < 120, 10 * sign, weak)
    read = audit({"loss": scores}, first, delta=0)
    assert (read.guesses, read.right, read.score) == (120, 120, "loss")


def test_more_scores_cost_confidence():
    first = np.arange(200) % 2 == 0
    good, none = np.where(first, 1.0, -1.0), np.ones(200)
    alone = audit({"good": good}, first, delta=0).epsilon
    beside = audit({"good": good, "none": none}, first, delta=0)
    assert beside.score == "good"
    assert 0 < beside.epsilon < alone


def test_guesses_that_are_all_wrong_bound_nothing():
    first = np.arange(200) % 2 == 0
    assert audit({"loss": np.where(first, -1.0, 1.0)}, first, delta=0).epsilon == 0


EPSILON, DELTA, CANARIES = 2.0, 1e-5, 20_000


def release_and_audit(seed, times=1.0):
    """Send one of two opposite samples for each canary, and audit by the inner product."""
    config = DpForwardConfig(epsilon=EPSILON, delta=DELTA, relative=False)
    method = DpForward(config)
    method.scale *= times
    first = numpy_rng_for(seed, "coins").random(CANARIES) < 0.5
    sample = torch.tensor([1.0, 0.0])
    sent = torch.where(torch.from_numpy(first)[:, None], sample, -sample)
    with torch.no_grad():
        released = method.encode(sent, Step(0, 1, 0, seed, training=True))
    return audit({"gradient": (released @ sample).double().numpy()}, first, delta=DELTA)


def learn_and_audit(seed, times=1.0):
    """Learn a step by `train.dp` from one of two opposite samples for each canary, and audit it."""
    # Neighbours differ by twice the norm that gradients are clipped to.
    multiplier = 2 * compute_gaussian_sigma(EPSILON, DELTA)
    private = PrivateLearning(WeightNoise(clip=1.0, multiplier=times * multiplier))
    head = nn.Embedding(CANARIES, 1)  # a weight for each canary
    first = numpy_rng_for(seed, "coins").random(CANARIES) < 0.5
    sign = torch.where(torch.from_numpy(first), 5.0, -5.0)
    samples = SampleGradients(CANARIES)
    with samples.record(head):
        out = head(torch.arange(CANARIES)[:, None])
    (out.flatten() * sign).mean().backward()
    private.gather(samples, torch.zeros(CANARIES), share=1.0)
    learner = Learner({"head": head}, SgdConfig())
    private.release([learner], Step(0, 1, 0, seed, training=True))
    read = CANARIES * head.weight.grad.flatten().double()
    return audit({"gradient": read.numpy()}, first, delta=DELTA)


both = pytest.mark.parametrize("work", [release_and_audit, learn_and_audit])


@both
@pytest.mark.parametrize("seed", range(20))
def test_noise_that_is_right_is_never_refuted(seed, work):
    assert 0.5 < work(seed).epsilon <= EPSILON


@both
@pytest.mark.parametrize("seed", range(3))
def test_noise_that_a_broken_accountant_halves_is_refuted(seed, work):
    assert work(seed, times=0.5).epsilon > EPSILON


@both
def test_without_noise_the_bound_is_as_large_as_the_canaries_allow(work):
    read = work(0, times=0.0)
    assert read.right == read.guesses == CANARIES
    assert read.epsilon > 2 * EPSILON
