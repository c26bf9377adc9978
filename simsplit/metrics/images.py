"""How near recovered images are to the true ones: thin calls into scikit-image, and lpips if there.

Everything twice: over the whole image, and over its foreground (where the truth is brighter than a
tenth; structure over the rectangle around it), since a black picture is near to a digit by most of
its pixels.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import ScenarioError, install_command
from simsplit.seeds import isolated
from simsplit.states import below

FIGURES = ("mse", "psnr", "ssim", "fg_mse", "fg_psnr", "fg_ssim")
LPIPS = ("lpips", "fg_lpips")
SMALLEST = 11
"""Pixels that an 11x11 window needs, either way."""
FOREGROUND = 0.1
LEAST = 32
"""Pixels that AlexNet needs, either way."""

Distance = Callable[[Tensor, Tensor], float]
Figures = dict[str, float]


def image_figures(recovered: Tensor, truth: Tensor, lpips: Distance | None = None) -> list[Figures]:
    """Of each image; pixels between 0 and 1, N x C x H x W. What cannot be said is left out.

    What an attack recovered is clamped first, since no image has other pixels; UnSplit's published
    code scores its images as they are.
    """
    pairs = zip(recovered.float().cpu(), truth.float().cpu(), strict=True)
    return [_figures(one.clamp(0, 1), other, lpips) for one, other in pairs]


def _figures(image: Tensor, truth: Tensor, lpips: Distance | None) -> Figures:
    mask = truth.amax(0) > FOREGROUND
    figures = _near(image.sub(truth).square().mean(), "") | _alike(image, truth, "", lpips)
    if not mask.any():
        return figures
    inside = image.sub(truth).square()[:, mask].mean()
    rows, columns = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
    box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return figures | _near(inside, "fg_") | _alike(image[box], truth[box], "fg_", lpips)


def _near(mse: Tensor, prefix: str) -> Figures:
    figures = {f"{prefix}mse": mse.item()}
    if mse > 0:
        figures[f"{prefix}psnr"] = -10 * mse.log10().item()
    return figures


def _alike(image: Tensor, truth: Tensor, prefix: str, lpips: Distance | None) -> Figures:
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


def lpips_from(path: Path, where: str) -> Distance:
    """LPIPS on AlexNet features whose weights lie in a local file (torchvision's state dict)."""
    try:
        import lpips
    except ImportError:
        message = f"LPIPS needs the package lpips: {install_command('lpips')}"
        raise ScenarioError(where, message) from None
    try:
        weights = torch.load(path, weights_only=True, map_location="cpu")
        with warnings.catch_warnings(), isolated(0, "lpips"):
            warnings.simplefilter("ignore")  # it asks torchvision for a network in an old way
            net = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
        slots = {name.split(".", 1)[1]: name for name in net.net.state_dict()}
        net.net.load_state_dict({slots[k]: v for k, v in below(weights, "features.").items()})
    except Exception as error:  # noqa: BLE001 - whatever a foreign file does
        raise ScenarioError(where, f"cannot use {path}: {type(error).__name__}: {error}") from None

    def distance(image: Tensor, truth: Tensor) -> float:
        pair = [2 * _grown(each) - 1 for each in (image, truth)]
        with torch.no_grad():
            return float(net(*pair))

    return distance


def _grown(image: Tensor) -> Tensor:
    """In colour, and large enough for AlexNet."""
    image = image.expand(3, -1, -1)[None]
    size = [max(side, LEAST) for side in image.shape[2:]]
    return torch.nn.functional.interpolate(image, size, mode="bilinear")
