"""Data that a Python call passes: all forms come to the same samples."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from simsplit.data.passed_objects import build_data_set, build_given_source
from simsplit.errors import DataError

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2
PAIR, REST = (X[:15], Y[:15]), (X[15:], Y[15:])


class Listed:
    """What torch calls a map-style Dataset."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.x[row], int(self.y[row])


@pytest.mark.parametrize(
    "data",
    [
        (PAIR, REST),
        {"train": PAIR, "test": REST},
        {"train": tuple(map(torch.from_numpy, PAIR)), "test": tuple(map(torch.from_numpy, REST))},
        {"train": Listed(*PAIR), "test": Listed(*REST)},
        {
            "train": TensorDataset(*map(torch.from_numpy, PAIR)),
            "test": TensorDataset(*map(torch.from_numpy, REST)),
        },
        {"train": [(X[:10], Y[:10]), (X[10:15], Y[10:15])], "test": REST},
    ],
    ids=["items .*pairs", "mapping", "tensors", "dataset", "TensorDataset", "dealt"],
)
def test_all_forms_come_to_the_same_samples(data: Any) -> None:
    made = build_data_set(data)
    assert np.array_equal(made.train.inputs, X[:15])
    assert np.array_equal(made.test.inputs, X[15:])
    assert np.array_equal(made.train.labels, Y[:15])
    dealt = isinstance(data, dict) and isinstance(data["train"], list)
    owners = made.train.owners
    assert (owners is not None) == dealt
    if owners is not None:
        assert owners.tolist() == [0] * 10 + [1] * 5


def test_a_part_is_held_out_where_no_test_data_are_passed() -> None:
    made = build_data_set((X, Y))
    assert (len(made.train), len(made.test)) == (16, 4)
    together = torch.cat([made.train.inputs, made.test.inputs])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, torch.from_numpy(X).tolist()))


def test_a_frame_is_a_table() -> None:
    frame = pd.DataFrame(X, columns=list("abc")).assign(kind=np.where(Y, "yes", "no"))
    made = build_data_set(frame)
    assert made.class_names == ("no", "yes")
    assert made.info.shape == (3,)
    parts = build_data_set([frame[:12], frame[12:]])
    assert parts.info.shape == (3,)
    assert parts.train.owners is not None
    assert len(set(parts.train.owners)) == 2


def test_the_hubs_datasets_of_images() -> None:
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 255, (10, 8, 8, 3), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": list(images), "label": [0, 1] * 5}
    made = build_data_set(datasets.Dataset.from_dict(rows, features=features))
    assert made.class_names == ("cat", "dog")
    assert made.info.shape == (3, 8, 8)
    assert len(made.train) + len(made.test) == 10


def test_a_digest_tells_data_apart() -> None:
    one = build_given_source((PAIR, REST))
    assert one == build_given_source({"train": PAIR, "test": REST})
    other = X.copy()
    other[0, 0] += 1e-3
    assert one.digest != build_given_source(((other[:15], Y[:15]), REST)).digest
    dealt = build_given_source({"train": [(X[:10], Y[:10]), (X[10:15], Y[10:15])], "test": REST})
    assert dealt.digest != one.digest


@pytest.mark.parametrize(
    ("data", "gist"),
    [
        ([], "empty list"),
        ("digits", "a str"),
        ({"test": PAIR}, "needs 'train'"),
        ([X, Y], "items .*pairs"),
        ([(X[:4], Y[:4]), (X[:4, :2], Y[:4])], "one shape"),
    ],
)
def test_what_is_no_data_is_refused_with_the_allowed_forms(data: Any, gist: str) -> None:
    with pytest.raises(DataError, match=gist):
        build_data_set(data)
