"""Cover by hand: the private text among others, restored without error."""

import pytest
import torch
from torch import nn

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.legs import Leg
from simsplit.methods.cover import CoverConfig, hash_indices
from simsplit.methods.method import Site, Step
from simsplit.seeds import rng_for

WORDS = 50


class Public:
    vocabulary, pad, size = WORDS, 0, 30

    def __init__(self):
        self.ids = torch.randint(1, WORDS, (30, 7), generator=rng_for(0, "public"))

    def get_texts(self, rows):
        return Batch(self.ids[rows], self.ids[rows], rows)

    def draw_support(self, count, rows, rng):
        drawn = torch.randint(30, (count, rows), generator=rng)
        return [self.get_texts(each) for each in drawn]


def cover(**fields):
    site = Site("client", Leg.SMASHED, (16, 8), 0, torch.device("cpu"))
    return CoverConfig(**fields).build(site)


def texts(rows=6, first=0):
    ids = torch.randint(1, WORDS, (rows, 5), generator=rng_for(0, "ids"))
    return Batch(ids, ids.roll(-1, 1), torch.arange(first, first + rows))


def step(number=0, round_number=1):
    return Step(0, round_number, number, 5, stock=Public())


def companies(sent, messages):
    """Return the texts that each row crosses with, in any order."""
    return [
        sorted(map(tuple, each.tolist()))
        for each in sent.inputs.unflatten(0, (messages, -1)).transpose(0, 1)
    ]


@pytest.mark.parametrize("fixed", [False, True])
def test_each_text_is_among_k_and_comes_back_itself(fixed):
    method, at = cover(messages=4, fixed=fixed), step()
    sent = method.transform(texts(), at)
    assert sent.inputs.shape == (24, 7)
    assert (sent.labels[:, 5:] == IGNORED).all()
    torch.testing.assert_close(sent.labels[:, :5], texts().labels)
    back = method.decode(sent.inputs[..., None], at)[..., 0]
    torch.testing.assert_close(back[:, :5], texts().inputs)
    assert len(at.memo[method][0].unique()) > 1  # not all in one place


def test_its_place_is_another_in_other_steps():
    method = cover(messages=8)
    places = []
    for number in range(4):
        at = step(number)
        method.transform(texts(), at)
        places.append(at.memo[method][0])
    assert len(torch.stack(places).unique(dim=0)) == 4


def test_fixed_covers_keep_a_text_company_in_any_batch_and_epoch_and_fresh_ones_do_not():
    kept, fresh = cover(messages=3), cover(messages=3, fixed=False)
    first, again = (companies(kept.transform(texts(), step(n, r)), 3) for n, r in ((0, 1), (7, 2)))
    assert first == again
    few = texts()
    part = Batch(few.inputs[2:4], few.labels[2:4], few.indices[2:4])
    assert companies(kept.transform(part, step(3, 5)), 3) == first[2:4]
    one, other = (companies(fresh.transform(texts(), step(n, r)), 3) for n, r in ((0, 1), (7, 2)))
    assert one != other


def test_hashes_are_spread():
    drawn = hash_indices(torch.arange(1000).numpy(), 3, 12345) % 10
    counts = torch.from_numpy(drawn.astype("int64")).flatten().bincount()
    assert counts.min() > 240
    assert counts.max() < 360


def test_gradients_are_the_private_texts_alone_and_they_are_exact():
    """Which is what gives them away."""
    method, at = cover(messages=3), step()
    sent = method.transform(texts(), at)
    u = torch.randn(*sent.inputs.shape, 4, generator=rng_for(0, "u")).requires_grad_()
    nn.functional.gelu(method.decode(u, at)).sum().backward()
    rows = u.grad.unflatten(0, (3, 6)).flatten(2).any(-1)
    assert (rows.sum(0) == 1).all()
    assert torch.equal(rows.long().argmax(0), at.memo[method][0])
