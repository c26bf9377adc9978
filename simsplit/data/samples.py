"""What every data source yields: labelled images as two tensors.

All images stay uint8, as they were stored: a data set then takes a quarter of the memory of floats,
moves to an accelerator once, and is normalised a batch at a time (see `batches`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import DataError


@dataclass(frozen=True)
class DataInfo:
    """What a model needs to know of the data before any of it is loaded."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    classes: int


@dataclass(frozen=True)
class Samples:
    """Labelled images, row by row."""

    inputs: Tensor
    """uint8, N x C x H x W."""
    labels: Tensor
    """int64, N."""

    def __post_init__(self) -> None:
        assert self.inputs.dtype == torch.uint8
        assert self.inputs.ndim == 4
        assert self.labels.dtype == torch.int64
        assert self.labels.shape == self.inputs.shape[:1]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors hold."""
        return self.inputs.nbytes + self.labels.nbytes

    def take(self, indices: np.ndarray | Tensor) -> "Samples":
        """The rows named by `indices`, in that order, as a copy."""
        rows = torch.as_tensor(indices)
        return Samples(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True)
class DataSet:
    """A source's training and test samples, and what their labels are called."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]

    @property
    def info(self) -> DataInfo:
        """Shape and number of classes."""
        channels, height, width = self.train.inputs.shape[1:]
        return DataInfo((channels, height, width), len(self.class_names))


def samples_of(images: np.ndarray, labels: np.ndarray) -> Samples:
    """Samples from uint8 arrays as libraries keep them: N x H x W, or N x H x W x C."""
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    inputs = torch.from_numpy(np.ascontiguousarray(planes))
    return Samples(inputs, torch.as_tensor(labels, dtype=torch.int64))


def checked_labels(labels: np.ndarray, classes: int, where: str) -> np.ndarray:
    """`labels` if each names one of the `classes`; hubs mark unlabelled test rows with -1."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        got = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(
            f"{where}: labels must be 0 to {classes - 1}, got {got}; "
            "choose a split or column whose rows are all labelled"
        )
    return labels
