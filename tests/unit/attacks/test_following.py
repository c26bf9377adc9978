"""SDAR, PCAT and FORA beside plain loops of what their papers do in an iteration."""

import copy
from dataclasses import replace

import pytest
import torch
from contracts.leaks import Leaky, Setting, build_setting, follow, packet
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from simsplit.attacks.fora import Fora, ForaConfig, ForaReferenceConfig, mk_mmd
from simsplit.attacks.fsha import FshaConfig
from simsplit.attacks.networks import gradient_penalty
from simsplit.attacks.pcat import Aligned, Pcat, PcatConfig
from simsplit.attacks.sdar import NaiveSdaConfig, Sdar, SdarConfig
from simsplit.legs import Leg
from simsplit.methods.wcc import WccConfig, compute_within_class_scatter
from simsplit.seeds import isolate, rng_for


def send_step(here: Setting, number: int):
    """Send a step, and return what `follow` lets the attack see."""
    rows = torch.randint(800, (16,), generator=rng_for(0, "rows", number))
    return here.pixels(rows), here.private.labels[rows]


def adam(lr: float, *modules):
    parameters = [weight for module in modules for weight in module.parameters()]
    return torch.optim.Adam(parameters, lr=lr, eps=1e-7)


def real(logits):
    """Sum over samples: Keras sums a loss that has a value for each of them."""
    return binary_cross_entropy_with_logits(logits, torch.ones_like(logits), reduction="sum")


def fake(logits):
    return binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="sum")


@pytest.mark.slow
@pytest.mark.parametrize("vanilla", [False, True])
def test_sdar_is_the_published_iteration(vanilla):
    here = build_setting(vanilla=vanilla)
    # rates at which a step of any network is felt by the next
    rates = {"lr_features": 0.01, "lr_images": 0.01, "lr_decoder": 0.01}
    attack = SdarConfig(feature_weight=0.5, image_weight=0.5, flip=0.4, **rates).build(here.known)
    assert isinstance(attack, Sdar)
    nets = (attack.client.head, attack.client.tail, attack.decoder)
    e, hs, d, d_e, d_d = copy.deepcopy((*nets, attack.of_features, attack.of_images))
    follow(attack, here, steps=3, noise=False)

    known, tail = here.known, here.known.tail or hs
    of_e = adam(1e-3, e) if vanilla else adam(1e-3, e, hs)
    of_d, of_d_e, of_d_d = adam(0.01, d), adam(0.01, d_e), adam(0.01, d_d)
    for number in range(3):
        x_s, y_s = known.public(number).inputs, known.public(number).labels
        z, y = send_step(here, number)
        if not vanilla:
            draw = rng_for(7, "sdar", "flip", number)
            changed = torch.rand(16, generator=draw) < 0.4
            drawn = torch.randint(10, (16,), generator=draw)
        labels_s, labels_t = ((y_s,), (y,)) if vanilla else ((), ())
        y_e = y_s if vanilla else torch.where(changed, drawn, y_s)
        with isolate(7, "sdar", number):
            z_s = e(x_s)
            guessed, judged = tail(known.trunk(z_s)), d_e(z_s, *labels_s)
            of_real = d_e(z, *labels_t)
            simulating = cross_entropy(guessed, y_e, reduction="sum") + 0.5 * real(judged)
            step_both(of_e, simulating, of_d_e, real(of_real) + fake(judged))
            z_s = e(x_s).detach()
            loss = (d(z_s, *labels_s) - x_s).square().flatten(1).mean(1).sum()
            decoded = d(z, *labels_t)
            judged, of_real = d_d(decoded, *labels_t), d_d(x_s, *labels_s)
            decoding = loss + 0.5 * real(judged)
            step_both(of_d, decoding, of_d_d, real(of_real) + fake(judged))
    ours = (*nets, attack.of_features, attack.of_images)
    for mine, theirs in zip(ours, (e, hs, d, d_e, d_d), strict=True):
        for name, weight in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], weight, atol=1e-5, rtol=1e-4)
    # Weights hardly tell a sum of losses from a mean, since Adam divides by the gradient's size.
    optimizers = {"simulator": of_e, "decoder": of_d, "features": of_d_e, "images": of_d_d}
    for name, optimizer in optimizers.items():
        moments = attack.learners[name].moments().items()
        mine = [value for key, value in moments if key.endswith(".exp_avg")]
        theirs = [each["exp_avg"] for each in optimizer.state.values()]
        for moment, expected in zip(mine, theirs, strict=True):
            scale = expected.abs().max().item()
            torch.testing.assert_close(moment, expected, atol=0.01 * scale + 1e-5, rtol=0.01)


def step_both(first, loss, second, other):
    """Step on two losses that share a graph, as under one persistent tape."""
    pairs = ((first, loss), (second, other))
    learned = [[w for group in each.param_groups for w in group["params"]] for each, _ in pairs]
    grads = [
        torch.autograd.grad(each, weights, retain_graph=True, allow_unused=True)
        for (_, each), weights in zip(pairs, learned, strict=True)
    ]
    for (optimizer, _), weights, slopes in zip(pairs, learned, grads, strict=True):
        for weight, slope in zip(weights, slopes, strict=True):
            weight.grad = slope
        optimizer.step()


def step(optimizer, loss, every):
    for each in every:
        each.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.slow
def test_fora_is_the_published_iteration():
    here = build_setting()
    # rates at which a step of any network is felt by the next
    rates = {"lr_substitute": 1e-3, "lr_decoder": 1e-3, "lr_critic": 1e-3}
    attack = ForaConfig(**rates).build(here.known)
    assert isinstance(attack, Fora)
    e, d, c = copy.deepcopy((attack.substitute, attack.decoder, attack.critic))
    follow(attack, here, steps=2, noise=False)
    rates = ((e, 1e-3), (d, 1e-3), (c, 1e-3))
    every = [torch.optim.Adam(net.parameters(), lr) for net, lr in rates]
    of_e, of_d, of_c = every
    for number in range(2):
        x, (z, _) = 2 * here.known.public(number).inputs - 1, send_step(here, number)
        z_s = e(x)
        z_old = z_s.detach()
        step(of_e, 0.2 * c(z_s).mean() + 0.8 * mk_mmd(z.flatten(1), z_s.flatten(1)), every)
        step(of_d, mse_loss(d(e(x).detach()), x), every)
        penalty = gradient_penalty(c, z, z_old, rng_for(7, "fora", number))
        step(of_c, c(z).mean() - c(z_old).mean() + 1000 * penalty, every)
    for mine, theirs in ((attack.substitute, e), (attack.decoder, d), (attack.critic, c)):
        for name, weight in theirs.state_dict().items():
            # the gradient of a bias before a mean is zero but for rounding, which Adam makes large
            if name.endswith("weight"):
                torch.testing.assert_close(mine.state_dict()[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("vanilla", [False, True])
def test_pcat_is_the_published_iteration(vanilla):
    """Labels are the client's where the server is sent them, and the public batch's elsewhere."""
    here = build_setting(vanilla=vanilla)
    attack = PcatConfig(start=1).build(here.known)
    assert isinstance(attack, Pcat)
    e, hs = copy.deepcopy((attack.client.head, attack.client.tail))
    follow(attack, here, steps=3, noise=False)
    known, tail = here.known, here.known.tail or hs
    of_e = torch.optim.Adam([*e.parameters(), *([] if vanilla else hs.parameters())], 1e-3)
    for number in (1, 2):
        batch = known.public(number)
        if vanilla:
            batch = attack.aligned.batch(send_step(here, number)[1], number)
            assert torch.equal(batch.labels, send_step(here, number)[1])
        step(of_e, cross_entropy(tail(known.trunk(e(batch.inputs))), batch.labels), [of_e])
    for mine, theirs in ((attack.client.head, e), (attack.client.tail, hs)):
        for name, weight in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], weight, atol=1e-5, rtol=1e-4)


class Convolving(Leaky):
    def make_segments(self, input_shape, num_classes):
        return (
            super()
            .make_segments(input_shape, num_classes)
            ._replace(head=nn.Conv2d(1, 1, 3, padding=1))
        )


@pytest.mark.parametrize(
    ("config", "reduction"),
    [
        (NaiveSdaConfig(method_losses=True), "sum"),
        (PcatConfig(iterations=1, method_losses=True), "mean"),
        (NaiveSdaConfig(), "sum"),
    ],
    ids=["naive_sda", "pcat", "without"],
)
def test_a_simulated_client_learns_with_the_methods_loss_terms(config, reduction):
    """A client adds the term to the mean loss of its batch, so it counts once a sample of a sum."""
    here = build_setting((WccConfig(weight=0.3),))
    known = replace(here.known, model=Convolving())  # the leaky head itself has nothing to learn
    attack = config.build(known)
    e, hs = copy.deepcopy((attack.client.head, attack.client.tail))
    follow(attack, here, steps=3, noise=False)
    of_e = torch.optim.Adam([*e.parameters(), *hs.parameters()], 1e-3, eps=1e-7)
    for number in range(3):
        batch = known.public(number)
        z = e(batch.inputs)
        loss = cross_entropy(hs(known.trunk(z)), batch.labels, reduction=reduction)
        if config.method_losses:
            term = 0.3 * compute_within_class_scatter(z, batch.labels)
            loss = loss + (len(z) if reduction == "sum" else 1) * term
        step(of_e, loss, [of_e])
    for mine, theirs in ((attack.client.head, e), (attack.client.tail, hs)):
        for name, weight in theirs.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], weight, atol=1e-5, rtol=1e-4)


def test_aligned_samples_are_drawn_from_all_of_a_class_and_a_missing_class_from_all():
    here = build_setting()
    aligned = Aligned(here.known)
    wanted = torch.arange(10).repeat_interleave(300)
    batch = aligned.batch(wanted, 0)
    assert torch.equal(batch.labels, wanted)
    assert all(len(batch.indices[wanted == label].unique()) > 60 for label in range(10))
    aligned.counts[3] = 0
    assert len(aligned.batch(torch.full((200,), 3), 0).labels.unique()) == 10


def test_pcat_refines_images_until_the_pseudo_client_sends_the_same():
    here = build_setting()
    targets = [packet(here.truth, Leg.SMASHED, 0)]
    missed = []
    for steps in (0, 100):
        attack = PcatConfig(iterations=1, refinement=steps, lr_images=0.02).build(here.known)
        for _ in attack.work(targets):
            pass
        missed.append((attack.client.head(attack.recovered) - here.truth).square().mean().item())
    assert missed[1] < 0.2 * missed[0]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(SdarConfig(), marks=pytest.mark.slow),  # naive_sda has the same simulator
        NaiveSdaConfig(),
        PcatConfig(iterations=1),
    ],
    ids=lambda c: c.kind,
)
def test_a_simulator_labels_the_targets_where_the_server_has_no_labels(config):
    here = build_setting()
    attack = config.build(here.known)
    # The victim's head passes images on and so does a new simulator's: only its tail is to learn.
    follow(attack, here, steps=150, noise=False)
    for _ in attack.work([packet(here.truth, Leg.SMASHED, 0)]):
        pass
    labels = attack.guesses().labels
    assert labels is not None
    assert (labels == here.private.labels[: len(labels)]).float().mean() > 0.6
    told = config.build(build_setting(vanilla=True).known)
    assert told.guesses().labels is None


ONLINE = [
    NaiveSdaConfig(),
    *(
        pytest.param(config, marks=pytest.mark.slow)
        for config in (
            SdarConfig(),
            PcatConfig(iterations=3),
            ForaConfig(),
            ForaReferenceConfig(),
            FshaConfig(),
        )
    ),
]


@pytest.mark.parametrize("config", ONLINE, ids=lambda c: c.kind)
@pytest.mark.parametrize(
    ("how", "tolerance"),
    [({"channels_last": True}, 2e-3), ({"precision": "bf16", "channels_last": True}, 0.03)],
    ids=["channels_last", "bf16"],
)
def test_a_faster_format_recovers_the_same_images(config, how, tolerance):
    """Images between 0 and 1 after three iterations, by their mean absolute difference."""
    found = []
    for each in (config, config.model_copy(update=how)):
        here = build_setting()
        attack = each.build(here.known)
        follow(attack, here, steps=3, noise=False)
        for _ in attack.work([packet(here.truth, Leg.SMASHED, 0)]):
            pass
        assert attack.recovered.dtype == torch.float32
        found.append(attack.recovered)
    assert (found[0] - found[1]).abs().mean() < tolerance


def test_the_naive_attack_tells_its_decoder_no_labels():
    attack = NaiveSdaConfig().build(build_setting(vanilla=True).known)
    assert not attack.conditional
    assert set(attack.learners) == {"simulator", "decoder"}
    assert "tail" not in attack.learners["simulator"].modules  # the server's own is used


def test_foras_reference_learns_from_what_the_victim_sent_and_from_what():
    here = build_setting()
    attack = ForaReferenceConfig(lr=1e-3).build(here.known)
    d = copy.deepcopy(attack.decoder)
    follow(attack, here, steps=2, noise=False)
    of_d = torch.optim.Adam(d.parameters(), 1e-3)
    for number in range(2):
        z = send_step(here, number)[0]  # this head passes images on
        step(of_d, mse_loss(d(z), 2 * z - 1), [of_d])
    for name, weight in d.state_dict().items():
        if name.endswith("weight"):
            torch.testing.assert_close(attack.decoder.state_dict()[name], weight)
