"""Data that a Python call passes: arrays, tensors, torch's Datasets, frames, the hub's Datasets.

A scenario names them by their digest, so a resumed run is held to the same data.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch

from simsplit.data.arrays import class_names_of, divided, samples_from
from simsplit.data.base import SourceConfig
from simsplit.data.forms import (
    FORMS,
    arrow,
    as_labels,
    checked,
    is_frame,
    is_hub,
    is_pair,
    not_passed,
    splits_of,
)
from simsplit.data.frames import FrameOptions, encoded
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.errors import DataError
from simsplit.held import held, hold

if TYPE_CHECKING:
    import pandas as pd

NAME = "given"


class GivenSource(SourceConfig):
    """Data passed from Python: `run(scenario, data=...)`. Not to be written by hand."""

    kind: Literal["given"] = "given"
    digest: str = ""
    """Of the data, which a resumed run must be passed again."""
    shape: tuple[int, ...] = ()
    """Of one sample."""
    classes: int = 0
    """How many there are."""
    images: bool = False
    """Whether samples are images (bytes), or numbers."""

    @property
    def modality(self) -> Literal["images", "tables"]:
        """By the type of the numbers that were passed."""
        return "images" if self.images else "tables"

    def describe(self) -> DataInfo | None:
        """As they were when they were passed; None where they never were."""
        return DataInfo(self.shape, self.classes) if self.shape else None

    @property
    def owners(self) -> int:
        """How many clients they were dealt to; 0 if they were not."""
        owners = self.load().train.owners
        return 0 if owners is None else len(np.unique(owners))

    def load(self) -> DataSet:
        """What was passed in this process."""
        data = held(self.digest)
        if data is None:
            raise not_passed(self.digest)
        return cast("DataSet", data)


def given_source(data: Any, **columns: Any) -> GivenSource:  # noqa: ANN401 - many forms
    """The source of data that were passed; they are held in this process from now on."""
    made = data_set_of(data, checked(FrameOptions, columns))
    digest = _digest(made)
    hold({digest: made})
    train = made.train
    return GivenSource(
        digest=digest,
        shape=tuple(train.inputs.shape[1:]),
        classes=len(made.class_names),
        images=train.images,
    )


class _Reading(NamedTuple):
    """A way to make samples of one form: labels first, so that classes are known for all parts."""

    labels: Callable[[], np.ndarray]
    samples: Callable[[Sequence[str], str], Samples]


def data_set_of(data: Any, options: FrameOptions = FrameOptions()) -> DataSet:  # noqa: ANN401, B008
    """Training and test samples out of whatever was passed; DataError if it is none of the forms.

    Without test samples a fifth of every class is held out, the same in every run.
    """
    if isinstance(data, DataSet):
        return data
    train, test = splits_of(data)
    parts = train if isinstance(train, list) else [train]
    if not parts:
        raise DataError("data: an empty list; pass a part for each client")
    if is_frame(parts[0]):
        return _of_frames(parts, test, options, dealt=isinstance(train, list))
    if is_hub(parts[0]) and (images := _of_hub(parts, test)) is not None:
        return images
    read = [_reading(part) for part in parts]
    names = class_names_of(np.concatenate([each.labels() for each in read]), "data (labels)")
    made = [each.samples(names, "data") for each in read]
    whole = _joined(made, dealt=isinstance(train, list))
    if test is None:
        return divided(NAME, whole, names, options.test_fraction)
    return DataSet(NAME, whole, _reading(test).samples(names, "data, test"), names)


def _reading(part: Any) -> _Reading:  # noqa: ANN401
    """One part's labels and samples."""
    if is_pair(part):
        x, y = part
        return _Reading(lambda: as_labels(y), lambda names, where: samples_from(x, y, names, where))
    if is_hub(part) or is_frame(part):
        raise DataError("data: parts must be of one form; got tables beside others")
    if hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, str):
        return _of_dataset(part)
    raise DataError(f"data: cannot be a {type(part).__name__}; allowed: {FORMS}")


def _of_dataset(dataset: Any) -> _Reading:  # noqa: ANN401
    """Of a torch Dataset, whose items are pairs of a sample and its label."""
    items = [dataset[row] for row in range(len(dataset))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(
            f"data: {type(dataset).__name__} must have items that are pairs (sample, label); "
            f"allowed: {FORMS}"
        )
    x = np.stack([_as_array(sample) for sample, _ in items])
    y = np.array([label.item() if hasattr(label, "item") else label for _, label in items])
    return _Reading(lambda: y, lambda names, where: samples_from(x, y, names, where))


def _as_array(sample: Any) -> np.ndarray:  # noqa: ANN401
    return sample.numpy() if isinstance(sample, torch.Tensor) else np.asarray(sample)


def _of_frames(
    parts: list["pd.DataFrame"],
    test: "pd.DataFrame | None",
    options: FrameOptions,
    *,
    dealt: bool,
) -> DataSet:
    import pandas as pd

    if dealt:
        owned = [part.assign(**{_OWNER: f"{number:06d}"}) for number, part in enumerate(parts)]
        target = options.target or str(parts[0].columns[-1])
        options = options.model_copy(update={"client": _OWNER, "target": target})
        return encoded(NAME, pd.concat(owned, ignore_index=True), test, options)
    return encoded(NAME, parts[0], test, options)


_OWNER = "(client)"


def _of_hub(parts: list[Any], test: Any) -> DataSet | None:  # noqa: ANN401
    """Of the hub's images; None where no column holds any, so that it is a table of numbers."""
    import pyarrow as pa

    from simsplit.data.tables import HubSource, data_set

    if not any(type(kind).__name__ == "Image" for kind in parts[0].features.values()):
        raise DataError(
            "data: a datasets.Dataset must have a column of images, or texts: a column `text`, or "
            "task=... beside data; pass tables as frames (dataset.to_pandas())"
        )
    tables = [arrow(part) for part in parts]
    train = pa.concat_tables(tables)
    found = data_set(
        NAME, train, train.slice(0, 1) if test is None else arrow(test), HubSource(name=NAME)
    )
    whole = found.train
    if len(parts) > 1:
        owners = np.repeat(np.arange(len(parts)), [len(table) for table in tables])
        whole = Samples(whole.inputs, whole.labels, None, owners)
    if test is None:
        return divided(NAME, whole, found.class_names, FrameOptions().test_fraction)
    return DataSet(NAME, whole, found.test, found.class_names)


def _joined(parts: Sequence[Samples], *, dealt: bool) -> Samples:
    """All parts' samples, which remember whose they are if they were dealt."""
    if not dealt:
        return parts[0]
    shapes = {tuple(part.inputs.shape[1:]) for part in parts} | {part.images for part in parts}
    if len(shapes) > 2:
        raise DataError("data: all parts must have samples of one shape and type")
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    inputs = torch.cat([part.inputs for part in parts])
    return Samples(inputs, torch.cat([part.labels for part in parts]), None, owners)


def _digest(data: DataSet) -> str:
    """Of all that a run makes of the data."""
    hasher = hashlib.blake2b(repr(data.class_names).encode(), digest_size=8)
    for samples in (data.train, data.test):
        hasher.update(repr((samples.inputs.shape, samples.inputs.dtype)).encode())
        for array in (samples.inputs.numpy(), samples.labels.numpy(), samples.owners):
            hasher.update(b"" if array is None else np.ascontiguousarray(array).data)
    return hasher.hexdigest()
