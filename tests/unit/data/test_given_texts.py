"""Texts that a Python call passes: all forms come to the same rows, and labels to their names."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from simsplit.data.given_texts import build_given_texts, is_texts
from simsplit.data.tasks import Classification, Language
from simsplit.errors import DataError
from simsplit.scenario.loading import own

TEXTS = [f"a {word} film" for word in ("fine", "dull", "grim", "lovely", "bright")] * 4
LABELS = [1, 0, 0, 1, 1] * 4
TRAIN, TEST = (TEXTS[:15], LABELS[:15]), (TEXTS[15:], LABELS[15:])
WORDS = ["bad", "good"]


class Items:
    """A torch Dataset's interface."""

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        self.pairs = [*zip(texts, labels, strict=True)]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> tuple[str, int]:
        return self.pairs[row]


def frame(texts: list[str], labels: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"text": texts, "label": labels})


@pytest.mark.parametrize(
    "data",
    [
        (TRAIN, TEST),
        {"train": TRAIN, "test": (np.array(TEST[0]), torch.tensor(TEST[1]))},
        {"train": (pd.Series(TRAIN[0]), pd.Series(TRAIN[1])), "test": TEST},
        {"train": frame(*TRAIN), "test": frame(*TEST)},
        {"train": Items(*TRAIN), "test": Items(*TEST)},
    ],
    ids=["pairs", "array and tensor", "series", "frames", "datasets"],
)
def test_all_forms_are_one(data: Any) -> None:
    assert is_texts(data, {})
    source = build_given_texts(data)
    assert source.digest == build_given_texts((TRAIN, TEST)).digest
    assert source.class_names == ("0", "1")
    assert source.read_table("train")[0]["text"].to_pylist() == TRAIN[0]
    assert source.read_table("test")[0]["label"].to_pylist() == [*map(str, TEST[1])]


def test_labels_are_not_taken_for_numbers_of_classes() -> None:
    """Of labels 1 and 2, 1 is the first class."""
    source = build_given_texts((TEXTS, [label + 1 for label in LABELS]))
    assert isinstance(source.task, Classification)
    pieces = source.task.make_pieces(source.read_table("train")[0].to_pylist(), "data")
    assert {(piece.answer, piece.label) for piece in pieces} == {(" 1", 0), (" 2", 1)}


def test_a_fifth_of_every_class_is_held_out() -> None:
    source = build_given_texts((TEXTS, [WORDS[label] for label in LABELS]))
    train, test = (source.read_table(split)[0]["label"].to_pylist() for split in ("train", "test"))
    assert (train.count("good"), test.count("good")) == (10, 2)
    assert (train.count("bad"), test.count("bad")) == (6, 2)


def test_texts_alone_are_a_language_to_learn() -> None:
    source = build_given_texts({"train": TEXTS[:15], "test": TEXTS[15:]}, length=16)
    assert isinstance(source.task, Language)
    assert source.length == 16


def test_the_hubs_names_are_those_of_the_classes() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ugly", "fair"])}
    made = datasets.Dataset.from_dict(
        {"text": TEXTS, "label": LABELS}, features=datasets.Features(kinds)
    )
    assert is_texts(made, {})
    source = build_given_texts(made)
    assert source.class_names == ("ugly", "fair"), "in the hub's order"
    assert isinstance(source.task, Classification)
    pieces = source.task.make_pieces(source.read_table("train")[0].to_pylist(), "data")
    assert {(piece.answer, piece.label) for piece in pieces} == {(" ugly", 0), (" fair", 1)}


def test_a_task_of_ones_own_names_the_columns() -> None:
    rows = pd.DataFrame({"sentence": TEXTS, "label": LABELS})
    assert not is_texts(rows, {}), "a table"
    assert is_texts(rows, {"task": "sst2"})
    assert build_given_texts(rows, task="sst2").class_names == ("negative", "positive")


def test_parts_that_are_dealt_name_their_clients() -> None:
    changes = own(data=[(TEXTS[:5], LABELS[:5]), (TEXTS[5:], LABELS[5:])], length=24)
    assert changes["data.source"]["kind"] == "text_given"
    assert changes["clients.count"] == 2
    assert changes["data.partition"] == {"kind": "natural"}


@pytest.mark.parametrize(
    ("data", "options", "gist"),
    [
        ((TEXTS, LABELS[:3]), {}, "20 texts, but 3 labels"),
        ((["a", 3], [0, 1]), {}, "got int"),
        ((TEXTS, [0] * 20), {}, "got '0' alone"),
        ((TRAIN, TEXTS[15:]), {}, "test texts"),
        ((TRAIN, (["a"], [7])), {}, "class 7"),
        ((TEXTS, LABELS), {"lenght": 5}, "data: lenght:.*: client, learns, l"),
        ((TEXTS, LABELS), {"task": "sst3"}, "data: task:.*'sst3'.*'sst2'"),
    ],
)
def test_what_will_not_do(data: Any, options: dict[str, Any], gist: str) -> None:
    if isinstance(data[1], list) and isinstance(data[1][0], str):
        data = dict(zip(("train", "test"), data, strict=True))
    with pytest.raises(DataError, match=gist):
        build_given_texts(data, **options)
