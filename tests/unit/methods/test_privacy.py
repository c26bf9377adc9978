"""dp_forward, dp_sgd and naive_mix by hand."""

import math

import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.errors import RunFailedError, ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.dp_forward import compute_gaussian_sigma
from simsplit.methods.method import Method, Site, Step
from simsplit.scenario import parse
from simsplit.seeds import rng_for


def build(kind: str, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (6, 8), 0, torch.device("cpu"))
    return METHODS[kind](**fields).build(site)


def step(number: int = 0, **fields) -> Step:
    return Step(0, 1, number, 5, **fields)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng_for(0, "values"))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (8.0, 1e-3)])
def test_the_analytic_noise_is_exact_and_less_than_the_classic(epsilon, delta):
    sigma = compute_gaussian_sigma(epsilon, delta)
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    a, b = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    leaked = phi(torch.tensor(a).double()) - math.exp(epsilon) * phi(torch.tensor(b).double())
    assert leaked.item() == pytest.approx(delta, rel=1e-4)
    if epsilon < 1:
        assert sigma < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_a_known_value_of_the_analytic_mechanism():
    # Balle and Wang's calibration at (1, 1e-5)
    assert compute_gaussian_sigma(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-3)


@pytest.mark.parametrize(
    ("per", "shape", "axes"),
    [
        ("sample", (4, 6, 8), (1, 2)),
        ("token", (4, 6, 8), 2),
        ("sample", (4, 3, 5, 5), (1, 2, 3)),
        ("sample", (4, 9), 1),
    ],
    ids=["texts", "tokens", "images", "vectors"],
)
def test_what_is_sent_is_clipped_to_the_norm(per, shape, axes):
    method = build("dp_forward", sigma=0.0, clip=0.5, relative=False, per=per)
    z = values(*shape)
    z[0] *= 1e-3
    sent = method.encode(z, step())
    norms = sent.square().sum(axes).sqrt()
    assert norms.max() <= 0.5 + 1e-6
    assert torch.equal(sent[0], z[0]), "what is short enough is unchanged"
    again = method.encode(torch.cat([z[:1], 100 * z[1:]]), step())
    assert torch.equal(again[0], sent[0]), "absolute clipping knows no other rows"


@pytest.mark.parametrize("kind", ["dp_forward", "dp_sgd"])
def test_half_precision_lets_no_row_be_longer(kind):
    """A norm that is rounded to bf16 is up to 0.4 % off, and so would the sensitivity be."""
    x = values(64, 20_000).bfloat16()
    method = build(kind, clip=0.5, relative=False, **{"dp_sgd": {"multiplier": 0.0}}.get(kind, {}))
    method.config = method.config.model_copy(update={"sigma": 0.0})
    sent = (
        method.encode(x, step())
        if kind == "dp_forward"
        else method.split_gradient(x, step())[0].grad
    )
    assert sent.dtype == x.dtype
    assert sent.float().norm(dim=1).max() <= 0.5 * 1.001


def test_noise_is_of_the_size_that_was_asked_for_and_new_in_each_step():
    z = values(200, 6, 8)
    method = build("dp_forward", sigma=2.0, clip=1e6, relative=False)
    added = method.encode(z, step()) - z
    assert added.square().mean().sqrt().item() == pytest.approx(
        2 * z.square().mean().sqrt().item(), rel=0.02
    )
    assert not torch.equal(method.encode(z, step(1)) - z, added)
    budget = build("dp_forward", epsilon=1.0, clip=3.0, relative=False)
    z = 1e-6 * z
    noise = (budget.encode(z, step()) - z).square().mean().sqrt().item()
    assert noise == pytest.approx(2 * 3.0 * compute_gaussian_sigma(1.0, 1e-5), rel=0.02)


def test_embeddings_are_clipped_and_noised_where_they_are_named():
    method, cut = (
        build("dp_forward", sigma=0.5, per="token", at=at) for at in ("embeddings", "cut")
    )
    x = values(4, 6, 8)
    assert method.changes_embeddings
    assert not cut.changes_embeddings
    assert method.encode(x, step()) is x
    assert torch.equal(method.embed(x, step()), cut.encode(x, step()))


def test_evaluation_may_be_left_alone():
    z = values(4, 6, 8)
    assert build("dp_forward", inference=False).encode(z, step(training=False)) is z
    assert not torch.equal(build("dp_forward").encode(z, step(training=False)), z)


@pytest.mark.parametrize("shape", [(300, 6, 8), (300, 64)], ids=["texts", "vectors"])
def test_gradients_are_clipped_sample_by_sample_then_noised(shape):
    grad = values(*shape)
    grad[0] *= 100
    (share,) = build("dp_sgd", multiplier=0.0, clip=1.0, relative=False).split_gradient(
        grad, step()
    )
    assert share.grad.flatten(1).norm(dim=1).max() <= 1 + 1e-5
    (noised,) = build("dp_sgd", multiplier=0.5, clip=2.0, relative=False).split_gradient(
        grad, step()
    )
    (plain,) = build("dp_sgd", multiplier=0.0, clip=2.0, relative=False).split_gradient(
        grad, step()
    )
    added = (noised.grad - plain.grad).square().mean().sqrt().item()
    assert added == pytest.approx(0.5 * 2.0, rel=0.02)


def test_only_noise_that_knows_no_data_has_a_guarantee():
    """Its size is given in units of how far a replaced row can move: twice the norm."""
    budget = METHODS["dp_forward"](epsilon=1.0, clip=3.0, relative=False).release
    assert (budget.leg, budget.of) == (Leg.SMASHED, "sample")
    assert budget.multiplier == pytest.approx(3.7306, abs=1e-3)
    grads = METHODS["dp_sgd"](multiplier=0.5, clip=7.0, relative=False).release
    assert (grads.leg, grads.multiplier) == (Leg.FEATURES_GRAD, 0.25)
    without = {
        "dp_forward": [{"epsilon": 1.0}, {"sigma": 1.0, "relative": False}, {}],
        "dp_sgd": [{}, {"noise": "laplace", "relative": False}, {"multiplier": 0.0}],
        "noise": [{"sigma": 5.0}],
    }
    for kind, several in without.items():
        for fields in several:
            assert isinstance(METHODS[kind](**fields).release, str), (kind, fields)
    assert METHODS["cast"]().release is None


def test_tokens_are_of_texts():
    fields = {"kind": "dp_forward", "per": "token"}
    with pytest.raises(ScenarioError, match=r"method.0.per:.*token.*sample"):
        parse({"data": {"source": "digits"}, "method": [fields]})


def test_laplace_noise_has_its_scale():
    grad = values(300, 6, 8)
    (share,) = build("dp_sgd", noise="laplace", multiplier=0.5).split_gradient(grad, step())
    added = share.grad - grad
    size = 0.5 * grad.square().mean().sqrt().item()
    assert added.abs().mean().item() == pytest.approx(size, rel=0.03)  # a Laplace's mean size
    assert added.square().mean().sqrt().item() == pytest.approx(math.sqrt(2) * size, rel=0.03)


def test_naive_mixtures_are_of_two_texts_and_so_is_the_loss():
    method, at = build("naive_mix"), step()
    z, labels = values(5, 6, 8), torch.arange(5)
    batch = method.transform(Batch(z, labels, labels), at)
    assert batch.inputs is z
    partners, share = at.memo[method]
    assert 0 < share < 1
    assert sorted(partners.tolist()) == list(range(5))
    mixed = method.encode(z, at)
    torch.testing.assert_close(mixed[2], share * z[2] + (1 - share) * z[partners[2]])
    loss = lambda outputs, of: (outputs * of).sum()  # noqa: E731
    outputs = values(5)
    expected = share * loss(outputs, labels) + (1 - share) * loss(outputs, labels[partners])
    torch.testing.assert_close(method.compute_task_loss(outputs, labels, loss, at), expected)


def test_nothing_is_mixed_in_evaluation():
    method, at = build("naive_mix"), step(training=False)
    z = values(5, 6, 8)
    method.transform(Batch(z, torch.arange(5), torch.arange(5)), at)
    assert method.encode(z, at) is z
    assert method.compute_task_loss(z, z, torch.add, at) is None


def draw_partners(count: int, number: int, **fields) -> torch.Tensor:
    method, at = build("naive_mix", **fields), step(number)
    labels = torch.arange(count)
    method.transform(Batch(values(count, 6, 8), labels, labels), at)
    return at.memo[method][0]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_with_other_partners_no_text_is_mixed_with_itself(count):
    """All pairings without a fixed point occur, and none with one; published mixup draws both."""
    texts = torch.arange(count)
    others = [draw_partners(count, number, partners="others") for number in range(60)]
    assert all(sorted(each.tolist()) == texts.tolist() for each in others)
    assert not any((each == texts).any() for each in others)
    assert len({tuple(each.tolist()) for each in others}) >= min(2, count - 1)
    assert any((draw_partners(count, number) == texts).any() for number in range(60))


def test_a_text_alone_has_no_other_to_be_mixed_with():
    with pytest.raises(RunFailedError, match=r"naive_mix.*batch_size.*drop_last"):
        draw_partners(1, 0, partners="others")
    assert draw_partners(1, 0).tolist() == [0]
    with pytest.raises(ScenarioError, match=r"method\.0\.partners: .*2.*1"):
        parse(
            {
                "data": {"source": "python_docs"},
                "model": {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}},
                "method": [{"kind": "naive_mix", "partners": "others"}],
                "train": {"batch_size": 1},
            }
        )


def test_laplace_noise_on_gradients_has_its_size_in_half_precision():
    grad = torch.ones(200, 64, dtype=torch.bfloat16)
    (share,) = build("dp_sgd", noise="laplace", multiplier=1.0).split_gradient(grad, step())
    added = (share.grad - grad).double()
    assert added.std().item() == pytest.approx(2**0.5, rel=0.05)
    assert added.abs().max() < 20
