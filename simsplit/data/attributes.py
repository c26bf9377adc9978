"""Attributes of samples are what the task does not ask for: a table's column, a topic, a slant."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError, suggest

_FEW = 10
"""A column of at most so many different numbers is one of categories."""


def list_attributes(samples: Samples, columns: Sequence[str]) -> list[str]:
    """List the attributes that samples have, the usual one first."""
    if samples.texts is not None:
        return ["topic"]
    return list(_OF_IMAGES) if samples.images else list(dict.fromkeys(columns))


def measure_attribute(
    parts: Sequence[Samples], name: str | None, columns: Sequence[str], where: str
) -> list[np.ndarray]:
    """Return the class of each sample of several parts; numbers are above or below a median.

    Medians and categories are those of the first part. None is the usual attribute.
    """
    known = list_attributes(parts[0], columns)
    name = known[0] if name is None and known else name
    if name not in known:
        raise ScenarioError(
            where, f"no attribute '{name}'{suggest(str(name), known)} allowed: {', '.join(known)}"
        )
    read = [_read(each, name, columns) for each in parts]
    if read[0].ndim == 2:  # a category has a column for each value
        return [each.argmax(1) for each in read]
    values = np.unique(read[0])
    if len(values) <= _FEW:
        return [np.searchsorted(values, each).clip(max=len(values) - 1) for each in read]
    return [(each > np.median(read[0])).astype(np.int64) for each in read]


def _read(samples: Samples, name: str, columns: Sequence[str]) -> np.ndarray:
    """Return a number for each sample, or several of a category."""
    values: np.ndarray
    if samples.texts is not None:
        values = samples.texts.groups.numpy()
    elif samples.images:
        values = _OF_IMAGES[name](samples.inputs.double().mean(1)).numpy()
    else:
        places = [place for place, column in enumerate(columns) if column == name]
        values = samples.inputs[:, places].numpy()
        values = values[:, 0] if len(places) == 1 else values
    return values


def _measure_slant(pixels_NHW: Tensor) -> Tensor:
    """Return how far each column of pixels moves by a row, by second moments around the centre."""
    height, width = pixels_NHW.shape[1:]
    mass = pixels_NHW.sum((1, 2)).clamp_min(1e-9)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    middle_y, middle_x = ((pixels_NHW * each).sum((1, 2)) / mass for each in (y, x))
    off_y, off_x = y - middle_y[:, None, None], x - middle_x[:, None, None]
    both, alone = ((pixels_NHW * off_y * each).sum((1, 2)) for each in (off_x, off_y))
    return both / alone.clamp_min(1e-9)


_OF_IMAGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "slant": _measure_slant,
    "brightness": lambda pixels_NHW: pixels_NHW.mean((1, 2)),
}
