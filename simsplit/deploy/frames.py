"""Frames carry a JSON header and the bytes of tensors; their senders may be hostile.

The header describes each tensor by type, shape and strides. Strides cross because kernels for other
layouts round differently. Everything is checked before any memory is allocated by it, and nothing
is unpickled.
"""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import OutOfRangeError, ProtocolError

MAGIC = b"SSP1"
LEAST_BYTES = 2**20
"""Bytes that every frame may have, however small the expected tensors are."""
HEADER_BYTES = 2**22
"""Most bytes of a header."""
MOST_TENSORS = 2**16
MOST_DIMENSIONS = 8
MOST_VALUES = 2**40
"""Most values of one tensor."""
MOST_COUNT = 2**53
"""Integers below this cross exactly, in any reader of JSON."""
LARGEST = 2.0**50
"""The largest magnitude of a number that may cross.

A sum of 2**28 products of two such numbers is still finite in float32, so no single layer overflows
by what is in range. Weights, activations and gradients of a run that learns stay far below it.
"""
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_HEAD = struct.Struct(">4sI")


def write_frame(header: dict[str, object], tensors: Sequence[Tensor] = ()) -> bytes:
    """Write a header, with values that JSON can hold, and tensors as one frame."""
    dense = [_make_dense(tensor) for tensor in tensors]
    entries = [
        [str(each.dtype).removeprefix("torch."), list(each.shape), list(each.stride())]
        for each in dense
    ]
    text = json.dumps({**header, "tensors": entries}, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(MAGIC, len(text)), text, *map(_view_bytes, dense)])


def read_frame(frame: bytes, most: int) -> tuple[dict[str, Any], list[Tensor]]:
    """Read a frame; raise ProtocolError unless `write_frame` could write it in `most` bytes."""
    if len(frame) > max(most, LEAST_BYTES):
        raise ProtocolError(f"a frame of {len(frame)} bytes; at most {most} are expected")
    if len(frame) < _HEAD.size:
        raise ProtocolError("a frame without a header")
    magic, length = _HEAD.unpack_from(frame)
    start = _HEAD.size + length
    if magic != MAGIC or length > HEADER_BYTES or start > len(frame):
        raise ProtocolError("a frame whose header is not simsplit's")
    header = _read_header(frame[_HEAD.size : start])
    entries = header.pop("tensors", None)
    if not isinstance(entries, list) or len(entries) > MOST_TENSORS:
        raise ProtocolError(f"a frame without a list of at most {MOST_TENSORS} tensors")
    layouts = [_read_layout(entry) for entry in entries]
    # Sizes are compared with what has arrived before anything is allocated by them.
    if sum(each[3] for each in layouts) != len(frame) - start:
        raise ProtocolError("a frame with more or fewer bytes than its tensors have")
    tensors = []
    for dtype, shape, stride, nbytes in layouts:
        tensors.append(_make_tensor(frame[start : start + nbytes], dtype, shape, stride))
        start += nbytes
    return header, tensors


def make_blank(form: object) -> Tensor:
    """Make a tensor of the type and shape that a sender claims, from one zero in memory.

    So a hostile sender cannot make this side allocate memory.
    """
    if not (isinstance(form, list) and len(form) == 2 and _is_list_of_sizes(form[1])):
        raise ProtocolError("a tensor without type and shape")
    dtype = DTYPES.get(form[0]) if isinstance(form[0], str) else None
    if dtype is None or math.prod(max(1, size) for size in form[1]) > MOST_VALUES:
        raise ProtocolError("a tensor with an unknown type or an impossible shape")
    return torch.zeros((), dtype=dtype).expand(form[1])


def _read_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a frame whose header cannot be read") from None
    if not isinstance(header, dict):
        raise ProtocolError("a frame whose header is not an object")
    return header


def _read_layout(entry: object) -> tuple[torch.dtype, list[int], list[int], int]:
    """Read the type, shape, strides and number of bytes that a sender claims for a tensor."""
    if not (isinstance(entry, list) and len(entry) == 3):
        raise ProtocolError("a tensor without type, shape and strides")
    name, shape, stride = entry
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not (
        _is_list_of_sizes(shape) and _is_list_of_sizes(stride) and len(shape) == len(stride)
    ):
        raise ProtocolError("a tensor with an unknown type, or an impossible shape or strides")
    if math.prod(max(1, size) for size in shape) > MOST_VALUES:  # (0, 2^62) has no values at all
        raise ProtocolError(f"a tensor of shape {shape}; at most {MOST_VALUES} values are allowed")
    if not _is_dense(shape, stride):
        raise ProtocolError(f"a tensor of shape {shape} with gaps or overlaps, strides {stride}")
    return dtype, shape, stride, math.prod(shape) * dtype.itemsize


def _is_list_of_sizes(value: object) -> bool:
    """Return whether a value is a list of sizes that a tensor may have."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_DIMENSIONS
        # Not isinstance, as JSON's true is an int too.
        and all(type(size) is int and 0 <= size <= MOST_VALUES for size in value)
    )


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether each place in memory belongs to one value, in any order of dimensions."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((t, s) for s, t in zip(shape, stride, strict=True) if s > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _make_tensor(
    content: bytes, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Make a tensor of bytes; raise ProtocolError for values that its type does not allow."""
    if not content:
        return torch.empty_strided(shape, stride, dtype=dtype)
    # A copy that can be written: layers that work in place must not write into immutable bytes.
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    # Kernels take a bool to be 0 or 1; what they do with other bytes is not defined.
    if dtype is torch.bool and bool((flat > 1).any()):
        raise ProtocolError("a mask with values that are neither true nor false")
    values = flat.view(dtype)
    if not is_in_range(values):
        raise OutOfRangeError(f"a tensor with values that are not finite, or beyond {LARGEST:.0e}")
    return values.as_strided(shape, stride)


def is_in_range(tensor: Tensor) -> bool:
    """Return whether no value of a floating-point tensor is NaN, or larger than LARGEST."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    # one pass without a copy: a tenth of the time of `isfinite`; NaN is the least and the largest
    least, largest = torch.aminmax(tensor)
    return least.item() >= -LARGEST and largest.item() <= LARGEST


def _make_dense(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, with its strides if it has no gaps."""
    dense = tensor.detach().cpu()
    if not _is_dense(dense.shape, dense.stride()):
        dense = dense.clone()
    return dense if _is_dense(dense.shape, dense.stride()) else dense.contiguous()


def bytes_to_tensor(content: bytes) -> Tensor:
    """Return bytes as a tensor, which frames can carry."""
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def _view_bytes(tensor: Tensor) -> memoryview | bytes:
    """Return a dense tensor's bytes, in the order of memory."""
    if not tensor.numel():
        return b""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data
