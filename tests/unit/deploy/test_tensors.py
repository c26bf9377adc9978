import json
import random
import struct
import time

import pytest
import torch

from simsplit.deploy.frames import DTYPES, read_frame, write_frame
from simsplit.errors import ProtocolError

MOST = 2**20


def craft(*entries, content=b""):
    text = json.dumps({"tensors": list(entries)}).encode()
    return struct.pack(">4sI", b"SSP1", len(text)) + text + content


def write_begin():
    tensors = [torch.randn(3, 4), torch.arange(5), torch.tensor(True), torch.zeros(0, 2)]
    return write_frame({"number": 1, "call": "Begin", "legs": ["smashed"]}, tensors)


class TestAFrame:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
    def test_brings_every_type_as_it_was(self, dtype):
        tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
        _, (got,) = read_frame(write_frame({}, [tensor]), MOST)
        assert got.dtype == dtype
        assert torch.equal(got, tensor)

    def test_brings_layouts_as_they_were(self):
        images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        turned, one = torch.randn(3, 4).T, torch.randn(1, 1).expand(1, 1)
        _, got = read_frame(write_frame({}, [images, turned, one]), MOST)
        for before, after in zip([images, turned, one], got, strict=True):
            assert torch.equal(before, after)
            assert before.stride() == after.stride()

    def test_closes_gaps(self):
        wide = torch.randn(4, 6)
        _, got = read_frame(write_frame({}, [wide[:, ::2], wide[0].expand(3, 6)]), MOST)
        assert torch.equal(got[0], wide[:, ::2])
        assert torch.equal(got[1], wide[0].expand(3, 6))

    def test_brings_the_header_and_what_has_no_values(self):
        header, tensors = read_frame(write_begin(), MOST)
        assert header == {"number": 1, "call": "Begin", "legs": ["smashed"]}
        assert [tuple(each.shape) for each in tensors] == [(3, 4), (5,), (), (0, 2)]

    def test_is_free_to_be_written_to(self):
        _, (got,) = read_frame(write_frame({}, [torch.zeros(3)]), MOST)
        got.add_(1)
        assert got.tolist() == [1, 1, 1]


class TestACraftedFrame:
    @pytest.mark.parametrize(
        "entry",
        [
            ["float32", [0, 2**62], [1, 1]],
            ["float32", [2**31, 2**31], [1, 1]],
            ["float32", [1], [-1]],
            ["float32", [True], [1]],
            ["float32", [1.0], [1]],
            ["float32", [1], [1, 1]],
            ["float32", [1] * 9, [1] * 9],
            ["float32", [2, 2], [1, 1]],
            ["float32", [2], [0]],
            ["float32", [2], [3]],
            ["complex64", [1], [1]],
            [["float32"], [1], [1]],
            ["float32", [1]],
            "float32",
            None,
        ],
        ids=str,
    )
    def test_is_refused(self, entry):
        with pytest.raises(ProtocolError):
            read_frame(craft(entry, content=bytes(16)), MOST)

    def test_of_more_bytes_than_expected_is_refused(self):
        frame = write_frame({}, [torch.zeros(MOST)])
        assert read_frame(frame, 2 * len(frame))
        with pytest.raises(ProtocolError, match="at most"):
            read_frame(frame, MOST)

    @pytest.mark.parametrize("content", [bytes(3), bytes(5)], ids=len)
    def test_of_other_bytes_than_it_tells_is_refused(self, content):
        assert read_frame(craft(["int32", [1], [1]], content=bytes(4)), MOST)
        with pytest.raises(ProtocolError, match="bytes"):
            read_frame(craft(["int32", [1], [1]], content=content), MOST)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_of_no_finite_numbers_is_refused(self, value, dtype):
        with pytest.raises(ProtocolError, match="finite"):
            read_frame(write_frame({}, [torch.tensor([1, value]).to(dtype)]), MOST)

    def test_of_a_mask_of_other_bytes_is_refused(self):
        with pytest.raises(ProtocolError, match="mask"):
            read_frame(craft(["bool", [2], [1]], content=b"\x01\x02"), MOST)

    @pytest.mark.parametrize(
        "text", [b"[" * 10**5, b"{}", b"[]", b"1" * 5000, b"\xff", b'{"tensors": {}}', b""]
    )
    def test_whose_header_is_none_is_refused(self, text):
        with pytest.raises(ProtocolError):
            read_frame(struct.pack(">4sI", b"SSP1", len(text)) + text, MOST)


def test_mutated_frames_are_read_or_refused_and_that_fast():
    draws, frame = random.Random(0), write_begin()
    started, refused = time.perf_counter(), 0
    for _ in range(10_000):
        try:
            read_frame(mutate(frame, draws), MOST)
        except ProtocolError:
            refused += 1
    assert refused > 5_000
    assert time.perf_counter() - started < 10


def mutate(frame, draws):
    """Change a few bytes, cut out a piece, or repeat one."""
    changed = bytearray(frame)
    kind = draws.randrange(4)
    if kind < 2:
        for _ in range(draws.randint(1, 6)):
            changed[draws.randrange(len(changed))] = draws.randrange(256)
    else:
        start = draws.randrange(len(changed))
        end = start + draws.randrange(1, 40)
        changed[start:end] = b"" if kind == 2 else changed[start:end] * 2
    return bytes(changed)
