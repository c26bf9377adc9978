"""Split-and-Denoise by hand: how long noise is, where it points, and who learns what from it."""

import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods.method import Site, Step
from simsplit.methods.snd import DENOISE, Snd, SndConfig
from simsplit.methods.stack import Stack

WIDTH = 16


def snd(**fields) -> Snd:
    site = Site("client", Leg.SMASHED, (6, WIDTH), 0, torch.device("cpu"))
    made = SndConfig(**{"heads": 2, "layers": 1, "at": "cut", **fields}).build(site)
    assert isinstance(made, Snd)
    return made


def step(number: int = 0, phase: str = "train", **fields) -> Step:
    return Step(0, 1, number, 5, phase=phase, **fields)


def tokens(rows: int = 200) -> torch.Tensor:
    return 3 * torch.randn(rows, 6, WIDTH, generator=torch.Generator().manual_seed(0))


def test_noise_is_of_the_length_and_of_any_direction():
    z = tokens()
    noise = snd(noise=0.5, clip=None).encode(z, step()) - z
    lengths = noise.norm(dim=-1)
    assert lengths.mean().item() == pytest.approx(0.5 * z.norm(dim=-1).mean().item(), rel=0.02)
    # Gamma(width): its deviation is its mean over sqrt(width)
    assert (lengths.std() / lengths.mean()).item() == pytest.approx(WIDTH**-0.5, rel=0.1)
    directions = noise / lengths[..., None]
    assert directions.mean((0, 1)).abs().max() < 0.03
    assert torch.allclose(directions.square().mean((0, 1)), torch.tensor(1 / WIDTH), atol=0.01)


def test_eta_says_how_long_it_is_whatever_the_tokens():
    for scale in (1.0, 100.0):
        z = scale * tokens()
        noise = snd(eta=4.0, clip=None).encode(z, step()) - z
        assert noise.norm(dim=-1).mean().item() == pytest.approx(WIDTH / 4.0, rel=0.02)


def test_an_element_of_its_own_length_points_elsewhere():
    by_token = snd(clip=None).encode(torch.zeros(4, 6, WIDTH) + 1, step())
    by_element = snd(clip=None, lengths="element").encode(torch.zeros(4, 6, WIDTH) + 1, step())
    assert not torch.allclose(by_token, by_element)


def test_tokens_are_clipped_to_the_clean_ones_average_norm():
    z = tokens()
    sent = snd(noise=2.0, clip=1.0).encode(z, step())
    limit = z.norm(dim=-1).mean()
    assert sent.norm(dim=-1).max() <= limit * 1.0001
    assert (sent.norm(dim=-1) > 0.999 * limit).float().mean() > 0.9


def test_other_steps_have_other_noise_and_the_same_one_the_same():
    z = tokens(2)
    first, again, other = (snd().encode(z, step(number)) for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_public_steps_teach_the_denoiser_alone_from_the_plain_rows_behind():
    method, at = snd(), step(phase=DENOISE)
    z = tokens(4).requires_grad_()
    sent = method.encode(z, at)
    assert torch.equal(sent[4:], z)
    back = (2 * sent).detach()
    made = method.decode(back, at)
    error = method.compute_tail_loss(at)
    assert error is not None
    assert error.item() == pytest.approx((back[:4] - 2 * z).square().mean().item(), rel=1e-4)
    error.backward()
    assert method.module is not None
    assert method.module.out.weight.grad.abs().sum() > 0
    assert z.grad is None
    assert made.shape == z.shape


@pytest.mark.parametrize("at", ["cut", "embeddings"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_denoiser_is_told_the_noise_as_it_is_after_clipping(at, clip):
    method, now, z = snd(at=at, clip=clip), step(), tokens(3)
    made = (method.encode if at == "cut" else method.embed)(z, now)
    assert torch.equal(now.memo[method][0], z)
    torch.testing.assert_close(now.memo[method][1], made - z)
    if clip:
        assert made.norm(dim=-1).max() <= z.norm(dim=-1).mean() * 1.0001


def test_the_denoiser_has_a_rate_of_its_own():
    method = snd(lr=3e-4)
    optimizer = method.make_optimizer([*method.module.parameters()])
    assert {group["lr"] for group in optimizer.param_groups} == {3e-4}
    assert SndConfig().lr == 1e-4


def test_embeddings_are_noised_unless_the_cut_is_named():
    assert SndConfig().at == "embeddings"
    method, z = snd(at="embeddings"), tokens(2)
    assert method.encode(z, step()) is z
    assert not torch.allclose(method.embed(z, step()), z)


def test_public_texts_come_twice_and_are_noised_once():
    method, now, x = snd(at="embeddings"), step(phase=DENOISE), tokens(4)
    batch = Batch(torch.arange(8).view(2, 4), torch.zeros(2, 4), torch.arange(2))
    assert method.transform(batch, step()) is batch
    twice = method.transform(batch, now)
    assert torch.equal(twice.inputs, torch.cat([batch.inputs, batch.inputs]))
    assert twice.labels is batch.labels
    made = method.embed(x, now)
    assert torch.equal(made[2:], x[2:])
    assert not torch.allclose(made[:2], x[:2])
    assert method.encode(made, now) is made
    method.decode(torch.tanh(made), now)
    error = method.compute_tail_loss(now)
    wanted = (torch.tanh(made[:2]) - torch.tanh(x[2:])).square().mean()
    assert error.item() == pytest.approx(wanted.item(), rel=1e-4)  # at first it is the identity


def test_what_the_head_embeds_is_changed_within_a_step_alone():
    head = torch.nn.Module()
    head.tokens = torch.nn.Embedding(5, WIDTH)
    method, ids = snd(at="embeddings"), torch.tensor([[1, 2, 3]])
    stack = Stack([method], [], "client")
    plain = head.tokens(ids)
    with stack.embedding(head, step()):
        noisy = head.tokens(ids)
    assert not torch.allclose(noisy, plain)
    assert torch.equal(head.tokens(ids), plain)


@pytest.mark.slow
def test_a_denoiser_learns_to_undo_noise_it_is_shown():
    method = snd(layers=2)
    assert method.module is not None
    optimizer = torch.optim.Adam(method.module.parameters(), 3e-3)
    errors = []
    for number in range(150):
        at = step(number, phase=DENOISE)
        sent = method.encode(tokens(32), at)
        method.decode(torch.tanh(sent), at)
        error = method.compute_tail_loss(at)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.5 * errors[0]


def test_private_steps_pass_gradients_through_a_frozen_denoiser_that_looks_at_no_later_token():
    method, at = snd(), step()
    with torch.no_grad():
        method.module.out.weight.normal_(generator=torch.Generator().manual_seed(1))
    method.encode(tokens(2), at)
    u = tokens(2).requires_grad_()
    made = method.decode(u, at)
    made[:, 2].sum().backward()
    assert all(weight.grad is None for weight in method.module.parameters())
    assert u.grad[:, 3:].abs().max() == 0
    assert u.grad[:, :3].abs().min(dim=-1).values.max() > 0
    assert method.compute_tail_loss(at) is None


def test_evaluation_may_be_plain():
    z = tokens(2)
    at = step(training=False)
    method = snd(inference=False)
    assert torch.equal(method.encode(z, at), z)
    assert torch.equal(method.decode(z, at), z)


def test_heads_must_divide_the_width():
    with pytest.raises(ScenarioError, match=r"method\.0\.heads: .*16, got 3"):
        SndConfig(heads=3).compute_sent_shape((6, 16), "method.0")
