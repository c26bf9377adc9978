"""Matching embeddings with the sent output: patches, batches, and early stops."""

import pytest
import torch

from simsplit.attacks.matching import (
    Before,
    EmbeddingDescent,
    HeadTarget,
    find_nearest,
    match_target,
)
from simsplit.attacks.session_attack import group_by_length
from simsplit.machine import autocast_for
from simsplit.models.language import CausalLM
from simsplit.seeds import rng_for

WIDTH = 16
FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])


def head_of(family, layers=2):
    model = CausalLM(
        sizes={"family": family, "width": WIDTH, "layers": 4, "public": True}, head=layers, tail=1
    )
    head = model.segment("head", (30,), 2, 0).eval()
    with torch.no_grad():
        for weight in head.parameters():  # draws are near zero, and all texts look alike
            weight.add_(0.2 * torch.randn(weight.shape, generator=rng_for(0, "weights")))
    return head.requires_grad_(requires_grad=False)


def draw_embedded(rows=3, length=11, name="texts"):
    return torch.randn(rows, length, WIDTH, generator=rng_for(0, name))


def run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@FAMILIES
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_behind_a_cache_a_patch_is_what_it_is_in_the_whole_text(family, layers):
    head, x = head_of(family, layers), draw_embedded()
    for begin, end in ((0, 4), (4, 8), (8, 11)):
        before = Before.of(head, x[:, :begin])
        part = before.onwards(head, x[:, begin:end])
        torch.testing.assert_close(
            part, head.forward_embedded(x)[:, begin:end], rtol=1e-4, atol=1e-5
        )


@FAMILIES
def test_a_patchs_gradient_is_that_of_the_text_with_what_is_before_it_frozen(family):
    head, x, aim = head_of(family), draw_embedded(), draw_embedded(name="aim")
    real, here = torch.ones(3, 4, dtype=torch.bool), slice(4, 8)
    moving = x[:, here].clone().requires_grad_()
    before = Before.of(head, x[:, :4])
    wanted = HeadTarget(aim[:, here], real)
    wanted.losses(before.onwards(head, moving)).sum().backward()
    whole = x.clone().requires_grad_()
    wanted.losses(head.forward_embedded(whole)[:, here]).sum().backward()
    assert whole.grad[:, :4].abs().max() > 1e-4, "frozen, and not of no influence"
    torch.testing.assert_close(moving.grad, whole.grad[:, here], rtol=1e-3, atol=1e-6)
    # again, for a cache must not have grown by a pass
    assert torch.equal(before.onwards(head, x[:, here]), before.onwards(head, x[:, here]))


def test_a_session_has_equal_results_whatever_stands_beside_it():
    head, x, start = head_of("llama"), draw_embedded(), draw_embedded(name="start")
    start[1] = x[1] + 0.01  # one is nearly there, and is left early
    sent = head.forward_embedded(x)
    real = torch.arange(11) < torch.tensor([11, 8, 5])[:, None]
    how = EmbeddingDescent(steps=40, lr=0.05, stop_after=4)
    together = run(match_target(start, head.forward_embedded, HeadTarget(sent, real), how))
    for row in range(3):
        one = slice(row, row + 1)
        alone = run(
            match_target(start[one], head.forward_embedded, HeadTarget(sent[one], real[one]), how)
        )
        kept = real[row]
        torch.testing.assert_close(together[row, kept], alone[0, kept], rtol=1e-3, atol=1e-4)


def test_what_comes_back_is_the_nearest_of_all_steps():
    """A rate that is far too high leaves the aim again; the start is one of the steps."""
    head, x = head_of("llama"), draw_embedded()
    aim = HeadTarget(head.forward_embedded(x), torch.ones(3, 11, dtype=torch.bool))
    assert torch.equal(
        run(match_target(x, head.forward_embedded, aim, EmbeddingDescent(5, 10.0, 0))), x
    )
    near = x + 0.1
    result = run(match_target(near, head.forward_embedded, aim, EmbeddingDescent(30, 0.01, 0)))
    assert (
        aim.losses(head.forward_embedded(result)) < 0.5 * aim.losses(head.forward_embedded(near))
    ).all()


def test_padding_counts_for_nothing():
    sent, made = draw_embedded(2, 4), draw_embedded(2, 4, "made")
    real = torch.tensor([[True, True, True, False], [True, False, False, False]])
    wild = made.masked_fill(~real[..., None], 1e6)
    assert torch.equal(HeadTarget(sent, real).losses(made), HeadTarget(sent, real).losses(wild))
    expected = (made[0, :3] - sent[0, :3]).square().mean()
    torch.testing.assert_close(HeadTarget(sent, real).losses(made)[0], expected)


def test_the_nearest_token_is_by_direction_alone():
    table = torch.tensor([[1.0, 0.0], [0.0, 10.0], [-1.0, -1.0]])
    asked = torch.tensor([[[0.1, 0.0], [0.4, 0.5], [-9.0, -8.0]]])
    assert find_nearest(asked, table).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("steps", [1, 3])
def test_so_many_steps_and_no_more(steps):
    head, x = head_of("llama"), draw_embedded()
    aim = HeadTarget(head.forward_embedded(x), torch.ones(3, 11, dtype=torch.bool))
    taken = sum(
        1 for _ in match_target(x + 1, head.forward_embedded, aim, EmbeddingDescent(steps, 0.01, 0))
    )
    assert taken == steps


def test_matching_in_bf16_ends_where_fp32_does():
    """Within 2 % of the embeddings' size, and nearest to the same tokens."""
    head, x = head_of("llama"), draw_embedded()
    aim = HeadTarget(head.forward_embedded(x), torch.ones(3, 11, dtype=torch.bool))
    near = x + 0.1
    how = EmbeddingDescent(30, 0.01, 0)
    full = run(match_target(near, head.forward_embedded, aim, how))
    bf16 = how._replace(autocast=autocast_for("bf16", x.device))
    half = run(match_target(near, head.forward_embedded, aim, bf16))
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    assert (full - half).norm() < 0.02 * full.norm()


def test_sessions_in_groups_are_of_similar_length_and_each_is_there_once():
    groups = group_by_length(torch.tensor([9, 3, 7, 4, 8]), 2)
    assert [rows.tolist() for rows in groups] == [[1, 3], [2, 4], [0]]
    assert [rows.tolist() for rows in group_by_length(torch.tensor([9, 3]), None)] == [[0, 1]]
