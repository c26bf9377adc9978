"""This module defines scikit-learn's digits and torchvision's data sets, and lists all sources.

A source's config says where the data are, `load` reads them, and `describe` returns what a model
must know without reading them. Sources never depend on a scenario's seed: the choice of test rows
is a property of the data.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simsplit.config import Config, map_kinds
from simsplit.data.arrays import NpzSource
from simsplit.data.folders import FolderSource
from simsplit.data.given_texts import TextGiven
from simsplit.data.image_tables import HubSource, ParquetSource
from simsplit.data.images import Form, convert_image
from simsplit.data.joined_tables import JoinedSource
from simsplit.data.passed_objects import GivenSource
from simsplit.data.samples import DataInfo, DataSet, Samples, SplitSizes, images_to_samples
from simsplit.data.source_config import SourceConfig
from simsplit.data.splits import hold_out
from simsplit.data.table_frames import SklearnSource, TableSource
from simsplit.data.texts import PythonDocs, TextHub, TextParquet
from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for


class DigitsSource(SourceConfig):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels; nothing is downloaded."""

    is_quick: ClassVar[bool] = True
    kind: Literal["digits"] = "digits"
    size: int = Field(default=28, ge=8, le=256)
    """Height and width to which the 8x8 images are scaled up bilinearly, in pixels."""
    repeat: int = Field(default=1, ge=1)
    """Number of copies of each training digit, so that many clients all get some. Above 1, no
    validation or public data may be held out, since copies of them would be trained on."""

    def describe(self) -> DataInfo:
        return DataInfo((1, self.size, self.size), 10)

    def count_samples(self) -> SplitSizes:
        return SplitSizes(1437 * self.repeat, 360)

    def load(self) -> DataSet:
        """Return 1,437 training and 360 test digits, stratified, the same in every run."""
        images, digits = _scale_digits(self.size)
        samples = images_to_samples(images, digits)
        kept, out = hold_out(digits, 0.2, numpy_rng_for(0, "digits", "test"))
        names = tuple(str(digit) for digit in range(10))
        train = samples.take(np.tile(kept, self.repeat))
        return DataSet("digits", train, samples.take(out), names)


@cache  # scaling takes as long as a small run, and the result is small: all runs share it
def _scale_digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    images, digits = _read_digits()
    scaled = [
        np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
        for image in np.rint(images * (255 / 16)).astype(np.uint8)
    ]
    return np.stack(scaled), digits


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read the digits from scikit-learn's file; importing scikit-learn takes longer than torch."""
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is installed"
    assert package.origin is not None, "scikit-learn is a package with a folder"
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(int)


_KNOWN = {
    "mnist": ("MNIST", DataInfo((1, 28, 28), 10), SplitSizes(60_000, 10_000)),
    "fashion_mnist": ("FashionMNIST", DataInfo((1, 28, 28), 10), SplitSizes(60_000, 10_000)),
    "cifar10": ("CIFAR10", DataInfo((3, 32, 32), 10), SplitSizes(50_000, 10_000)),
    "cifar100": ("CIFAR100", DataInfo((3, 32, 32), 100), SplitSizes(50_000, 10_000)),
    "gtsrb": ("GTSRB", DataInfo((3, 32, 32), 43), SplitSizes(26_640, 12_630)),
}
"""Kind -> torchvision's class, shape and classes, and numbers of samples."""


class TorchvisionSource(SourceConfig):
    """A data set of torchvision, downloaded if `download` allows it."""

    kind: Literal["mnist", "fashion_mnist", "cifar10", "cifar100", "gtsrb"]
    root: Path = Path("data")
    """Folder in which torchvision keeps its data sets."""
    download: bool = False
    """Whether data missing from `root` may be downloaded into it."""

    def describe(self) -> DataInfo:
        """Return the known shape and classes; GTSRB's images are resized to 32x32."""
        return _KNOWN[self.kind][1]

    def count_samples(self) -> SplitSizes:
        return _KNOWN[self.kind][2]

    def load(self) -> DataSet:
        train, test = self._open(train=True), self._open(train=False)
        read = _read_signs if self.kind == "gtsrb" else _read_arrays
        names = tuple(getattr(train, "classes", map(str, range(self.describe().classes))))
        return DataSet(self.kind, read(train), read(test), names)

    def _open(self, *, train: bool) -> Any:  # noqa: ANN401 - torchvision is untyped
        from torchvision import datasets

        split: bool | str = train
        if self.kind == "gtsrb":
            split = "train" if train else "test"
        try:
            make = getattr(datasets, _KNOWN[self.kind][0])
            return make(str(self.root), split, download=self.download)
        except (RuntimeError, OSError, ValueError) as error:
            raise DataError(self._explain_unusable(error)) from error

    def _explain_unusable(self, error: Exception) -> str:
        where = f"data.source.root: no usable {self.kind} in {self.root.absolute()}"
        if self.download:
            return f"{where}, and the download failed ({error}); put torchvision's files there"
        return f"{where} ({error}); set data.source.root, or data.source.download: true"


def _read_arrays(source: Any) -> Samples:  # noqa: ANN401
    """Read MNIST or CIFAR, which keep all their pixels in one array or tensor."""
    return images_to_samples(np.asarray(source.data), np.asarray(source.targets))


def _read_signs(source: Any) -> Samples:  # noqa: ANN401
    """Read GTSRB, which has a file per image."""
    form = Form(3, 32, 32, resize=True)
    images, labels = [], []
    for image, label in source:
        images.append(convert_image(image, form, "data.source.root: gtsrb"))
        labels.append(label)
    return images_to_samples(np.stack(images), np.array(labels))


Source = Annotated[
    DigitsSource
    | TorchvisionSource
    | ParquetSource
    | HubSource
    | FolderSource
    | NpzSource
    | TableSource
    | SklearnSource
    | JoinedSource
    | GivenSource
    | PythonDocs
    | TextParquet
    | TextHub
    | TextGiven,
    Field(discriminator="kind"),
]
SOURCES: dict[str, type[Config]] = map_kinds(Source)
