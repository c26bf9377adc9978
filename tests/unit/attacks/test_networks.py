"""Parameter counts and shapes of the published attacks' networks."""

import pytest
import torch
from torch import nn

from simsplit.attacks.networks import (
    WithLabels,
    critic,
    feature_discriminator,
    fora_decoder,
    fora_substitute,
    fsha_decoder,
    fsha_pilot,
    gradient_penalty,
    image_discriminator,
    sdar_decoder,
)

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


def convolution(inputs: int, outputs: int, *, normalised: bool) -> int:
    return inputs * outputs * 9 + outputs + 2 * outputs * normalised


@pytest.mark.parametrize(
    ("cut", "first"),
    [(LEVEL_4, [(32, 64), (64, 128), (128, 256)]), (LEVEL_7, [(64, 128), (128, 256), (256, 256)])],
)
def test_discriminators_of_features(cut, first):
    """Normalised but for the first and the last; 4,096 values for the logit."""
    plan = [*first, (256, 256), (256, 256), (256, 256)]
    inner = [convolution(*pair, normalised=0 < at < 5) for at, pair in enumerate(plan)]
    net = feature_discriminator(cut[0], cut)
    assert count(net) == sum(inner) + 4096 + 1
    assert net(torch.zeros(2, *cut)).shape == (2, 1)


def test_the_discriminator_of_images():
    plan = [(3, 64, False), (64, 128, True), (128, 128, True), (128, 256, False)]
    layers = [convolution(i, o, normalised=n) for i, o, n in plan]
    assert count(image_discriminator(3, IMAGE)) == sum(layers) + 4096 + 1


MOBILE = (64, 16, 16)


def test_foras_networks_are_the_papers():
    """8.04 million parameters, and 38,976 in the substitute."""
    judge = critic(MOBILE)
    first = 64 * 128 * 9 + 128 + 128 * 256 * 9 + 256
    assert count(judge) == first + 13 * (256 * 256 * 9 + 256) + 1024 + 1
    assert judge(torch.zeros(2, *MOBILE)).shape == (2, 1)
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


def test_fshas_layers_are_the_papers_on_a_cut_of_256():
    widths = [m.out_channels for m in fsha_pilot((256, 4, 4), IMAGE) if isinstance(m, nn.Conv2d)]
    assert widths == [64, 128, 256, 256]
    decoder = fsha_decoder((256, 4, 4), IMAGE).layers
    assert [m.out_channels for m in decoder if isinstance(m, nn.ConvTranspose2d)] == [256, 128, 3]


def test_the_penalty_is_for_slopes_other_than_one():
    class Slope(nn.Module):
        def forward(self, x):
            return 3 * x.flatten(1)[:, :1]

    real, fake = torch.zeros(4, 1, 2, 2), torch.ones(4, 1, 2, 2)
    penalty = gradient_penalty(Slope(), real, fake, torch.Generator().manual_seed(0))
    assert penalty.item() == pytest.approx(4)


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
