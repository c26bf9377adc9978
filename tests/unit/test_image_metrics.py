"""Distances of recovered images: hand-made values, foreground, and what has no value."""

import warnings

import pytest
import torch

from simsplit.errors import ScenarioError
from simsplit.metrics.image_scores import load_lpips, score_images
from simsplit.seeds import rng_for


def pair(size: int = 16):
    truth = torch.zeros(1, 1, size, size)
    truth[..., 2:14, 2:14] = 0.8
    return truth, truth.clone()


def test_what_is_the_same_has_no_error_and_no_decibels():
    truth, image = pair()
    (figures,) = score_images(image, truth)
    assert figures["mse"] == figures["fg_mse"] == 0
    assert figures["ssim"] == pytest.approx(1)
    assert "psnr" not in figures


def test_a_black_picture_is_near_by_most_of_its_pixels():
    truth, _ = pair()
    (figures,) = score_images(torch.zeros_like(truth), truth)
    assert figures["mse"] == pytest.approx(0.64 * 144 / 256)
    assert figures["fg_mse"] == pytest.approx(0.64)
    assert figures["fg_psnr"] == pytest.approx(1.938, abs=1e-3)
    assert figures["psnr"] == pytest.approx(4.437, abs=1e-3)


def test_the_foreground_is_what_is_bright_in_the_truth_in_any_channel():
    truth = torch.zeros(1, 3, 16, 16)
    truth[:, 1, 3, 4] = 0.5
    truth[:, :, 5, 5] = 0.1  # no brighter than the limit
    image = truth.clone()
    image[:, :, 3, 4] += 0.3
    image[:, :, 8, 8] = 1.0
    (figures,) = score_images(image, truth)
    assert figures["fg_mse"] == pytest.approx(0.09)
    assert "fg_ssim" not in figures  # one pixel wide


def test_structure_is_of_the_box_around_the_foreground():
    truth, image = pair(32)
    image[..., 20:, 20:] = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    (figures,) = score_images(image, truth)
    assert figures["fg_ssim"] == pytest.approx(1)
    assert figures["ssim"] < 0.9


def test_values_out_of_range_are_seen_as_a_screen_shows_them():
    truth, image = pair()
    (figures,) = score_images(image + 5 * (truth - 0.4), truth)
    assert figures["mse"] == pytest.approx(0.04 * 144 / 256, rel=1e-4)


def test_small_images_have_no_structure_and_black_truth_no_foreground():
    (figures,) = score_images(torch.ones(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))
    assert figures == {"mse": 1.0, "psnr": 0.0, "stretched_mse": 1.0}


def test_a_dark_copy_is_far_by_mse_and_found_by_the_scores_without_scale():
    truth = torch.rand(1, 3, 16, 16, generator=rng_for(0, "truth"))
    truth /= truth.max()
    (dark,) = score_images(0.05 * truth, truth)
    assert dark["mse"] == pytest.approx(0.95**2 * truth.square().mean().item(), rel=1e-4)
    assert dark["stretched_mse"] == pytest.approx(0, abs=1e-12)
    assert dark["correlation"] == pytest.approx(1)
    (washed,) = score_images(0.2 + 0.1 * truth, truth)
    assert washed["correlation"] == pytest.approx(1)
    (negative,) = score_images(1 - truth, truth)
    assert negative["correlation"] == pytest.approx(-1)


def test_correlation_by_hand():
    truth = torch.tensor([[[[0.0, 0.2], [0.4, 1.0]]]])
    image = torch.tensor([[[[0.0, 0.1], [0.0, 0.5]]]])
    (figures,) = score_images(image, truth)
    # deviations: truth -.4 -.2 0 .6 (squares .56), image -.15 -.05 -.15 .35 (squares .17)
    assert figures["correlation"] == pytest.approx(0.28 / (0.56 * 0.17) ** 0.5)
    assert figures["stretched_mse"] == pytest.approx(0.16 / 4)  # 0 .2 0 1 against 0 .2 .4 1


@pytest.mark.parametrize("level", [0.0, 0.5])
def test_an_image_of_one_colour_has_no_correlation_and_counts_as_such(level):
    truth, _ = pair()
    (figures,) = score_images(torch.full_like(truth, level), truth)
    assert figures["correlation"] == 0


@pytest.fixture
def alexnet(tmp_path):
    """A file of weights as torchvision has them, and the distance that lpips makes of them."""
    lpips = pytest.importorskip("lpips")
    from torchvision.models import AlexNet

    network = AlexNet()
    torch.save(network.state_dict(), tmp_path / "alexnet.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    slices = [layer for index in range(1, 6) for layer in getattr(whole.net, f"slice{index}")]
    for layer, own in zip(slices, network.features, strict=False):
        layer.load_state_dict(own.state_dict())
    return tmp_path / "alexnet.pth", whole


@pytest.mark.slow
def test_perceptual_distance_is_the_one_of_the_package_on_the_weights_of_a_file(alexnet):
    path, whole = alexnet
    truth, image = torch.rand(2, 2, 3, 32, 32, generator=rng_for(0, "pixels"))
    (figures, _) = score_images(image, truth, load_lpips(path, "targets.lpips"))
    with torch.no_grad():
        expected = whole(2 * image[:1] - 1, 2 * truth[:1] - 1).item()
    assert figures["lpips"] == pytest.approx(expected, rel=1e-6)
    assert expected > 0
    assert score_images(truth, truth, load_lpips(path, "x"))[0]["lpips"] == 0


@pytest.mark.slow
def test_perceptual_distance_takes_small_grey_images(alexnet):
    truth, image = pair()
    (figures,) = score_images(0.5 * image, truth, load_lpips(alexnet[0], "targets.lpips"))
    assert figures["lpips"] > 0
    assert figures["fg_lpips"] > 0


@pytest.mark.slow
def test_weights_that_are_none_are_blamed_on_the_field(tmp_path, alexnet):
    (tmp_path / "other.pth").write_bytes(b"no weights")
    with pytest.raises(ScenarioError, match=r"targets\.lpips.*other\.pth"):
        load_lpips(tmp_path / "other.pth", "targets.lpips")
    with pytest.raises(ScenarioError, match=r"targets\.lpips.*missing\.pth"):
        load_lpips(tmp_path / "missing.pth", "targets.lpips")
