"""Distances of recovered images: hand-made values, foreground, and what cannot be said."""

import pytest
import torch

from simsplit.metrics.images import image_figures


def pair(size: int = 16):
    truth = torch.zeros(1, 1, size, size)
    truth[..., 2:14, 2:14] = 0.8
    return truth, truth.clone()


def test_what_is_the_same_has_no_error_and_no_decibels():
    truth, image = pair()
    (figures,) = image_figures(image, truth)
    assert figures["mse"] == figures["fg_mse"] == 0
    assert figures["ssim"] == pytest.approx(1)
    assert "psnr" not in figures


def test_a_black_picture_is_near_by_most_of_its_pixels():
    truth, _ = pair()
    (figures,) = image_figures(torch.zeros_like(truth), truth)
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
    (figures,) = image_figures(image, truth)
    assert figures["fg_mse"] == pytest.approx(0.09)
    assert "fg_ssim" not in figures  # one pixel wide


def test_structure_is_of_the_box_around_the_foreground():
    truth, image = pair(32)
    image[..., 20:, 20:] = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    (figures,) = image_figures(image, truth)
    assert figures["fg_ssim"] == pytest.approx(1)
    assert figures["ssim"] < 0.9


def test_values_out_of_range_are_seen_as_a_screen_shows_them():
    truth, image = pair()
    (figures,) = image_figures(image + 5 * (truth - 0.4), truth)
    assert figures["mse"] == pytest.approx(0.04 * 144 / 256, rel=1e-4)


def test_small_images_have_no_structure_and_black_truth_no_foreground():
    (figures,) = image_figures(torch.ones(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))
    assert figures == {"mse": 1.0, "psnr": 0.0}
