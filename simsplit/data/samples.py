"""What every data source yields: labelled images or numbers, or texts with what is to be learned.

All images stay uint8, as they were stored: a data set then takes a quarter of the memory of floats,
moves to an accelerator once, and is normalised a batch at a time (see `batches`). Numbers (rows of
a table, arrays of floats) are taken as they are. Texts are tokens, padded to the same length; the
label at a position is the token (or class) to predict there.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from simsplit.data.splits import numbers_of
from simsplit.errors import DataError

IGNORED = -100
"""Label of a position where nothing is to be learned; torch's losses skip it."""


@dataclass(frozen=True)
class DataInfo:
    """What a model needs to know of the data before they are loaded."""

    shape: tuple[int, ...]
    """Images: channels, height, width; texts: maximum number of tokens; tables: columns."""
    classes: int
    texts: bool = False
    """Whether samples are texts."""
    shares: tuple[float, ...] = ()
    """The share of each class among training samples; empty where it is not known yet."""

    def blank(self, count: int) -> Tensor:
        """A batch of this many blank samples, as a head takes them."""
        kind = torch.int64 if self.texts else torch.float32
        return torch.zeros(count, *self.shape, dtype=kind)


@dataclass(frozen=True)
class TextInfo:
    """What samples have besides tokens and labels if they are texts."""

    lengths: Tensor
    """int64, N: number of tokens, padding not counted."""
    prompts: Tensor
    """int64, N: how many of them are the prompt."""
    groups: Tensor
    """int64, N: class or topic, by which texts are dealt to clients."""
    left: bool = False
    """Whether padding is on the left."""
    masked: bool = False
    """Whether padding must be masked on the right too."""

    def take(self, rows: Tensor) -> "TextInfo":
        """The information on the texts `rows`."""
        lengths, prompts, groups = self.lengths[rows], self.prompts[rows], self.groups[rows]
        return TextInfo(lengths, prompts, groups, self.left, self.masked)


class Choices(NamedTuple):
    """The token that tells a text's classes apart: the first in which their names differ."""

    after: int
    """How many tokens all names begin with."""
    tokens: tuple[int, ...]
    """That token of each class; none where there are no classes."""


class Vocabulary(NamedTuple):
    """What a run must know of the tokenizer of its model."""

    size: int
    pad: int
    special: frozenset[int]
    """Tokens that stand for no text, such as padding."""
    choices: Choices | None
    """Only of causal models."""


@dataclass(frozen=True)
class Samples:
    """Labelled samples, row by row."""

    inputs: Tensor
    """Images: uint8, N x C x H x W; numbers: float32, N x any shape; texts: int64, N x L."""
    labels: Tensor
    """int64, N; of texts N x L."""
    texts: TextInfo | None = None
    """Only of texts."""
    owners: np.ndarray | None = None
    """Each row's client, where the data say whose it is."""

    def __post_init__(self) -> None:
        assert self.labels.dtype == torch.int64
        assert self.owners is None or len(self.owners) == len(self.labels)
        if self.texts is None:
            assert self.inputs.dtype in (torch.uint8, torch.float32)
            assert self.inputs.ndim == 4 if self.images else self.inputs.ndim > 1
            assert self.labels.shape == self.inputs.shape[:1]
        else:
            assert self.inputs.dtype == torch.int64
            assert self.labels.shape == self.inputs.shape

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> bool:
        """Whether they are images, and neither numbers nor texts."""
        return self.inputs.dtype == torch.uint8

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors hold."""
        return self.inputs.nbytes + self.labels.nbytes

    @property
    def groups(self) -> np.ndarray:
        """What partitions and held-out parts are stratified by: classes, or topics of texts."""
        groups: np.ndarray = (self.labels if self.texts is None else self.texts.groups).numpy()
        return groups

    def answering(self, after: int) -> Tensor:
        """The positions that predict token `after` of each answer, as a mask: N x L."""
        assert self.texts is not None, "asked of texts alone"
        places = torch.arange(self.inputs.shape[1])
        starts = self.inputs.shape[1] - self.texts.lengths if self.texts.left else 0
        return places == (starts + self.texts.prompts - 1 + after)[:, None]

    def take(self, indices: np.ndarray | Tensor) -> "Samples":
        """The rows named by `indices`, in that order, as a copy."""
        rows = torch.as_tensor(indices)
        texts = None if self.texts is None else self.texts.take(rows)
        owners = None if self.owners is None else self.owners[rows.numpy()]
        return Samples(self.inputs[rows], self.labels[rows], texts, owners)


@dataclass(frozen=True)
class DataSet:
    """A source's training and test samples, and the names of its classes."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    fitted: str | None = None
    """On which rows scales and categories of a table were fitted."""

    @property
    def info(self) -> DataInfo:
        """Shape and number of classes."""
        texts = self.train.texts is not None
        return DataInfo(tuple(self.train.inputs.shape[1:]), len(self.class_names), texts=texts)

    def of(self, classes: tuple[str, ...]) -> "DataSet":
        """The samples of these classes alone, which are numbered anew in this order."""
        numbers = torch.tensor(numbers_of(classes, self.class_names))
        train, test = (_numbered_anew(each, numbers) for each in (self.train, self.test))
        return replace(self, train=train, test=test, class_names=classes)


def _numbered_anew(samples: Samples, numbers: Tensor) -> Samples:
    rows, labels = (samples.labels[:, None] == numbers).nonzero(as_tuple=True)
    return replace(samples.take(rows), labels=labels)


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
