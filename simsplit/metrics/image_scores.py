"""This module scores recovered images against the true ones, with scikit-image and lpips.

Every figure is computed twice: over the whole image, and over its foreground, since most pixels of
a digit are black and a black image scores well on them. The foreground is where the truth is
brighter than a tenth; SSIM and LPIPS use the rectangle around it.

Two figures do not depend on how bright an image is, since a prior that pulls towards black makes
an image darker without hiding it: the correlation with the truth, and the MSE of the image divided
by its brightest pixel (`stretched_mse`). Both are of whole images only.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import ScenarioError, install_command
from simsplit.metrics import SCALE_FREE, SMALLEST
from simsplit.seeds import isolate
from simsplit.states import select_below

FIGURES = ("mse", "psnr", "ssim", *SCALE_FREE, "fg_mse", "fg_psnr", "fg_ssim")
LPIPS = ("lpips", "fg_lpips")
FOREGROUND = 0.1
"""Brightness above which a pixel belongs to the foreground."""
LEAST = 32
"""Smallest height and width for AlexNet."""

Distance = Callable[[Tensor, Tensor], float]
Figures = dict[str, float]


def score_images(recovered: Tensor, truth: Tensor, lpips: Distance | None = None) -> list[Figures]:
    """Score each recovered image; pixels are between 0 and 1, N x C x H x W.

    Undefined figures are left out. Recovered images are clamped to [0, 1] first, since images have
    no other pixels; UnSplit's published code scores them unclamped.
    """
    pairs = zip(recovered.float().cpu(), truth.float().cpu(), strict=True)
    return [_score(one.clamp(0, 1), other, lpips) for one, other in pairs]


def _score(image: Tensor, truth: Tensor, lpips: Distance | None) -> Figures:
    mask = truth.amax(0) > FOREGROUND
    figures = (
        _score_pixels(image.sub(truth).square().mean(), "")
        | _score_structure(image, truth, "", lpips)
        | _score_shape(image, truth)
    )
    if not mask.any():
        return figures
    inside = image.sub(truth).square()[:, mask].mean()
    rows, columns = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
    box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return (
        figures
        | _score_pixels(inside, "fg_")
        | _score_structure(image[box], truth[box], "fg_", lpips)
    )


def _score_pixels(mse: Tensor, prefix: str) -> Figures:
    figures = {f"{prefix}mse": mse.item()}
    if mse > 0:
        figures[f"{prefix}psnr"] = -10 * mse.log10().item()
    return figures


def _score_shape(image: Tensor, truth: Tensor) -> Figures:
    """Score an image whatever its brightness; a truth of one colour has no correlation."""
    brightest = image.max()
    stretched = image / brightest if brightest > 0 else image  # black stays black
    figures = {"stretched_mse": stretched.sub(truth).square().mean().item()}
    ours, theirs = (each.double() - each.double().mean() for each in (image, truth))
    if theirs.any():
        product = ours.norm() * theirs.norm()
        # An image of one colour shows nothing. Left out, it would raise the mean over images.
        figures["correlation"] = ((ours * theirs).sum() / product).item() if product > 0 else 0.0
    return figures


def _score_structure(image: Tensor, truth: Tensor, prefix: str, lpips: Distance | None) -> Figures:
    if min(truth.shape[1:]) < SMALLEST:
        return {}
    from skimage.metrics import structural_similarity

    similar = structural_similarity(
        image.numpy(),
        truth.numpy(),
        channel_axis=0,
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    figures = {f"{prefix}ssim": float(similar)}
    if lpips is not None:
        figures[f"{prefix}lpips"] = lpips(image, truth)
    return figures


def describe_lack_of_lpips() -> str:
    """Return how to install the package lpips if this machine lacks it; else empty."""
    lack = f"LPIPS needs the package lpips: {install_command('lpips')}"
    return "" if find_spec("lpips") else lack


def load_lpips(path: Path, where: str) -> Distance:
    """Build LPIPS on AlexNet features with weights from a local file (torchvision's state dict)."""
    if lack := describe_lack_of_lpips():
        raise ScenarioError(where, lack)
    import lpips

    try:
        weights = torch.load(path, weights_only=True, map_location="cpu")
        with warnings.catch_warnings(), isolate(0, "lpips"):
            warnings.simplefilter("ignore")  # lpips calls torchvision's deprecated interface
            net = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
        slots = {name.split(".", 1)[1]: name for name in net.net.state_dict()}
        net.net.load_state_dict(
            {slots[k]: v for k, v in select_below(weights, "features.").items()}
        )
    except Exception as error:  # noqa: BLE001 - a user's file can raise anything
        raise ScenarioError(where, f"cannot use {path}: {type(error).__name__}: {error}") from None

    def distance(image: Tensor, truth: Tensor) -> float:
        pair = [2 * _enlarge(each) - 1 for each in (image, truth)]
        with torch.no_grad():
            return float(net(*pair))

    return distance


def _enlarge(image: Tensor) -> Tensor:
    """Return the image in colour, scaled up if it is too small for AlexNet."""
    image = image.expand(3, -1, -1)[None]
    size = [max(side, LEAST) for side in image.shape[2:]]
    return torch.nn.functional.interpolate(image, size, mode="bilinear")
