"""This module defines what every data source returns: labelled images, features or texts.

Images stay uint8, as they were stored: a data set then takes a quarter of the memory of floats,
moves to an accelerator once, and is normalised batch by batch (see `batches`). Features (rows of a
table, arrays of floats) are not scaled. Texts are tokens, padded to the same length; the label at a
position is the token or class to predict there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from simsplit.data.splits import find_class_numbers
from simsplit.errors import DataError

_OF_TEXTS = ("lengths", "prompts", "groups")
IGNORED = -100
"""Label of a position at which nothing is learned; torch's losses skip it."""


@dataclass(frozen=True)
class DataInfo:
    """What a model must know about data before they are loaded."""

    shape: tuple[int, ...]
    """Shape of a sample: channels, height and width of an image, columns of a table row, or the
    largest number of tokens of a text."""
    classes: int
    texts: bool = False
    """Whether samples are texts."""
    shares: tuple[float, ...] = ()
    """The share of each class among the training samples; empty if it is not known yet."""
    parts: tuple[tuple[int, ...], ...] = ()
    """The shape of each party's portion of a sample; empty where clients have whole samples."""

    def of_party(self, client: int) -> "DataInfo":
        """Return what a client's own head must know."""
        return replace(self, shape=self.parts[client]) if self.parts else self

    def make_blank(self, count: int) -> Tensor:
        """Return a batch of `count` samples of zeros, as a head takes them."""
        kind = torch.int64 if self.texts else torch.float32
        return torch.zeros(count, *self.shape, dtype=kind)


@dataclass(frozen=True)
class TextInfo:
    """What texts have besides tokens and labels."""

    lengths: Tensor
    """int64, N: number of tokens without padding."""
    prompts: Tensor
    """int64, N: number of tokens that belong to the prompt."""
    groups: Tensor
    """int64, N: class or topic by which partitions divide texts."""
    left: bool = False
    """Whether padding is on the left."""
    masked: bool = False
    """Whether padding on the right must be masked too: attention is not causal."""
    fields: Tensor | None = None
    """int64, N x K: number of tokens of each of K parties' texts, each padded by itself; None: a
    row is one text."""

    def take(self, rows: Tensor) -> "TextInfo":
        """Return the information on the texts `rows`."""
        lengths, prompts, groups = self.lengths[rows], self.prompts[rows], self.groups[rows]
        fields = None if self.fields is None else self.fields[rows]
        return TextInfo(lengths, prompts, groups, self.left, self.masked, fields)

    def take_field(self, party: int) -> "TextInfo":
        """Return the information on one party's texts."""
        assert self.fields is not None, "clients have whole texts"
        lengths = self.fields[:, party]
        # all but the token that closes an encoder's text
        return replace(self, lengths=lengths, prompts=lengths - 1, fields=None)


class SplitSizes(NamedTuple):
    """The number of samples of a source, known without reading them."""

    train: int
    test: int


class Choices(NamedTuple):
    """The answer tokens that tell classes apart: the first at which the classes' names differ."""

    after: int
    """Number of tokens with which all names begin."""
    tokens: tuple[int, ...]
    """The token of each class; empty if there are no classes."""


class Vocabulary(NamedTuple):
    """What a run must know about its model's tokenizer."""

    size: int
    pad: int
    special: frozenset[int]
    """Tokens that stand for no text, such as padding."""
    choices: Choices | None
    """None unless the model is causal."""


@dataclass(frozen=True)
class Samples:
    """Labelled samples, row by row."""

    inputs: Tensor
    """Images: uint8, N x C x H x W; numbers: float32, N x any shape; texts: int64, N x L."""
    labels: Tensor
    """int64: N, or N x L of texts."""
    texts: TextInfo | None = None
    """None unless the samples are texts."""
    owners: np.ndarray | None = None
    """Each row's client, if the data name it."""

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
        """Whether the samples are images rather than features or texts."""
        return self.inputs.dtype == torch.uint8

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and labels."""
        return self.inputs.nbytes + self.labels.nbytes

    @property
    def groups(self) -> np.ndarray:
        """Numbers by which samples are divided and stratified: classes, or topics of texts."""
        groups: np.ndarray = (self.labels if self.texts is None else self.texts.groups).numpy()
        return groups

    def mask_answers(self, after: int) -> Tensor:
        """Return a mask, N x L, of the positions that predict token `after` of each answer."""
        assert self.texts is not None, "only texts have answers"
        places = torch.arange(self.inputs.shape[1])
        starts = self.inputs.shape[1] - self.texts.lengths if self.texts.left else 0
        # position p predicts token p + 1, hence - 1
        return places == (starts + self.texts.prompts - 1 + after)[:, None]

    def take(self, indices: np.ndarray | Tensor) -> "Samples":
        """Return a copy of the rows `indices`, in that order."""
        rows = torch.as_tensor(indices)
        texts = None if self.texts is None else self.texts.take(rows)
        owners = None if self.owners is None else self.owners[rows.numpy()]
        return Samples(self.inputs[rows], self.labels[rows], texts, owners)


def join_samples(*parts: Samples) -> Samples:
    """Join samples of the same form, one part behind the other, without their owners."""
    first = parts[0]
    infos = [each.texts for each in parts if each.texts is not None]
    texts = None
    if first.texts is not None:
        lengths, prompts, groups = (_join(infos, name) for name in _OF_TEXTS)
        texts = TextInfo(lengths, prompts, groups, first.texts.left, first.texts.masked)
    return Samples(_join(parts, "inputs"), _join(parts, "labels"), texts)


def _join(parts: Sequence[object], name: str) -> Tensor:
    """Join the tensors of a name."""
    return torch.cat([getattr(each, name) for each in parts])


@dataclass(frozen=True)
class Canaries:
    """Pairs of samples, one of each of which a coin chose for a client's training data."""

    client: int
    samples: Samples
    """The first sample of each pair, then the second ones, with the labels of training."""
    first: np.ndarray
    """Of each pair, whether the first sample is trained on."""


@dataclass(frozen=True)
class DataSet:
    """A source's training and test samples, and the names of its classes."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    fitted: str | None = None
    """The rows on which scales and categories of a table were fitted; None of other data."""
    owner_names: tuple[str, ...] = ()
    """The names of the clients that `owners` of the training samples number; empty: none."""
    warnings: tuple[str, ...] = ()
    """What a user should know of how the data were read, a line each."""
    columns: tuple[str, ...] = ()
    """The column of the source that each number of a row comes from; empty: they have no names."""
    ids: str = ""
    """A digest of the rows' ids, on which parties must agree; empty: rows have none."""

    @property
    def info(self) -> DataInfo:
        """Shape and number of classes."""
        texts = self.train.texts is not None
        return DataInfo(tuple(self.train.inputs.shape[1:]), len(self.class_names), texts=texts)

    def select_classes(self, classes: tuple[str, ...]) -> "DataSet":
        """Return only the samples of these classes, numbered from 0 in this order."""
        numbers = torch.tensor(find_class_numbers(classes, self.class_names))
        train, test = (_renumber(each, numbers) for each in (self.train, self.test))
        return replace(self, train=train, test=test, class_names=classes)


def _renumber(samples: Samples, numbers: Tensor) -> Samples:
    rows, labels = (samples.labels[:, None] == numbers).nonzero(as_tuple=True)
    return replace(samples.take(rows), labels=labels)


def images_to_samples(images: np.ndarray, labels: np.ndarray) -> Samples:
    """Make samples of uint8 images as libraries store them: N x H x W, or N x H x W x C."""
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    inputs = torch.from_numpy(np.ascontiguousarray(planes))
    return Samples(inputs, torch.as_tensor(labels, dtype=torch.int64))


def check_labels(labels: np.ndarray, classes: int, where: str) -> None:
    """Raise DataError if a label is not a class, such as the hub's -1 (no label)."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        got = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(
            f"{where}: labels must be 0 to {classes - 1}, got {got}; "
            "choose a split or column whose rows are all labelled"
        )


def get_classes(labels: Tensor) -> Tensor:
    """Return the class of each sample; a negative number means that it has none."""
    # All other tokens of a text have the label -100, so the largest label is the class.
    return labels if labels.ndim == 1 else labels.amax(1)


def widen_labels(labels: Tensor, outputs: Tensor) -> Tensor:
    """Let labels of texts reach over the outputs for other parties' tokens, which have none."""
    if labels.ndim == 1 or labels.shape[1] >= outputs.shape[1]:
        return labels
    return pad(labels, (0, outputs.shape[1] - labels.shape[1]), value=IGNORED)


def replace_classes(labels: Tensor, classes: Tensor) -> Tensor:
    """Put other classes into the labels; a sample without a class keeps none."""
    there = classes if labels.ndim == 1 else classes[:, None].expand_as(labels)
    return torch.where(labels >= 0, there, labels)
