"""Layers, parameter counts and shapes of the published attacks' networks.

Lists are read off the published code: zhxchd/SDAR_SplitNN (attacker_models.py), X1aoyangXu/FORA
(model.py), pasquini-dario/SplitNN_FSHA (architectures.py).
"""

import pytest
import torch
from contracts.leaks import build_setting
from torch import nn

from simsplit.attacks.fsha import FshaConfig
from simsplit.attacks.networks import (
    WithLabels,
    critic,
    feature_discriminator,
    fora_decoder,
    fora_substitute,
    fsha_decoder,
    fsha_pilot,
    glorot,
    gradient_penalty,
    image_discriminator,
    sdar_decoder,
)
from simsplit.seeds import isolate

IMAGE = (3, 32, 32)
LEVEL_4, LEVEL_7 = (32, 16, 16), (64, 8, 8)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("cut", "expected"), [(LEVEL_4, 19_107), (LEVEL_7, 84_003)])
def test_sdars_decoders_are_the_papers(cut, expected):
    decoder = sdar_decoder(cut[0], cut, IMAGE)
    assert count(decoder) == expected
    assert decoder(torch.zeros(2, *cut)).shape == (2, *IMAGE)


@pytest.mark.parametrize(
    ("cut", "image"),
    [((20, 14, 14), (1, 32, 32)), ((1, 8, 8), (1, 8, 8)), ((8, 5, 9), (3, 33, 70))],
)
def test_other_cuts_come_out_in_the_images_size(cut, image):
    assert sdar_decoder(cut[0], cut, image)(torch.zeros(2, *cut)).shape == (2, *image)


def layers_of(net: nn.Module) -> str:
    """Write a letter for each layer: convolution (with channels, stride), norm, activation."""
    letters = []
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            kind = "t" if isinstance(layer, nn.ConvTranspose2d) else "c"
            assert layer.kernel_size == (3, 3)
            letters.append(f"{kind}{layer.out_channels}" + "/2" * (layer.stride == (2, 2)))
        elif isinstance(layer, nn.BatchNorm2d):
            letters.append("n")
        elif isinstance(layer, nn.Upsample):
            letters.append("up")
        elif isinstance(layer, nn.ReLU | nn.LeakyReLU | nn.Tanh | nn.Sigmoid):
            letters.append(type(layer).__name__[0].lower())
    return " ".join(letters)


@pytest.mark.parametrize(
    ("cut", "published", "parameters"),
    [
        ((16, 32, 32), "c32 l c64/2 n l c128/2 n l c256 n l c256 n l c256 n l c256/2", 2_168_417),
        (LEVEL_4, "c64 l c128/2 n l c256 n l c256 n l c256 n l c256/2", 2_163_649),
        (LEVEL_7, "c128 l c256 n l c256 n l c256 n l c256/2", 2_144_897),
        ((16, 16, 16), "c32 l c64/2 n l c128 n l c128 n l c128 n l c128/2", None),
    ],
    ids=["level 3", "level 4", "level 7", "level 4, narrow"],
)
def test_sdars_discriminators_of_features_are_the_published(cut, published, parameters):
    """None is activated last. Before, six convolutions at level 7, and an activation after them."""
    net = feature_discriminator(cut[0], cut)
    assert layers_of(net) == published
    assert parameters is None or count(net) == parameters
    assert net(torch.zeros(2, *cut)).shape == (2, 1)


def test_sdars_discriminator_of_images_is_the_published():
    net = image_discriminator(3, IMAGE)
    assert layers_of(net) == "c64 l c128/2 n l c128/2 n l c256/2 l"
    assert count(net) == 1_792 + 73_856 + 147_584 + 2 * 256 + 295_168 + 4_097


@pytest.mark.parametrize(
    ("cut", "published"),
    [
        (LEVEL_4, "up c32 n r t16 n r t16 n r t16 n r c3 s"),
        (LEVEL_7, "up c64 n r t32 n r t32 n r up c32 n r t16 n r t16 n r t16 n r c3 s"),
    ],
)
def test_sdars_decoders_are_the_published(cut, published):
    assert layers_of(sdar_decoder(cut[0], cut, IMAGE)) == published


MOBILE = (64, 16, 16)


def test_foras_networks_are_the_papers():
    """8.04 million parameters, and 38,976 in the substitute."""
    judge = critic(MOBILE, IMAGE)
    first = 64 * 128 * 9 + 128 + 128 * 256 * 9 + 256
    assert count(judge) == first + 13 * (256 * 256 * 9 + 256) + 1024 + 1
    assert judge(torch.zeros(2, *MOBILE)).shape == (2, 1)
    narrow = critic(MOBILE, IMAGE, width=16)
    assert layers_of(narrow) == " ".join(["c8/2 r c16/2", *["r c16 r c16"] * 6, "c16/2"])
    assert narrow(torch.zeros(2, *MOBILE)).shape == (2, 1)
    substitute = fora_substitute(MOBILE, IMAGE)
    assert count(substitute) == 38_976
    assert substitute(torch.zeros(2, *IMAGE)).shape == (2, *MOBILE)


@pytest.mark.parametrize("cut", [MOBILE, (256, 4, 4), (20, 14, 14), (3, 32, 32), (1, 5, 9)])
def test_pilots_and_decoders_lead_to_the_cut_and_back(cut):
    image = (3, 32, 32) if cut[1] > 5 else (3, 33, 70) if cut[1] == 5 else IMAGE
    piloted = fsha_pilot(cut, image)(torch.rand(2, *image))
    assert piloted.shape == (2, *cut)
    for decoder in (fsha_decoder(cut, image), fora_decoder(cut, image)):
        decoded = decoder(piloted)
        assert decoded.shape == (2, *image)
        assert decoded.abs().max() <= 1


@pytest.mark.parametrize(
    ("cut", "published", "parameters"),
    [
        ((64, 16, 16), "t256/2 n l c3 n t", 155_145),
        ((128, 8, 8), "t256/2 n l t128/2 n l c3 n t", 594_441),
        ((256, 4, 4), "t256/2 n l t128/2 n l t64/2 n l c3 n t", 961_545),
    ],
)
def test_foras_decoders_are_the_published(cut, published, parameters):
    """At levels 2, 3 and 4."""
    decoder = fora_decoder(cut, IMAGE)
    assert layers_of(decoder) == published
    assert count(decoder) == parameters


@pytest.mark.parametrize("cut", [(64, 16, 16), (128, 8, 8), (256, 4, 4)])
def test_fshas_critic_as_it_ran_does_not_stride_first(cut):
    judge = critic(cut, IMAGE, halves_first=False)
    assert layers_of(judge) == " ".join(["c256", *["r c256 r c256"] * 6, "c256/2"])
    assert judge[-1].in_features == 256 * (cut[1] // 2) ** 2
    assert judge(torch.zeros(2, *cut)).shape == (2, 1)


def test_fshas_networks_start_as_in_keras():
    """Glorot-uniform weights: variance 2 / (fan in + fan out); biases are zero."""
    attack = FshaConfig(critic="as_run").build(build_setting().known)
    layers = [
        layer
        for net in (attack.pilot, attack.decoder, attack.critic)
        for layer in net.modules()
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear)
    ]
    for layer in layers:
        inner = layer.weight[0, 0].numel() if layer.weight.dim() == 4 else 1
        fans = inner * (layer.weight.shape[0] + layer.weight.shape[1])
        bound = (6 / fans) ** 0.5
        assert layer.weight.abs().max() <= bound
        if layer.weight.numel() > 1000:
            assert layer.weight.std().item() == pytest.approx((2 / fans) ** 0.5, rel=0.1)
        assert not layer.bias.any()
    rates = [o.param_groups[0]["eps"] for each in attack.learners.values() for o in each.optimizers]
    assert rates == [1e-7, 1e-7]


@pytest.mark.parametrize(
    ("cut", "first"),
    [((64, 16, 16), "c128/2 r c256/2"), ((128, 8, 8), "c256/2"), ((256, 4, 4), "c256")],
)
def test_foras_critic_strides_less_the_smaller_the_cut(cut, first):
    judge = critic(cut, IMAGE)
    assert layers_of(judge) == " ".join([first, *["r c256 r c256"] * 6, "c256/2"])
    assert judge[-1].in_features == 1024


@pytest.mark.parametrize(
    ("cut", "pilot", "decoder"),
    [
        ((64, 16, 16), "c64/2 c64", "t256/2 c3 t"),
        ((128, 8, 8), "c64/2 c128/2 c128", "t256/2 t128/2 c3 t"),
        ((256, 4, 4), "c64/2 c128/2 c256/2 c256", "t256/2 t128/2 t3/2 t"),
    ],
)
def test_fshas_networks_are_the_published(cut, pilot, decoder):
    """At levels 1, 3 and 4; nothing is activated but the image."""
    assert layers_of(fsha_pilot(cut, IMAGE)) == pilot
    assert layers_of(fsha_decoder(cut, IMAGE)) == decoder


def test_the_penalty_is_for_slopes_other_than_one():
    class Slope(nn.Module):
        def forward(self, x):
            return 3 * x.flatten(1)[:, :1]

    real, fake = torch.zeros(4, 1, 2, 2), torch.ones(4, 1, 2, 2)
    penalty = gradient_penalty(Slope(), real, fake, torch.Generator().manual_seed(0))
    assert penalty.item() == pytest.approx(4)


def test_fshas_penalty_is_a_channels():
    class Slope(nn.Module):
        def forward(self, x):
            return 3 * x[:, 0, :1, 0]

    real, fake = torch.zeros(4, 2, 2, 2), torch.ones(4, 2, 2, 2)
    rng = torch.Generator().manual_seed(0)
    penalty = gradient_penalty(Slope(), real, fake, rng, over="channel")
    assert penalty.item() == pytest.approx((4 + 1) / 2)  # slopes 3 and 0


def test_labels_are_embedded_within_a_twentieth():
    """Keras's uniform draw; before, normal ones of deviation 1."""
    with isolate(0, "labels"):
        net = glorot(WithLabels(nn.Identity(), 10, (4, 4)))
    weights = net.plane[0].weight
    assert 0.045 < weights.abs().max() <= 0.05


def test_labels_are_one_more_channel():
    net = WithLabels(sdar_decoder(33, LEVEL_4, IMAGE), 10, (16, 16))
    wider = sdar_decoder(33, LEVEL_4, IMAGE)
    assert count(net) == count(wider) + 10 * 50 + 50 * 256 + 256
    assert count(wider) == 19_107 + 32 * 9
    z = torch.rand(2, *LEVEL_4)
    net.eval()
    ones, twos = (net(z, torch.full((2,), label)) for label in (1, 2))
    assert ones.shape == (2, *IMAGE)
    assert not torch.equal(ones, twos)
