"""The adapter: nothing at first, causal in both halves, and the same token by token."""

import pytest
import torch
from torch import Tensor

from simsplit.methods.adapters import Adapter, make_attention_mask
from simsplit.methods.method import Step
from simsplit.parties.sessions import Session
from simsplit.seeds import isolate, rng_for

WIDTH, LENGTH = 16, 7


def adapter(*, blank: bool = False) -> Adapter:
    with isolate(0, "adapter"):
        made = Adapter(WIDTH, 4)
        if not blank:
            torch.nn.init.normal_(made.out.weight, std=0.3)
    return made


def step(**fields) -> Step:
    return Step(0, 1, 0, 5, **fields)


def values(name: str, rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=rng_for(0, name))


def refine(made: Adapter, head: Tensor, trunk: Tensor, **fields) -> Tensor:
    at = step(**fields)
    return made.refine(trunk, made.encode(head, at), at)


def test_it_adds_nothing_at_first_to_the_bit():
    trunk = values("trunk")
    assert torch.equal(refine(adapter(blank=True), values("head"), trunk), trunk)


@pytest.mark.parametrize("changed", ["head", "trunk"])
def test_a_token_never_changes_what_comes_before_it(changed):
    made, parts = adapter(), {"head": values("head"), "trunk": values("trunk")}
    before = refine(made, **parts)
    for place in range(LENGTH):
        other = parts[changed].clone()
        other[:, place] *= -1  # what is added to all values, norms would take away
        after = refine(made, **{**parts, changed: other})
        assert torch.equal(before[:, :place], after[:, :place])
        assert (before[:, place:] != after[:, place:]).any(-1).all()


def test_padding_on_the_left_is_read_by_nobody():
    made, head, trunk = adapter(), values("head"), values("trunk")
    mask = torch.arange(LENGTH) >= torch.tensor([[0], [3]])
    padded = refine(made, head, trunk, mask=mask)
    short = refine(made, head[1:, 3:], trunk[1:, 3:])
    torch.testing.assert_close(padded[1:, 3:], short)
    assert torch.isfinite(padded).all()


def test_who_attends_to_what_by_hand():
    mask = torch.tensor([[False, True, True]])
    expected = torch.tensor([[True, False, False], [False, True, False], [False, True, True]])
    assert torch.equal(make_attention_mask(3, 3, mask, mask.device), expected[None, None])
    assert torch.equal(make_attention_mask(1, 3, mask, mask.device), expected[None, None, 2:])
    assert torch.equal(
        make_attention_mask(2, 3, None, mask.device), torch.ones(3, 3).tril().bool()[1:]
    )


@pytest.mark.parametrize("left", [None, 3])
def test_a_session_refines_as_a_whole_text_does(left):
    """Three tokens, then one at a time; with padding, and with a text that ends."""
    made, head, trunk = adapter(), values("head"), values("trunk")
    mask = None if left is None else torch.arange(LENGTH) >= torch.tensor([[0], [2]])
    whole = refine(made, head, trunk, mask=mask)
    session, rows = Session(), torch.arange(2)
    for start, end in [(0, 3), (3, 4), (4, 5), (5, 6), (6, 7)]:
        news = () if mask is None or start else (mask[:, :3],)
        if start == left and left is not None:
            rows, news = rows[1:], (torch.tensor([1]),)
        session.extend(head[rows, start:end], news)
        got = refine(made, head[rows, start:end], trunk[rows, start:end], session=session)
        torch.testing.assert_close(got, whole[rows, start:end], rtol=1e-5, atol=1e-6)
