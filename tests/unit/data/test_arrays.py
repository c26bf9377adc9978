"""Arrays as samples: bytes are images, other numbers are as they are, labels are any classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from simsplit.data.arrays import NpzSource, find_class_names, make_samples, number_labels
from simsplit.data.samples import DataInfo
from simsplit.errors import DataError


@pytest.mark.parametrize(
    ("shape", "form"),
    [((4, 8, 9), (1, 8, 9)), ((4, 8, 9, 3), (3, 8, 9)), ((4, 3, 8, 9), (3, 8, 9))],
)
def test_bytes_are_images_wherever_their_channels_are(
    shape: tuple[int, ...], form: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    samples = make_samples(x, [0, 1, 0, 1], ("0", "1"), "x")
    assert samples.images
    assert tuple(samples.inputs.shape[1:]) == form
    first = x[1] if len(form) == len(shape) - 1 and shape[1] == 3 else x[1].reshape(8, 9, -1)
    expected = first if shape[1] == 3 else np.moveaxis(first, -1, 0)
    assert np.array_equal(samples.inputs[1].numpy(), expected)


def test_other_numbers_are_as_they_are() -> None:
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    samples = make_samples(x, torch.tensor([0, 1, 1, 0, 1]), ("0", "1"), "x")
    assert not samples.images
    assert torch.equal(samples.inputs, x.float())


@pytest.mark.parametrize(
    ("labels", "names", "codes"),
    [
        ([7, 0, 7], ("0", "7"), [1, 0, 1]),  # two classes, not eight
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([1.0, 0.0, 1.0], ("0", "1"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),  # by number, not by word
    ],
)
def test_labels_are_numbered_in_their_order(
    labels: list[Any], names: tuple[str, ...], codes: list[int]
) -> None:
    assert find_class_names(np.array(labels), "y") == names
    assert number_labels(np.array(labels), names, "y").tolist() == codes


@pytest.mark.parametrize(
    ("x", "y", "gist"),
    [
        (np.zeros((2, 3)), [0, 1, 1], "2 samples and 3 labels"),
        (np.array([[0.0], [np.nan]]), [0, 1], "row 1.*missing"),
        (np.zeros((2, 4, 4, 7), np.uint8), [0, 1], "1 or 3 channels"),
        (np.zeros(2), [0, 1], "row per sample"),
    ],
)
def test_what_is_no_sample_is_refused(x: np.ndarray, y: list[int], gist: str) -> None:
    with pytest.raises(DataError, match=gist):
        make_samples(x, y, ("0", "1"), "x")


@pytest.mark.parametrize(
    ("labels", "gist"),
    [([1, 1], "'1' alone"), ([0.0, np.nan], "no label"), (["a", None], "no label")],
)
def test_labels_that_are_no_classes_are_refused(labels: list[Any], gist: str) -> None:
    with pytest.raises(DataError, match=gist):
        find_class_names(np.array(labels, dtype=object if None in labels else None), "y")


def save(path: Path, **arrays: np.ndarray) -> NpzSource:
    np.savez(path / "own.npz", **arrays)
    return NpzSource(path=path / "own.npz")


def test_a_file_of_images_with_a_test_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (30, 8, 8), dtype=np.uint8)
    labels = np.arange(30) % 3
    source = save(
        tmp_path, x_train=images[:20], y_train=labels[:20], x_test=images[20:], y_test=labels[20:]
    )
    data = source.load()
    assert source.modality == "images"
    assert source.describe() == data.info == DataInfo((1, 8, 8), 3)
    assert np.array_equal(data.test.inputs[:, 0].numpy(), images[20:])


def test_a_file_of_numbers_is_divided_the_same_way_each_time(tmp_path: Path) -> None:
    source = save(tmp_path, x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 2)
    one, other = source.load(), source.load()
    assert source.modality == "tables"
    assert len(one.test) == 10
    assert torch.equal(one.test.inputs, other.test.inputs)


def test_files_that_are_none_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it needs x_train"):
        save(tmp_path, a=np.zeros(3)).load()
    (tmp_path / "own.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"data\.source\.path: .*\.npz"):
        NpzSource(path=tmp_path / "own.npz").load()
    np.savez(tmp_path / "pickled.npz", x=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    with pytest.raises((DataError, ValueError)):
        NpzSource(path=tmp_path / "pickled.npz").load()
