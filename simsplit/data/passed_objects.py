"""This module reads data passed from Python: arrays, tensors, torch or hub Datasets, frames.

A scenario names such data by their digest, so that a resumed run needs the same data again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from simsplit.client_names import DEALT
from simsplit.data.arrays import find_class_names, make_samples, split_off_test, to_array
from simsplit.data.forms import (
    FORMS,
    build_options,
    get_passed,
    get_splits,
    is_frame,
    is_hub,
    is_pair,
    to_arrow,
)
from simsplit.data.samples import DataInfo, DataSet, Samples, join_samples
from simsplit.data.source_config import SourceConfig
from simsplit.data.table_frames import FrameOptions, encode_frames
from simsplit.errors import DataError
from simsplit.objects_by_digest import hold

if TYPE_CHECKING:
    import pandas as pd

NAME = "given"


class GivenSource(SourceConfig):
    """Data passed from Python: `run(scenario, data=...)`. Do not write it by hand."""

    kind: Literal["given"] = "given"
    digest: str = ""
    """Digest of the data; the same data must be passed again to resume the run."""
    shape: tuple[int, ...] = ()
    """Shape of one sample."""
    classes: int = 0
    """Number of classes."""
    images: bool = False
    """Whether samples are images (uint8) rather than features."""

    @property
    def modality(self) -> Literal["images", "tables"]:
        return "images" if self.images else "tables"

    def describe(self) -> DataInfo | None:
        return DataInfo(self.shape, self.classes) if self.shape else None

    @property
    def owners(self) -> int:
        """Number of clients for which parts were passed; 0 if the data were passed as a whole."""
        owners = self.load().train.owners
        return 0 if owners is None else len(np.unique(owners))

    def load(self) -> DataSet:
        return cast("DataSet", get_passed(self.digest))


def build_given_source(data: Any, **columns: Any) -> GivenSource:  # noqa: ANN401 - many forms
    """Build the source of data that were passed, and keep the data in this process."""
    made = build_data_set(data, build_options(FrameOptions, columns))
    digest = _compute_digest(made)
    hold({digest: made})
    train = made.train
    return GivenSource(
        digest=digest,
        shape=tuple(train.inputs.shape[1:]),
        classes=len(made.class_names),
        images=train.images,
    )


def build_data_set(data: Any, options: FrameOptions = FrameOptions()) -> DataSet:  # noqa: ANN401, B008
    """Build training and test samples of the data passed; raise DataError if the form is unknown.

    Without test samples a fifth of every class becomes test data, the same in every run.
    """
    if isinstance(data, DataSet):
        return data
    train, test = get_splits(data)
    parts = train if isinstance(train, list) else [train]
    if not parts:
        raise DataError("data: an empty list; pass a part for each client")
    if is_frame(parts[0]):
        return _read_frames(parts, test, options, dealt=isinstance(train, list))
    if is_hub(parts[0]):
        return _read_hub(parts, test)
    pairs = [(x, to_array(y)) for x, y in map(_read_pair, parts)]
    names = find_class_names(np.concatenate([y for _, y in pairs]), "data (labels)")
    made = [make_samples(*pair, names, "data") for pair in pairs]
    whole = _join(made, dealt=isinstance(train, list))
    if test is None:
        return split_off_test(NAME, whole, names, options.test_fraction)
    return DataSet(NAME, whole, make_samples(*_read_pair(test), names, "data, test"), names)


def _read_pair(part: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return one part's inputs and labels; raise DataError if its form is unknown."""
    if is_pair(part):
        return part  # type: ignore[no-any-return]
    if is_hub(part) or is_frame(part):
        raise DataError("data: parts must be of one form; got tables beside others")
    if hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, str):
        return _read_dataset(part)
    raise DataError(f"data: cannot be a {type(part).__name__}; allowed: {FORMS}")


def _read_dataset(dataset: Any) -> tuple[np.ndarray, np.ndarray]:  # noqa: ANN401
    """Read a torch Dataset, whose items are pairs of a sample and its label."""
    items = [dataset[row] for row in range(len(dataset))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(
            f"data: {type(dataset).__name__} must have items that are pairs (sample, label); "
            f"allowed: {FORMS}"
        )
    x = np.stack([np.asarray(sample) for sample, _ in items])
    return x, np.array([label.item() if hasattr(label, "item") else label for _, label in items])


def _read_frames(
    parts: list["pd.DataFrame"],
    test: "pd.DataFrame | None",
    options: FrameOptions,
    *,
    dealt: bool,
) -> DataSet:
    import pandas as pd

    if dealt:
        # with leading zeros: owners are numbered in the order of their names
        owned = [part.assign(**{DEALT: f"{number:06d}"}) for number, part in enumerate(parts)]
        target = options.target or str(parts[0].columns[-1])
        options = options.model_copy(update={"client": DEALT, "target": target})
        return encode_frames(NAME, pd.concat(owned, ignore_index=True), test, options)
    return encode_frames(NAME, parts[0], test, options)


def _read_hub(parts: list[Any], test: Any) -> DataSet:  # noqa: ANN401
    """Read the images of hub Datasets; raise DataError if no column holds images."""
    import pyarrow as pa

    from simsplit.data.image_tables import HubSource, decode_tables

    if not any(type(kind).__name__ == "Image" for kind in parts[0].features.values()):
        raise DataError(
            "data: a datasets.Dataset must have a column of images, or texts: a column `text`, or "
            "task=... beside data; pass tables as frames (dataset.to_pandas())"
        )
    tables = [to_arrow(part) for part in parts]
    train = pa.concat_tables(tables)
    # without test data one row stands in for them, since both tables are decoded
    decoded = decode_tables(
        NAME, train, train.slice(0, 1) if test is None else to_arrow(test), HubSource(name=NAME)
    )
    whole = decoded.train
    if len(parts) > 1:
        owners = np.repeat(np.arange(len(parts)), [len(table) for table in tables])
        whole = replace(whole, owners=owners)
    if test is None:
        return split_off_test(NAME, whole, decoded.class_names, FrameOptions().test_fraction)
    return DataSet(NAME, whole, decoded.test, decoded.class_names)


def _join(parts: Sequence[Samples], *, dealt: bool) -> Samples:
    """Join the parts' samples; if each client got a part, note each row's client."""
    if not dealt:
        return parts[0]
    shapes = {tuple(part.inputs.shape[1:]) for part in parts} | {part.images for part in parts}
    # equal parts give one shape and one boolean
    if len(shapes) > 2:
        raise DataError("data: all parts must have samples of one shape and type")
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return replace(join_samples(*parts), owners=owners)


def _compute_digest(data: DataSet) -> str:
    """Return a digest of everything in the data that a run uses."""
    hasher = hashlib.blake2b(repr(data.class_names).encode(), digest_size=8)
    for samples in (data.train, data.test):
        hasher.update(repr((samples.inputs.shape, samples.inputs.dtype)).encode())
        for array in (samples.inputs.numpy(), samples.labels.numpy(), samples.owners):
            hasher.update(b"" if array is None else np.ascontiguousarray(array).data)
    return hasher.hexdigest()
