"""This module reads a user's own images from a folder of files for each class."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from simsplit.data.images import Channels, Form, open_image, stack_images
from simsplit.data.samples import DataInfo, DataSet, Samples, SplitSizes
from simsplit.data.source_config import SourceConfig
from simsplit.data.splits import hold_out
from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for

_TEST_NAMES = ("test", "validation", "val")


class FolderSource(SourceConfig):
    """Image files in a sub-folder for each class, below train/ and test/ or all together."""

    kind: Literal["folder"] = "folder"
    path: Path
    """Folder that has train/ and test/ (or validation/ or val/), or one sub-folder per class; then
    `test_fraction` of the images become test data."""
    size: int = Field(default=32, ge=1)
    """Height and width to which images are resized, in pixels."""
    channels: Channels = 3
    """3 for colour, 1 for grey; images of the other kind are converted."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of every class that becomes test data if there is no train/ folder."""

    def describe(self) -> DataInfo | None:
        folder = self._find_train_folder()
        if not folder.is_dir():
            return None
        return DataInfo((self.channels, self.size, self.size), len(_list_classes(folder)))

    def count_samples(self) -> SplitSizes | None:
        folder = self._find_train_folder()
        if not folder.is_dir():
            return None
        names = _list_classes(folder)
        files = len(_list_files(folder, names))
        if folder != self.path:
            return SplitSizes(files, len(_list_files(self._find_test_folder(), names)))
        out = math.ceil(self.test_fraction * files)
        return SplitSizes(files - out, out)

    def load(self) -> DataSet:
        train_folder = self._find_train_folder()
        names = _list_classes(train_folder)
        train = self._read(train_folder, names)
        if train_folder != self.path:
            test = self._read(self._find_test_folder(), names)
        else:
            rng = numpy_rng_for(0, "folder", "test")
            kept, out = hold_out(train.labels.numpy(), self.test_fraction, rng)
            train, test = train.take(kept), train.take(out)
        return DataSet(self.path.name, train, test, names, warnings=self._warn_of_scale(names))

    def _warn_of_scale(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return a warning if images get another size that nobody asked for."""
        if "size" in self.model_fields_set:
            return ()
        file, _ = _list_files(self._find_train_folder(), names)[0]
        with open_image(Path(file), f"data.source.path: {file}") as first:
            width, height = first.size
        if (width, height) == (self.size, self.size):
            return ()
        return (
            f"scenario.data.source.size: {self.size} by default, so images are scaled to "
            f"{self.size} x {self.size}; the first is {width} x {height}",
        )

    def _find_train_folder(self) -> Path:
        nested = self.path / "train"
        return nested if nested.is_dir() else self.path

    def _find_test_folder(self) -> Path:
        for name in _TEST_NAMES:
            if (self.path / name).is_dir():
                return self.path / name
        raise DataError(
            f"data.source.path: {self.path} has train/ but none of {', '.join(_TEST_NAMES)}; "
            "add one, or set path to train/ itself to hold out a part of it"
        )

    def _read(self, folder: Path, names: tuple[str, ...]) -> Samples:
        files = _list_files(folder, names)
        images = ((Path(file), f"data.source.path: {file}") for file, _ in files)
        form = Form(self.channels, self.size, self.size, resize=True)
        # the scenario sets `channels`, so colour may turn grey here
        inputs = stack_images(images, len(files), form, strict=False)
        return Samples(inputs, torch.tensor(np.array([number for _, number in files])))


def _list_files(folder: Path, names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the image files below a folder, each with the number of its class."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    _check_classes(folder, names)
    numbers = {name: number for number, name in enumerate(names)}
    files: list[tuple[str, int]] = make_dataset(
        str(folder), numbers, IMG_EXTENSIONS, allow_empty=True
    )
    if not files:
        raise DataError(
            f"data.source.path: no image files below {folder}; allowed: {' '.join(IMG_EXTENSIONS)}"
        )
    return files


def _list_classes(folder: Path) -> tuple[str, ...]:
    from torchvision.datasets.folder import find_classes

    try:
        # .ipynb_checkpoints and __pycache__ are no classes.
        return tuple(n for n in find_classes(folder)[0] if not n.startswith((".", "__")))
    except OSError as error:
        raise DataError(
            f"data.source.path: {folder.absolute()} has no folder for each class ({error}); "
            "name a folder that has"
        ) from error


def _check_classes(folder: Path, names: tuple[str, ...]) -> None:
    strangers = sorted(set(_list_classes(folder)) - set(names))
    if strangers:
        raise DataError(
            f"data.source.path: {folder} has classes that the training data lack: "
            f"{', '.join(strangers)}; allowed: {', '.join(names)}"
        )
