import numpy as np
import pytest
import torch
from torch.nn import functional as F

from simsplit.data.batches import Batcher, crop_and_mirror, draw_batches, measure_channels
from simsplit.data.samples import Samples
from simsplit.seeds import rng_for


def noise(count=40, channels=3, height=16, width=16):
    rng = rng_for(0, "noise")
    inputs = torch.randint(1, 256, (count, channels, height, width), generator=rng)
    return Samples(inputs.to(torch.uint8), torch.arange(count) % 10)


def raw(batch):
    """Return a batch's pixels, made with mean 0 and deviation 1."""
    return (batch.inputs * 255).round().to(torch.uint8)


def plain_batcher(samples, augment=(), **options):
    channels = samples.inputs.shape[1]
    return Batcher(
        samples, mean=(0.0,) * channels, std=(1.0,) * channels, augment=augment, **options
    )


def find_in(image_CHW, original_CHW, pad, flip):
    """Return every (down, right, mirrored) whose crop of the bordered original is `image`."""
    c, h, w = original_CHW.shape
    places = []
    for mirrored in (False, True) if flip else (False,):
        bordered = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=torch.uint8)
        turned = original_CHW.flip(-1) if mirrored else original_CHW
        bordered[:, pad : pad + h, pad : pad + w] = turned
        places += [
            (down, right, mirrored)
            for down in range(2 * pad + 1)
            for right in range(2 * pad + 1)
            if torch.equal(bordered[:, down : down + h, right : right + w], image_CHW)
        ]
    return places


def test_a_plain_batch_is_the_rows_normalised():
    samples = noise()
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    indices = torch.tensor([7, 3, 3, 39])
    batch = Batcher(samples, mean=mean, std=std).batch(indices)
    expected = samples.inputs[indices].double() / 255
    for channel in range(3):
        expected[:, channel] = (expected[:, channel] - mean[channel]) / std[channel]
    assert batch.inputs.dtype == torch.float32
    torch.testing.assert_close(batch.inputs, expected.float())
    assert torch.equal(batch.labels, samples.labels[indices])
    assert torch.equal(batch.indices, indices)


def test_batches_do_not_change_the_samples():
    samples = noise()
    before = samples.inputs.clone()
    batcher = Batcher(samples, mean=(0.5,) * 3, std=(0.5,) * 3, augment=("crop", "flip"))
    batcher.batch(torch.arange(40), rng_for(0, "draw"))
    batcher.batch(torch.arange(40))
    assert torch.equal(samples.inputs, before)


@pytest.mark.parametrize("augment", [("crop",), ("flip",), ("crop", "flip")])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 24), (2, 5, 5)])
def test_every_augmented_image_is_a_crop_of_its_own_original(augment, shape):
    samples = noise(30, *shape)
    pad = max(1, shape[1] // 8) if "crop" in augment else 0
    indices = torch.arange(30).flip(0)
    got = raw(plain_batcher(samples, augment).batch(indices, rng_for(1, "draw")))
    places = [
        find_in(image, samples.inputs[row], pad, "flip" in augment)
        for image, row in zip(got, indices, strict=True)
    ]
    assert all(len(place) == 1 for place in places)
    # drawn for each image, not once for the batch
    assert len({place[0] for place in places}) > (1 if augment == ("flip",) else 4)


def test_crops_and_flips_are_uniform():
    count, pad = 8000, 1
    image = noise(1, 1, 8, 8).inputs
    got = crop_and_mirror(
        image.expand(count, -1, -1, -1).contiguous(), pad, True, rng_for(0, "draw")
    )
    bordered = torch.nn.functional.pad(image, (pad,) * 4)[0, 0]
    turned = torch.nn.functional.pad(image.flip(-1), (pad,) * 4)[0, 0]
    crops = [
        source[down : down + 8, right : right + 8]
        for source in (bordered, turned)
        for down in range(3)
        for right in range(3)
    ]
    counts = [(got[:, 0] == crop).all(dim=(1, 2)).sum().item() for crop in crops]
    assert sum(counts) == count
    # 18 equal outcomes: deviation of each count about 20
    assert np.abs(np.array(counts) - count / 18).max() < 100


def test_shifts_reflect_the_image_at_its_edges():
    samples = noise(height=8, width=10)
    rows = torch.arange(40)
    got = raw(plain_batcher(samples, ["shift"]).batch(rows, rng_for(0, "shift")))
    bordered = F.pad(samples.inputs.float(), (2, 2, 2, 2), mode="reflect").to(torch.uint8)
    places = [
        [
            (down, right)
            for down in range(5)
            for right in range(5)
            if torch.equal(whole[:, down : down + 8, right : right + 10], image)
        ]
        for whole, image in zip(bordered, got, strict=True)
    ]
    assert all(len(result) == 1 for result in places)
    assert len({result[0] for result in places}) > 15


def test_alternate_epochs_show_each_image_once_either_way():
    samples, rows = noise(), torch.arange(40)
    batcher = plain_batcher(samples, ["alternate"])
    first, second, third = (
        raw(batcher.batch(rows, rng_for(0, "turn", epoch), epoch)) for epoch in range(3)
    )
    assert torch.equal(first.flip(-1), second)
    assert torch.equal(first, third)
    mirrored = (first != samples.inputs).flatten(1).any(1)
    assert 12 < mirrored.sum() < 28
    few = torch.tensor([31, 2, 17])  # whatever the batch, it is the row that counts
    assert torch.equal(raw(batcher.batch(few, rng_for(0, "other"), 0)), first[few])


def test_without_a_stream_nothing_is_augmented():
    samples = noise()
    got = raw(plain_batcher(samples, ("crop", "flip")).batch(torch.arange(40)))
    assert torch.equal(got, samples.inputs)


def test_the_border_is_black_before_normalisation():
    white = Samples(torch.full((50, 1, 8, 8), 255, dtype=torch.uint8), torch.zeros(50).long())
    batcher = Batcher(white, mean=(0.5,), std=(0.25,), augment=("crop",))
    got = batcher.batch(torch.arange(50), rng_for(0, "draw")).inputs
    assert got.unique().tolist() == [-2.0, 2.0]


def test_the_same_stream_gives_the_same_batch_and_another_another():
    batcher = plain_batcher(noise(), ("crop", "flip"))
    rows = torch.arange(40)
    first, again, other = (batcher.batch(rows, rng_for(seed, "draw")) for seed in (0, 0, 1))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("augment", [(), ("crop", "flip")])
def test_channels_last_changes_the_layout_only(augment):
    samples, rows = noise(), torch.arange(9)
    usual = plain_batcher(samples, augment).batch(rows, rng_for(0, "draw")).inputs
    last = plain_batcher(samples, augment, channels_last=True).batch(rows, rng_for(0, "draw"))
    assert usual.is_contiguous()
    assert last.inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(usual, last.inputs)


def cut(part, *, batch_size=4, seed=0, client=0, epoch=0, drop_last=False):
    return draw_batches(part, batch_size, seed, client, epoch, drop_last=drop_last)


def test_an_epoch_visits_every_row_of_the_part_once():
    part = torch.arange(100, 130)
    batches = cut(part)
    assert [len(batch) for batch in batches] == [4] * 7 + [2]
    assert sorted(torch.cat(batches).tolist()) == part.tolist()
    assert torch.cat(batches).tolist() != part.tolist()


def test_the_order_depends_on_seed_client_and_epoch_and_nothing_else():
    part = torch.arange(30)

    def order(**scope):
        return tuple(torch.cat(cut(part, **scope)).tolist())

    orders = {order(), order(seed=1), order(client=1), order(epoch=1), order(client=1, epoch=1)}
    assert len(orders) == 5
    # cutting it otherwise does not change the order, and neither do earlier calls
    assert order() == order(batch_size=7)


def test_drop_last_drops_only_what_is_not_full():
    sizes = {
        count: [len(batch) for batch in cut(torch.arange(count), drop_last=True)]
        for count in (0, 3, 4, 7, 8)
    }
    # a client with fewer samples than a batch still trains
    assert sizes == {0: [], 3: [3], 4: [4], 7: [4], 8: [4, 4]}


def test_texts_of_like_length_share_a_batch_and_every_row_is_there_once():
    lengths = torch.randint(4, 200, (1000,), generator=rng_for(0, "lengths"))
    part = torch.arange(5000, 6000)
    alike = draw_batches(part, 8, 0, 0, 0, drop_last=False, lengths=lengths)
    plain = cut(part, batch_size=8)
    assert sorted(torch.cat(alike).tolist()) == part.tolist()

    def count_padding(batches) -> int:
        return sum(
            int((lengths[rows - 5000].max() - lengths[rows - 5000]).sum()) for rows in batches
        )

    assert count_padding(alike) < count_padding(plain) / 5
    longest = [int(lengths[rows - 5000].max()) for rows in alike]
    assert longest != sorted(longest, reverse=True), "in random order"
    other = draw_batches(part, 8, 0, 0, 1, drop_last=False, lengths=lengths)
    assert {tuple(rows.tolist()) for rows in alike} != {tuple(rows.tolist()) for rows in other}


def test_what_is_dropped_is_drawn_before_texts_are_sorted():
    lengths = torch.arange(11)
    shortest = sum(
        0 not in torch.cat(draw_batches(lengths, 4, seed, 0, 0, drop_last=True, lengths=lengths))
        for seed in range(40)
    )
    assert 0 < shortest < 25


def test_statistics_are_those_of_a_float_copy():
    samples = noise(5000, 3, 4, 5)
    samples.inputs[:, 1] //= 2
    samples.inputs[:, 2] //= 9
    mean, std = measure_channels(samples)
    floats = samples.inputs.double() / 255
    np.testing.assert_allclose(mean, floats.mean(dim=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, floats.std(dim=(0, 2, 3), correction=0), rtol=1e-12)
