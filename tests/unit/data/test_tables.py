import io
import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from simsplit.data.image_tables import HubSource, ParquetSource
from simsplit.data.samples import DataInfo
from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for

NAMES = ["cat", "dog", "eel"]


def picture(shape=(6, 5, 3), seed=0):
    return numpy_rng_for(seed, "picture").integers(0, 256, shape, dtype=np.uint8)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(path, images, labels, *, names=NAMES, label="label", more=None):
    """Write a parquet file as the hub does; with names=None without the hub's metadata."""
    cells = [{"bytes": image, "path": None} for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(cells, kind), label: pa.array(labels, pa.int64())})
    for column, values in (more or {}).items():
        table = table.append_column(column, pa.array(values))
    if names is not None:
        features = {"img": {"_type": "Image"}, label: {"_type": "ClassLabel", "names": names}}
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


@pytest.fixture
def folder(tmp_path):
    """Five training and two test images of 6 x 5 pixels."""
    for split, count in (("train", 5), ("test", 2)):
        images = [png(picture(seed=seed)) for seed in range(count)]
        write(tmp_path / "pets" / f"{split}.parquet", images, [0, 1, 1, 0, 1][:count])
    return tmp_path / "pets"


def test_images_labels_and_names_are_read(folder):
    source = ParquetSource(path=folder)
    data = source.load()
    assert data.name == "pets"
    assert data.class_names == tuple(NAMES)
    assert data.train.labels.tolist() == [0, 1, 1, 0, 1]
    assert data.train.inputs.shape == (5, 3, 6, 5)
    for row in range(5):
        expected = torch.from_numpy(picture(seed=row)).permute(2, 0, 1)
        assert torch.equal(data.train.inputs[row], expected)
    assert len(data.test) == 2
    # a class that no row has still counts: its name says so
    assert source.describe() == data.info == DataInfo((3, 6, 5), 3)


def test_shards_in_a_data_folder_are_read_in_order(tmp_path):
    for shard in range(3):
        image = png(picture(seed=shard))
        write(tmp_path / "data" / f"train-0000{shard}-of-00003.parquet", [image], [shard])
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", [png(picture())], [2])
    data = ParquetSource(path=tmp_path).load()
    assert data.train.labels.tolist() == [0, 1, 2]
    assert data.test.labels.tolist() == [2]


def test_grey_images_keep_one_channel(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", [png(picture((4, 4)))], [0])
    source = ParquetSource(path=tmp_path)
    assert torch.equal(source.load().train.inputs[0, 0], torch.from_numpy(picture((4, 4))))
    assert source.describe() == DataInfo((1, 4, 4), 3)
    assert ParquetSource(path=tmp_path, channels=3).load().info.shape == (3, 4, 4)


def test_without_metadata_labels_are_counted(tmp_path):
    for split, labels in (("train", [0, 6]), ("test", [1, 1])):
        write(tmp_path / f"{split}.parquet", [png(picture())] * 2, labels, names=None)
    source = ParquetSource(path=tmp_path)
    assert source.describe() == source.load().info == DataInfo((3, 6, 5), 7)


def test_several_columns_need_a_choice(tmp_path):
    for split in ("train", "test"):
        path = tmp_path / f"{split}.parquet"
        write(path, [png(picture())], [2], label="fine_label", more={"coarse_label": [1]})
    with pytest.raises(DataError, match=r"data\.source\.label.*fine_label, coarse_label"):
        ParquetSource(path=tmp_path).load()
    with pytest.raises(DataError, match="'fine_label'"):
        ParquetSource(path=tmp_path, label="fine_lable").describe()
    assert ParquetSource(path=tmp_path, label="fine_label").load().train.labels.tolist() == [2]
    assert ParquetSource(path=tmp_path, label="coarse_label").load().class_names == ("0", "1")


def test_ragged_images_need_a_size(tmp_path):
    for split in ("train", "test"):
        images = [png(picture((6, 6, 3))), png(picture((9, 7, 3)))]
        write(tmp_path / f"{split}.parquet", images, [0, 1])
    with pytest.raises(DataError, match=r"row 1: 7x9.*6x6.*data.source.size"):
        ParquetSource(path=tmp_path).load()
    assert ParquetSource(path=tmp_path, size=8).load().info.shape == (3, 8, 8)


def test_colour_is_not_turned_grey_unasked(tmp_path):
    for split in ("train", "test"):
        images = [png(picture((6, 6))), png(picture((6, 6, 3)))]
        write(tmp_path / f"{split}.parquet", images, [0, 1])
    with pytest.raises(DataError, match=r"row 1: mode RGB among grey.*data.source.channels"):
        ParquetSource(path=tmp_path).load()
    assert ParquetSource(path=tmp_path, channels=1).load().info.shape == (1, 6, 6)


def make_broken(kind):
    """Return images, labels and options of a file with one thing wrong."""
    image = png(picture())
    deep = png((picture((6, 5)).astype(np.uint16)) * 256)
    return {
        "text": ([b"no image"], [0]),
        "truncated": ([image[:60]], [0]),
        "none": ([None], [0]),
        "deep": ([deep], [0]),
        "unlabelled": ([image], [-1]),
        "too high": ([image], [3]),
        "null label": ([image], [None]),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "gist"),
    [
        ("text", "row 0:.*Pillow"),
        ("truncated", "row 0:.*decoded"),
        ("none", "row 0: empty"),
        ("deep", "row 0: mode I;16 is not 8 bits"),
        ("unlabelled", "0 to 2.*-1"),
        ("too high", "0 to 2.*3"),
        ("null label", "1 rows of 'label' are empty"),
    ],
)
def test_bad_rows_are_named(folder, kind, gist):
    write(folder / "test.parquet", *make_broken(kind))
    with pytest.raises(DataError, match=gist):
        ParquetSource(path=folder).load()


def test_missing_and_corrupt_files_are_named(folder, tmp_path):
    (folder / "test.parquet").unlink()
    with pytest.raises(DataError, match=r"no test.parquet or validation.parquet.*pets"):
        ParquetSource(path=folder).load()
    (folder / "train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"train.parquet.*read"):
        ParquetSource(path=folder).load()
    with pytest.raises(DataError, match=r"train.parquet.*read"):
        ParquetSource(path=folder).describe()
    with pytest.raises(DataError, match=r"no train.parquet"):
        ParquetSource(path=tmp_path / "elsewhere").load()
    assert ParquetSource(path=tmp_path / "elsewhere").describe() is None


def test_a_test_file_without_the_columns_is_named(folder):
    write(folder / "test.parquet", [png(picture())], [0], label="digit")
    with pytest.raises(DataError, match=r"pets \(test\).*'label'"):
        ParquetSource(path=folder).load()


def test_the_hub_reads_what_parquet_reads(folder, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub = HubSource(name=str(folder)).load()
    own = ParquetSource(path=folder).load()
    assert hub.class_names == own.class_names
    assert torch.equal(hub.train.inputs, own.train.inputs)
    assert torch.equal(hub.test.labels, own.test.labels)
    with pytest.raises(DataError, match=r"data.source.name.*split 'dev'.*kind: parquet"):
        HubSource(name=str(folder), test_split="dev").load()


def test_a_hub_name_that_leads_nowhere_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"cannot be loaded.*network"):
        HubSource(name=str(tmp_path / "absent")).load()


@pytest.mark.slow
def test_real_cifar10_loads_in_reasonable_time(real_data):
    source = ParquetSource(path=real_data("cifar10"))
    started = time.process_time()
    data = source.load()
    assert time.process_time() - started < 60
    assert source.describe() == data.info == DataInfo((3, 32, 32), 10)
    assert data.class_names[:2] == ("airplane", "automobile")
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    assert len(data.test) == 10_000


@pytest.mark.slow
def test_real_mnist_is_grey(real_data):
    data = ParquetSource(path=real_data("mnist")).load()
    assert data.info == DataInfo((1, 28, 28), 10)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    # mean and deviation that everybody knows MNIST by
    floats = data.train.inputs.double() / 255
    assert floats.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert floats.std().item() == pytest.approx(0.3081, abs=1e-4)


@pytest.mark.parametrize("kind", ["words", "true and false", "decimals"])
def test_labels_may_be_words_and_other_values(tmp_path, kind):
    words = {"words": ["dog", "cat"], "true and false": [True, False], "decimals": [1.5, 0.5]}
    labels = [words[kind][row % 2] for row in range(6)]
    for split in ("train", "test"):
        rows = [{"image": png(picture(seed=row)), "label": labels[row]} for row in range(6)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    source = ParquetSource(path=tmp_path, label="label")
    data = source.load()
    assert data.class_names == tuple(sorted(map(str, words[kind])))
    assert data.train.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert source.describe() == data.info


def test_a_class_that_only_the_test_split_has_is_refused_with_a_remedy(tmp_path):
    for split, word in (("train", "cat"), ("test", "bird")):
        rows = [{"image": png(picture()), "label": label} for label in ("dog", word)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match="bird"):
        ParquetSource(path=tmp_path).load()


def test_arrays_are_pointed_to_npz(tmp_path):
    rows = [{"image": [[0, 1], [2, 3]], "label": row % 2} for row in range(4)]
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match="kind: npz"):
        ParquetSource(path=tmp_path).load()


def test_a_folder_of_save_to_disk_is_a_hub_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [picture(seed=row) for row in range(6)], "label": [0, 1] * 3}
    split = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "saved"))
    data = HubSource(name=str(tmp_path / "saved")).load()
    assert data.class_names == ("cat", "dog")
    assert len(data.train) == 6
