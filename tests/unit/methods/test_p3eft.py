"""P3EFT: secret mixtures whose columns sum to one, and a regulariser as published."""

import numpy as np
import pytest
import torch
from builders import run_to_end
from sklearn.linear_model import LogisticRegression
from texts import api_scenario, text_scenario

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import Site, Step
from simsplit.methods.p3eft import (
    P3eftConfig,
    compute_opposite_loss,
    draw_mixing_weights,
    scale_together,
)
from simsplit.seeds import rng_for

CPU = torch.device("cpu")
SETS, WIDTH = 3, 5


def site(sets: int = SETS, seed: int = 0) -> Site:
    shape = (sets, WIDTH)
    return Site("client", Leg.SMASHED, (7,), seed, CPU, features=shape, adapters=sets > 0)


def states(rows: int = 12, sets: int = SETS) -> torch.Tensor:
    return torch.randn(rows, sets, WIDTH, generator=rng_for(0, "states"))


def step(labels: torch.Tensor | None = None, *, training: bool = True) -> Step:
    return Step(0, 0, 0, 0, training=training, labels=labels)


@pytest.mark.parametrize("sets", [1, 2, 3, 5])
def test_over_the_sets_the_weights_sum_to_one(sets):
    weights = draw_mixing_weights(sets, (200,), 1.0, 0)
    assert torch.allclose(weights.sum(0), torch.ones(200), atol=1e-5)
    if sets > 1:  # N(0, sets - 1) about 1 / sets
        assert weights.std() == pytest.approx((sets - 1) ** 0.5, rel=0.15)
        assert weights.mean() == pytest.approx(1 / sets, abs=1e-6)


def test_the_weights_are_antisymmetric_as_published():
    one, other = draw_mixing_weights(2, (9,), 2.0, 4)
    assert torch.allclose(one - 0.5, 0.5 - other, atol=1e-6)


def test_the_head_gets_the_mixture_that_the_paper_defines():
    method, u = P3eftConfig().build(site()), states()
    weights = draw_mixing_weights(SETS, (WIDTH,), 1.0, 0)
    wanted = sum(weights[i] * u[:, i] for i in range(SETS))
    assert torch.allclose(method.decode(u, step()), wanted)
    mean = P3eftConfig(mixing=False).build(site()).decode(u, step())
    assert torch.allclose(mean, u.mean(1))


def test_where_all_sets_agree_it_does_not_matter_how_they_are_mixed():
    u = states(sets=1).expand(-1, SETS, -1)
    made = [P3eftConfig().build(site(seed=seed)).decode(u, step()) for seed in range(3)]
    for each in made:
        assert torch.allclose(each, u[:, 0], atol=1e-5)


def test_other_seeds_have_other_secrets():
    assert not torch.equal(
        draw_mixing_weights(2, (9,), 1.0, 0), draw_mixing_weights(2, (9,), 1.0, 1)
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_the_regulariser_is_the_published_one(classes):
    u, labels = states(), torch.arange(12) % classes
    method = P3eftConfig(alpha=0.5).build(site())
    at = step(labels)
    method.decode(u, at)
    wanted = 0.0
    for i in range(SETS):
        reader = LogisticRegression(random_state=0, max_iter=150).fit(u[:, i], labels)
        scores = u[:, i].numpy() @ reader.coef_.T + reader.intercept_
        if classes == 2:
            opposite = np.where(labels == 1, scores[:, 0], -scores[:, 0])
            wanted += np.logaddexp(0, opposite).mean()
        else:
            away = -scores
            wanted += (np.log(np.exp(away).sum(1)) - away[np.arange(12), labels]).mean()
    assert method.compute_tail_loss(at).item() == pytest.approx(0.5 * wanted, rel=1e-5)


def test_its_gradient_pulls_the_classes_together():
    labels = torch.arange(40) % 2
    h = (torch.randn(40, WIDTH, generator=rng_for(1)) + 2 * labels[:, None]).requires_grad_()
    loss = compute_opposite_loss(h, labels, 0)
    loss.backward()
    with torch.no_grad():
        moved = h - 5 * h.grad
    assert _gap(moved, labels) < 0.9 * _gap(h.detach(), labels)


def _gap(h: torch.Tensor, labels: torch.Tensor) -> float:
    return (h[labels == 1].mean(0) - h[labels == 0].mean(0)).norm().item()


@pytest.mark.parametrize("labels", [torch.zeros(12, dtype=torch.int64), None])
def test_there_is_no_term_without_two_classes(labels):
    method, at = P3eftConfig().build(site()), step(labels)
    method.decode(states(), at)
    assert method.compute_tail_loss(at) is None


def test_nothing_is_kept_in_evaluation():
    method, at = P3eftConfig().build(site()), step(torch.arange(12) % 2, training=False)
    method.decode(states(), at)
    assert method.compute_tail_loss(at) is None
    assert not at.memo


def test_without_an_axis_of_adapters_there_is_nothing_to_mix():
    u, labels = torch.randn(12, 2, 3), torch.arange(12) % 2
    at = step(labels)
    method = P3eftConfig().build(site(sets=0))
    assert torch.equal(method.decode(u, at), u)
    assert method.compute_tail_loss(at).item() == pytest.approx(
        compute_opposite_loss(u.flatten(1), labels, 0)
    )


def test_weights_can_be_learned_as_in_the_published_code():
    method = P3eftConfig(weights="learned").build(site())
    assert [weight.shape for weight in method.module.parameters()] == [(SETS, WIDTH)]
    method.decode(states(), step()).sum().backward()
    assert method.module.weights.grad is not None
    assert P3eftConfig().build(site()).module is None


def test_the_shift_is_read_against_the_last_set_which_stays_as_it_is():
    u, labels = states().requires_grad_(), torch.arange(12) % 2
    method, at = P3eftConfig(alpha=0, shift_alpha=0.5).build(site()), step(labels)
    weights = draw_mixing_weights(SETS - 1, (WIDTH,), 1.0, 0)
    wanted = sum(weights[i] * u[:, i] for i in range(SETS - 1))
    mixed = method.decode(u, at)
    assert torch.allclose(mixed, wanted)
    term = method.compute_tail_loss(at)
    each = [compute_opposite_loss(u[:, i] - u[:, -1], labels, 0) for i in range(SETS - 1)]
    assert term.item() == pytest.approx(0.5 * sum(each).item(), rel=1e-5)
    (mixed.sum() + term).backward()
    assert u.grad[:, :-1].abs().sum() > 0
    assert u.grad[:, -1].abs().sum() == 0


def test_both_terms_add_up():
    u, labels, terms = states(), torch.arange(12) % 2, []
    for alpha, shift_alpha in ((0.3, 0.5), (0.3, 0), (0, 0.5)):
        method, at = P3eftConfig(alpha=alpha, shift_alpha=shift_alpha).build(site()), step(labels)
        method.decode(u, at)
        terms.append(method.compute_tail_loss(at).item())
    # Alone, the term of features has one set more to read.
    last = 0.3 * compute_opposite_loss(u[:, -1], labels, 0).item()
    assert terms[0] == pytest.approx(terms[1] - last + terms[2], rel=1e-5)


def test_small_features_evade_the_published_reader_and_not_the_scaled_one():
    labels = torch.arange(40) % 2
    h = torch.randn(40, 1, WIDTH, generator=rng_for(1, "states")) + 2 * labels[:, None, None]
    losses = {}
    for scaled in (False, True):
        method = P3eftConfig(alpha=1, scaled=scaled).build(site(sets=1))
        for size in (1.0, 0.1):
            at = step(labels)
            method.decode(size * h, at)
            losses[scaled, size] = method.compute_tail_loss(at).item()
    assert losses[False, 0.1] < 0.6 * losses[False, 1.0]
    assert losses[True, 0.1] == pytest.approx(losses[True, 1.0], rel=1e-4)


def test_the_scaled_reader_keeps_what_is_loud_loud():
    h = torch.randn(40, 8, generator=rng_for(1)) * torch.logspace(0, -3, 8) + 5
    scaled = scale_together(h)
    assert scaled.mean(0).abs().max() < 1e-4
    assert scaled.square().sum(1).mean().sqrt().item() == pytest.approx(4, rel=1e-5)
    assert torch.allclose(scaled / scaled.std(), (h - h.mean(0)) / (h - h.mean(0)).std(), atol=1e-4)


def test_no_gradient_of_the_scaled_reader_shrinks_or_stretches_features():
    labels = torch.arange(40) % 2
    h = (torch.randn(40, WIDTH, generator=rng_for(1)) + 2 * labels[:, None]).requires_grad_()
    compute_opposite_loss(scale_together(h), labels, 0).backward()
    centred = h.detach() - h.detach().mean(0)
    assert h.grad.norm() > 1e-3
    assert abs((h.grad * centred).sum()) < 1e-5 * h.grad.norm() * centred.norm()


def test_the_shift_of_adapters_without_effect_is_not_blown_up():
    """At the first step the shift is what rounding leaves."""
    rounding = 1e-7 * torch.randn(40, WIDTH, generator=rng_for(1))
    h = rounding.requires_grad_()
    scale_together(h).sum().backward()
    assert torch.allclose(h.grad.sum(), torch.tensor(0.0), atol=1e-4)
    assert h.grad.abs().max() <= 1


def test_under_a_u_shape_padding_is_not_read():
    u, labels = torch.randn(12, 4, 3, generator=rng_for(2, "states")), torch.arange(12) % 2
    mask = torch.arange(4) < torch.arange(12)[:, None] % 4 + 1
    terms = []
    for padding in (0.0, 9.0):
        at = step(labels)
        method = P3eftConfig().build(site(sets=0))
        method.transform(Batch(mask.long(), labels, torch.arange(12), mask), at)
        method.decode(torch.where(mask[:, :, None], u, padding * labels[:, None, None]), at)
        terms.append(method.compute_tail_loss(at).item())
    assert terms[0] == pytest.approx(terms[1])


def test_in_a_run_the_last_set_stays_without_effect_however_gradients_cross(tmp_path):
    given = api_scenario(
        tmp_path,
        "bert",
        model={"adapters": 3},
        clients={"count": 1},
        schedule={"rounds": 2},
        train={"client": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.01}},
        method=[
            {"kind": "p3eft", "alpha": 0.1, "shift_alpha": 0.1},
            {"kind": "private_backprop", "noise": "gaussian"},
        ],
        attacks=[{"kind": "spectral", "views": ["features", "shift"]}],
        targets={"count": 24},
    )
    live = run_to_end(given, tmp_path / "run").live
    shifts = [
        view.rows for view in live.attacking.attacks["spectral"].views if view.name == "shift"
    ]
    sizes = [float(rows.norm()) for rows in shifts]
    assert sizes[-1] < 1e-4
    assert min(sizes[:-1]) > 1e-2


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_padding_is_not_read_by_the_regulariser(family, tmp_path, monkeypatch):
    """A causal model's texts are padded on the right, and no mask crosses."""
    seen = []

    def note(h, labels, seed):
        seen.append(h.shape[1])
        return compute_opposite_loss(h, labels, seed)

    monkeypatch.setattr("simsplit.methods.p3eft.compute_opposite_loss", note)
    model = {"sizes": {"width": 16, "family": family}}
    method = [{"kind": "p3eft", "alpha": 1.0}]
    given = text_scenario(tmp_path, model=model, method=method, schedule={"rounds": 1})
    run_to_end(given, tmp_path / "run")
    assert set(seen) == {16}
