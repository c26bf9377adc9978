"""The pieces of the span search, by hand."""

import torch

from simsplit.attacks.inverters import RidgeInverter, levelled, surety
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.span_search import agreement, distinct, whitened
from simsplit.seeds import rng_for


def draws(*shape):
    return torch.randn(shape, generator=rng_for(0, "draws", *shape))


def test_levelled_texts_have_one_size_whatever_one_token_is():
    x = draws(4, 9, 8)
    torch.testing.assert_close(levelled(37 * x), levelled(x))
    huge = x.clone()
    huge[:, 0] *= 1000
    torch.testing.assert_close(levelled(huge)[:, 1:], levelled(x)[:, 1:], rtol=0.3, atol=0.3)


def test_whitening_keeps_the_span_and_is_not_led_by_a_huge_token():
    x = draws(2, 3, 2, 5, 8)
    x[..., 0, :] *= 1000
    basis = whitened(x)
    for one, other in zip(x.flatten(2), basis.flatten(2), strict=True):
        assert torch.linalg.matrix_rank(torch.cat([one, other]), rtol=1e-4) == 3
    even = (basis * x.square().mean((1, 4), keepdim=True).rsqrt()).flatten(2)
    torch.testing.assert_close(even @ even.mT, torch.eye(3).expand(2, 3, 3), rtol=0, atol=1e-4)


def test_directions_that_are_not_there_are_zeros():
    x = draws(1, 2, 1, 5, 8)
    basis = whitened(torch.cat([x, x[:, :1] + x[:, 1:]], 1))
    assert basis.flatten(2).any(-1).sum() == 2


def test_peaks_differ_and_the_surest_comes_first():
    v = torch.tensor([[[1.0, 0.0], [0.999, 0.04], [0.0, 1.0], [-1.0, 0.0]]])
    found = distinct(v, torch.tensor([[1.0, 3.0, 2.0, 2.5]]), 3)
    torch.testing.assert_close(found, v[:, [1, 2, 1]])  # no third: the surest again


def test_agreement_is_of_neighbours_wherever_they_stand():
    one = torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])
    other = torch.tensor([[[9, 1, 2, 3, 4]], [[4, 3, 2, 1, 9]]])
    torch.testing.assert_close(
        agreement(one, other)[..., 0], torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    )


def test_ridge_reads_what_a_linear_head_puts_out_and_is_less_sure_of_mixtures():
    table, width = draws(40, 12), 12
    turn = draws(width, width)
    ridge = RidgeInverter(width, table, SipConfig(inverter="ridge"))
    tokens = torch.randint(0, 40, (8, 10), generator=rng_for(0, "tokens"))
    ridge.learn(levelled(table[tokens] @ turn), tokens, learner=None)
    other = torch.randint(0, 40, (8, 10), generator=rng_for(1, "tokens"))
    plain = table[other] @ turn
    scores = ridge(levelled(plain))
    assert (scores.argmax(-1) == other).float().mean() > 0.95
    mixed = ridge(levelled(plain + table[tokens] @ turn))
    assert (surety(scores) > surety(mixed)).all()
