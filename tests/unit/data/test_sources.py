import gzip
import struct
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from simsplit.data.folders import FolderSource
from simsplit.data.samples import DataInfo, Samples, images_to_samples
from simsplit.data.sources import (
    SOURCES,
    DigitsSource,
    Source,
    TorchvisionSource,
    _read_digits,
)
from simsplit.data.splits import draw_stratified, hold_out
from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for


def test_digits_are_split_stratified_and_always_alike():
    data = DigitsSource().load()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.info == DigitsSource().describe() == DataInfo((1, 28, 28), 10)
    counts = np.bincount(data.test.labels)
    assert set(counts) <= {34, 35, 36, 37}
    assert torch.equal(data.test.inputs, DigitsSource().load().test.inputs)


def test_digits_are_read_as_scikit_learn_reads_them():
    from sklearn.datasets import load_digits

    images, digits = _read_digits()
    known = load_digits()
    assert images.dtype == known.images.dtype
    assert digits.dtype == known.target.dtype
    assert np.array_equal(images, known.images)
    assert np.array_equal(digits, known.target)


def test_digits_keep_their_pixels_at_their_own_size():
    from sklearn.datasets import load_digits

    data = DigitsSource(size=8).load()
    both = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    original = np.rint(load_digits().images * 255 / 16).astype(np.uint8).reshape(-1, 64)
    assert sorted(map(bytes, both.numpy())) == sorted(map(bytes, original))
    assert both.max() == 255


def test_digits_many_times_over_are_the_same_training_digits_and_one_test_set():
    once, thrice = DigitsSource(size=8).load(), DigitsSource(size=8, repeat=3).load()
    assert torch.equal(thrice.train.inputs, once.train.inputs.repeat(3, 1, 1, 1))
    assert torch.equal(thrice.test.inputs, once.test.inputs)


def test_digits_scaled_up_are_the_same_pictures():
    small, large = DigitsSource(size=8).load().train, DigitsSource(size=32).load().train
    assert torch.equal(small.labels, large.labels)
    shrunk = torch.nn.functional.avg_pool2d(large.inputs.float(), 4)
    pair = torch.stack([shrunk.flatten(), small.inputs.float().flatten()])
    assert torch.corrcoef(pair)[0, 1] > 0.97


def idx(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def test_torchvision_data_are_read_from_the_root(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = numpy_rng_for(0, "idx").integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for split, rows in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        labels = np.arange(6, dtype=np.uint8)[rows]
        for name, array in (("images-idx3", images[rows]), ("labels-idx1", labels)):
            content = gzip.decompress(idx(array))
            (raw / f"{split}-{name}-ubyte").write_bytes(content)
    data = TorchvisionSource(kind="fashion_mnist", root=tmp_path).load()
    assert torch.equal(data.train.inputs[:, 0], torch.from_numpy(images[:4]))
    assert data.test.labels.tolist() == [4, 5]
    assert data.class_names[0] == "T-shirt/top"
    assert data.info == TorchvisionSource(kind="fashion_mnist").describe()


def test_gtsrb_images_of_any_size_are_brought_to_one(tmp_path):
    base = tmp_path / "gtsrb"
    train = base / "GTSRB" / "Training" / "00002"
    test = base / "GTSRB" / "Final_Test" / "Images"
    for folder in (train, test):
        folder.mkdir(parents=True)
    Image.new("RGB", (40, 31), (10, 20, 30)).save(train / "00000.ppm")
    Image.new("RGB", (20, 25), (40, 50, 60)).save(test / "00000.ppm")
    (base / "GT-final_test.csv").write_text("Filename;ClassId\n00000.ppm;7\n")
    # torchvision numbers classes by the folders there are
    data = TorchvisionSource(kind="gtsrb", root=tmp_path).load()
    assert data.info == TorchvisionSource(kind="gtsrb").describe() == DataInfo((3, 32, 32), 43)
    assert data.train.inputs[0, :, 5, 5].tolist() == [10, 20, 30]
    assert data.test.labels.tolist() == [7]


@pytest.mark.parametrize("kind", get_args(TorchvisionSource.model_fields["kind"].annotation))
def test_absent_torchvision_data_name_the_root_and_the_switch(kind, tmp_path):
    with pytest.raises(DataError, match=r"data.source.download: true") as caught:
        TorchvisionSource(kind=kind, root=tmp_path / "nowhere").load()
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_arrays_with_channels_last_are_turned():
    array = numpy_rng_for(0, "array").integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    samples = images_to_samples(array, np.arange(4))
    assert samples.inputs.shape == (4, 3, 6, 5)
    assert samples.inputs[2, 1, 3, 4] == array[2, 3, 4, 1]
    assert samples.nbytes == 4 * 3 * 6 * 5 + 4 * 8


def test_taking_rows_copies_them_in_order():
    samples = Samples(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5))
    taken = samples.take(np.array([3, 1]))
    assert (len(taken), taken.labels.tolist()) == (2, [3, 1])
    taken.inputs.zero_()
    assert samples.inputs[3].item() == 3


def fill(folder, names, count, colour=100):
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            pixel = (colour + number, image, 0)
            Image.new("RGB", (9, 7), pixel).save(folder / name / f"{image}.png")


def test_a_folder_with_train_and_test(tmp_path):
    fill(tmp_path / "train", ["ant", "bee"], 3)
    fill(tmp_path / "val", ["bee"], 2, colour=200)
    source = FolderSource(path=tmp_path, size=8)
    data = source.load()
    assert data.class_names == ("ant", "bee")
    assert source.describe() == data.info == DataInfo((3, 8, 8), 2)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.inputs[4, :, 0, 0].tolist() == [101, 1, 0]
    # the number of a class is the training data's, though it is the only one here
    assert data.test.labels.tolist() == [1, 1]


def test_one_folder_is_split_the_same_way_every_time(tmp_path):
    fill(tmp_path, ["ant", "bee"], 10)
    source = FolderSource(path=tmp_path, size=2, test_fraction=0.3)
    data = source.load()
    assert np.bincount(data.test.labels).tolist() == [3, 3]
    pixels = torch.cat([data.train.inputs, data.test.inputs])[:, :, 0, 0].tolist()
    assert len({tuple(pixel) for pixel in pixels}) == 20
    assert torch.equal(data.test.inputs, source.load().test.inputs)


def test_a_folder_can_be_grey(tmp_path):
    fill(tmp_path, ["ant"], 5)
    assert FolderSource(path=tmp_path, size=4, channels=1).load().train.inputs.shape[1:] == (
        1,
        4,
        4,
    )


def test_unusable_folders_are_named(tmp_path):
    source = FolderSource(path=tmp_path / "bugs")
    assert source.describe() is None
    with pytest.raises(DataError, match=r"data.source.path.*bugs.*each class"):
        source.load()
    (tmp_path / "bugs" / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match=r"image files.*train.*\.jpg"):
        source.load()
    (tmp_path / "bugs" / "train" / "ant" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0.png:.*image"):
        source.load()
    fill(tmp_path / "bugs" / "train", ["bee"], 1)
    (tmp_path / "bugs" / "train" / "ant" / "0.png").unlink()
    with pytest.raises(DataError, match=r"train/.*test, validation, val"):
        source.load()
    fill(tmp_path / "bugs" / "test", ["cow"], 1)
    with pytest.raises(DataError, match=r"cow;.*ant"):
        source.load()


def test_the_registry_names_every_kind_of_the_union():
    mapping = TypeAdapter(Source).json_schema()["discriminator"]["mapping"]
    assert set(mapping) == set(SOURCES)
    assert all(mapping[kind].endswith(made.__name__) for kind, made in SOURCES.items())
    with pytest.raises(ValidationError, match="digits"):
        TypeAdapter(Source).validate_python({"kind": "digit"})


def test_a_stratified_choice_keeps_shares_to_within_a_row():
    labels = np.repeat([0, 1, 2, 3], [70, 20, 9, 1])
    for count in (0, 1, 10, 33, 100):
        chosen = draw_stratified(labels, count, numpy_rng_for(0, "test"))
        assert len(chosen) == len(set(chosen.tolist())) == count
        shares = np.bincount(labels[chosen], minlength=4)
        assert np.abs(shares - np.array([70, 20, 9, 1]) * count / 100).max() < 1


def test_held_out_rows_are_drawn_not_the_first():
    kept, out = hold_out(np.zeros(100, dtype=int), 0.2, numpy_rng_for(0, "test"))
    assert len(out) == 20
    assert sorted([*kept, *out]) == list(range(100))
    assert out.max() > 50


def test_hidden_folders_are_no_classes(tmp_path):
    fill(tmp_path / "train", ["cat", "dog", ".ipynb_checkpoints", "__pycache__"], 2)
    fill(tmp_path / "test", ["cat", "dog"], 2)
    assert FolderSource(path=tmp_path, size=8).load().class_names == ("cat", "dog")
