import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from simsplit import data
from simsplit.data import DataConfig, prepare
from simsplit.data.batches import measure_channels
from simsplit.data.partitions import Dirichlet, Iid
from simsplit.data.samples import DataInfo
from simsplit.data.sources import DigitsSource, TorchvisionSource
from simsplit.errors import ScenarioError


@pytest.fixture
def numbered(tmp_path):
    """200 training images of 2x2 pixels in two uneven classes, each of a shade of its own."""
    for split, counts in (("train", (150, 50)), ("test", (12, 4))):
        shade = 0
        for name, count in zip("ab", counts, strict=True):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for _ in range(count):
                Image.new("L", (2, 2), shade).save(folder / f"{shade:03}.png")
                shade += 1
    return {"kind": "folder", "path": str(tmp_path), "size": 2, "channels": 1}


def shades(samples):
    return set(samples.inputs[:, 0, 0, 0].tolist()) if samples is not None else set()


def png(shade):
    file = io.BytesIO()
    Image.new("L", (2, 2), shade).save(file, "PNG")
    return file.getvalue()


def prepare_data(source, clients=4, seed=0, **fields):
    return prepare(DataConfig.model_validate({"source": source, **fields}), clients, seed)


def test_words_stand_for_kinds():
    config = DataConfig.model_validate({"source": "cifar10", "partition": "dirichlet"})
    assert config.source == TorchvisionSource(kind="cifar10")
    assert config.partition == Dirichlet()
    assert DataConfig().source == DigitsSource()
    assert DataConfig().partition == Iid()
    with pytest.raises(ValidationError, match="mnist"):
        DataConfig.model_validate({"source": "minst"})


def test_nothing_is_in_two_places(numbered):
    got = prepare_data(numbered, validation=0.1, auxiliary=0.2)
    train, validation, auxiliary = map(shades, (got.train, got.validation, got.auxiliary))
    assert (len(train), len(validation), len(auxiliary)) == (140, 20, 40)
    assert train | validation | auxiliary == set(range(200))
    assert sorted(np.concatenate(got.parts).tolist()) == list(range(140))
    # three to one, as in all of the training data
    assert np.bincount(got.validation.labels).tolist() == [15, 5]
    assert np.bincount(got.auxiliary.labels).tolist() == [30, 10]


def test_nothing_held_out_is_none_and_all_is_dealt(numbered):
    got = prepare_data(numbered)
    assert got.validation is None
    assert got.auxiliary is None
    assert shades(got.train) == set(range(200))
    assert [len(part) for part in got.parts] == [50] * 4
    assert (got.info.classes, len(got.test)) == (2, 16)


def test_even_clients_have_all_classes_alike_and_the_others_divide_the_rest(numbered):
    skewed = {"kind": "dirichlet", "alpha": 0.1}
    got = prepare_data(
        numbered, clients=5, partition=skewed, even={"clients": [3, 1], "samples": 24}
    )
    counts = [np.bincount(got.train.labels[part], minlength=2).tolist() for part in got.parts]
    whole = np.bincount(got.train.labels)
    assert counts[1] == counts[3] == (24 * whole / whole.sum()).round().astype(int).tolist()
    assert sorted(np.concatenate(got.parts).tolist()) == list(range(200))
    assert max(min(counts[client]) / sum(counts[client]) for client in (0, 2, 4)) < 0.5
    more = prepare_data(numbered, clients=5, partition=skewed, even={"clients": [1], "samples": 24})
    assert np.array_equal(more.parts[1], got.parts[1]), "another even client moves nobody's samples"


def test_classes_picks_some_and_numbers_them_in_its_order():
    two = prepare_data("digits", classes=[8, 3], train_samples=100)
    whole = DigitsSource().load()
    assert (two.class_names, two.info.classes) == (("8", "3"), 2)
    assert np.bincount(two.train.labels) == pytest.approx([49, 51], abs=2)  # before it is limited
    for split in ("train", "test"):
        all_of, some = getattr(whole, split), getattr(two, split)
        named = {
            (bytes(i.numpy()), int(n)) for i, n in zip(all_of.inputs, all_of.labels, strict=True)
        }
        got = {
            (bytes(i.numpy()), (8, 3)[n])
            for i, n in zip(some.inputs, some.labels.tolist(), strict=True)
        }
        assert got <= named
    assert len(two.test) == int(np.isin(whole.test.labels, (3, 8)).sum())
    config = DataConfig.model_validate({"source": "digits", "classes": [8, 3]})
    assert config.describe() == DataInfo((1, 28, 28), 2)


def test_of_a_table_only_the_classes_picked_are_decoded(tmp_path):
    for split in ("train", "test"):
        images = [png(2), b"no image", png(0), png(2), png(0)]
        rows = {"image": images, "label": [2, 1, 0, 2, 0]}
        pq.write_table(pa.table(rows), tmp_path / f"{split}.parquet")
    source = {"kind": "parquet", "path": str(tmp_path)}
    got = prepare_data(source, 1, classes=["2", "0"])
    assert got.test.labels.tolist() == [0, 1, 0, 1]
    assert got.test.inputs[:, 0, 0, 0].tolist() == [2, 0, 2, 0]
    assert len(prepare_data(source, 1, classes=["0", "2"], train_samples=3).train) == 3


def test_limits_are_stratified_and_come_before_holding_out(numbered):
    got = prepare_data(numbered, train_samples=40, test_samples=8, validation=0.25)
    assert (len(got.train), len(got.validation), len(got.test)) == (30, 10, 8)
    assert np.bincount(got.test.labels).tolist() == [6, 2]
    assert len(prepare_data(numbered, train_samples=10**6).train) == 200


def test_each_choice_has_its_own_stream(numbered):
    alone = prepare_data(numbered, validation=0.1)
    beside = prepare_data(numbered, validation=0.1, auxiliary=0.3, clients=7, test_samples=3)
    other = prepare_data(numbered, validation=0.1, seed=1)
    assert shades(alone.validation) == shades(beside.validation)
    assert shades(alone.validation) != shades(other.validation)


def test_the_seed_does_not_move_the_test_part(numbered):
    assert torch.equal(
        prepare_data("digits").test.inputs, prepare_data("digits", seed=1).test.inputs
    )


def test_statistics_come_from_the_training_part_alone(numbered):
    got = prepare_data(numbered, validation=0.4)
    assert (got.mean, got.std) == measure_channels(got.train)
    assert got.mean != prepare_data(numbered).mean


def test_unit_normalisation_only_scales(numbered):
    got = prepare_data(numbered, normalise="unit")
    assert (got.mean, got.std) == ((0.0,), (1.0,))


def test_symmetric_normalisation_ends_at_one_either_side(numbered):
    got = prepare_data(numbered, normalise="symmetric")
    assert [(pixel - got.mean[0]) / got.std[0] for pixel in (0, 1)] == [-1, 1]


def test_a_constant_channel_is_not_divided_by_zero(tmp_path):
    (tmp_path / "only").mkdir()
    for number in range(10):
        Image.new("L", (2, 2), 51).save(tmp_path / "only" / f"{number}.png")
    source = {"kind": "folder", "path": str(tmp_path), "size": 2, "channels": 1}
    got = prepare_data(source, clients=2)
    assert got.mean == pytest.approx((0.2,))
    assert got.std == (1.0,)


@pytest.mark.parametrize(
    ("fields", "clients", "field", "gist"),
    [
        ({"validation": 0.001}, 4, "data.validation", "1 to 199 of 200.*got 0"),
        ({"auxiliary": 0.999}, 4, "data.auxiliary", "got 200"),
        ({"train_samples": 3}, 4, "clients.count", "must be 1 to the 3 training"),
        ({"even": {"clients": [0, 4]}}, 4, "data.even.clients", "0 to 3, got 4"),
        ({"even": {"clients": [0, 1]}}, 2, "data.even.clients", "all clients"),
        ({"even": {"samples": 198}}, 4, "data.even.samples", "takes 198 of 200"),
        ({"even": {}, "partition": "natural"}, 4, "data.partition", "natural needs"),
        ({"classes": ["a", "c"]}, 4, "data.classes", "no class 'c'.*allowed: a, b"),
        ({"validation": 0.9}, 21, "clients.count", "must be 1 to the 20 training"),
    ],
)
def test_what_cannot_be_had_blames_the_field(numbered, fields, clients, field, gist):
    with pytest.raises(ScenarioError, match=gist) as caught:
        prepare_data(numbered, clients, **fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "place", "gist"),
    [
        ({"validation": 1.0}, ("validation",), "less than 1"),
        ({"validation": 0.6, "auxiliary": 0.4}, ("auxiliary",), "below 0.4"),
        ({"train_samples": 0}, ("train_samples",), "greater than or equal to 1"),
        ({"augment": ["rotate"]}, ("augment", 0), "'crop', 'shift', 'flip' or 'alternate'"),
        ({"augment": ["crop", "shift"]}, ("augment",), "crop and shift"),
        ({"augment": ["alternate", "flip"]}, ("augment",), "flip and alternate exclude each"),
        ({"classes": ["a"]}, ("classes",), "at least 2"),
        ({"classes": ["a", "a"]}, ("classes",), "each class once"),
        ({"source": "python_docs", "classes": ["a", "b"]}, ("classes",), "texts"),
        ({"partition": {"kind": "dirichlet", "alpha": 0}}, None, "greater than 0"),
    ],
)
def test_impossible_fields_are_refused_where_they_stand(fields, place, gist):
    with pytest.raises(ValidationError, match=gist) as caught:
        DataConfig.model_validate(fields)
    assert place is None or caught.value.errors()[0]["loc"] == place


def test_every_public_name_exists():
    assert all(hasattr(data, name) for name in data.__all__)
    assert sorted(data.__all__) == sorted(set(data.__all__))
