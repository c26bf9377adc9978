"""Frames: a header in JSON and the bytes of tensors, read as if whoever sent them were hostile.

A tensor is told by its type, shape and strides, since other layouts take other kernels, which round
otherwise. All of that is checked before anything of its size is allocated; nothing is unpickled.
"""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simsplit.errors import ProtocolError

MAGIC = b"SSP1"
LEAST_BYTES = 2**20
"""What any frame may have, however small the tensors that are expected."""
HEADER_BYTES = 2**22
MOST_TENSORS = 2**16
MOST_DIMENSIONS = 8
MOST_VALUES = 2**40
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_HEAD = struct.Struct(">4sI")


def frame_of(header: dict[str, object], tensors: Sequence[Tensor] = ()) -> bytes:
    """A header (values that JSON has) and tensors as one message."""
    plain = [_plain(tensor) for tensor in tensors]
    told = [
        [str(each.dtype).removeprefix("torch."), list(each.shape), list(each.stride())]
        for each in plain
    ]
    text = json.dumps({**header, "tensors": told}, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(MAGIC, len(text)), text, *map(_bytes, plain)])


def read(frame: bytes, most: int) -> tuple[dict[str, Any], list[Tensor]]:
    """What `frame_of` was given; ProtocolError for anything else, or above `most` bytes."""
    if len(frame) > max(most, LEAST_BYTES):
        raise ProtocolError(f"a frame of {len(frame)} bytes; at most {most} are expected")
    if len(frame) < _HEAD.size:
        raise ProtocolError("a frame without a header")
    magic, length = _HEAD.unpack_from(frame)
    start = _HEAD.size + length
    if magic != MAGIC or length > HEADER_BYTES or start > len(frame):
        raise ProtocolError("a frame whose header is none of ours")
    header = _header(frame[_HEAD.size : start])
    entries = header.pop("tensors", None)
    if not isinstance(entries, list) or len(entries) > MOST_TENSORS:
        raise ProtocolError("a frame whose tensors are not told")
    told = [_told(entry) for entry in entries]
    if sum(each[3] for each in told) != len(frame) - start:
        raise ProtocolError("a frame with more or fewer bytes than its tensors have")
    tensors = []
    for dtype, shape, stride, nbytes in told:
        tensors.append(_tensor(frame[start : start + nbytes], dtype, shape, stride))
        start += nbytes
    return header, tensors


def blank(form: object) -> Tensor:
    """A tensor of a type and shape that somebody tells: one zero in memory, whatever its size."""
    if not (isinstance(form, list) and len(form) == 2 and _sizes(form[1])):
        raise ProtocolError("a tensor without type and shape")
    dtype = DTYPES.get(form[0]) if isinstance(form[0], str) else None
    if dtype is None or math.prod(max(1, size) for size in form[1]) > MOST_VALUES:
        raise ProtocolError("a tensor whose type or shape is none")
    return torch.zeros((), dtype=dtype).expand(form[1])


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a frame whose header cannot be read") from None
    if not isinstance(header, dict):
        raise ProtocolError("a frame whose header names nothing")
    return header


def _told(entry: object) -> tuple[torch.dtype, list[int], list[int], int]:
    """A tensor's type, shape, strides and bytes, as its sender says."""
    if not (isinstance(entry, list) and len(entry) == 3):
        raise ProtocolError("a tensor without type, shape and strides")
    name, shape, stride = entry
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not (_sizes(shape) and _sizes(stride) and len(shape) == len(stride)):
        raise ProtocolError("a tensor whose type, shape or strides are none")
    if math.prod(max(1, size) for size in shape) > MOST_VALUES:  # (0, 2^62) has no values at all
        raise ProtocolError(f"a tensor of shape {shape}")
    if not _is_dense(shape, stride):
        raise ProtocolError(f"a tensor of shape {shape} with gaps or overlaps, strides {stride}")
    return dtype, shape, stride, math.prod(shape) * dtype.itemsize


def _sizes(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size <= MOST_VALUES for size in value)
    )


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each place in memory belongs to one value, in some order of the dimensions."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((t, s) for s, t in zip(shape, stride, strict=True) if s > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _tensor(
    content: bytes, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    if not content:
        return torch.empty_strided(shape, stride, dtype=dtype)
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    if dtype is torch.bool and bool((flat > 1).any()):
        raise ProtocolError("a mask with values that are neither true nor false")
    tensor = flat.view(dtype).as_strided(shape, stride)
    if dtype.is_floating_point and not torch.isfinite(tensor).all():
        raise ProtocolError("a tensor with values that are no finite numbers")
    return tensor


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, without gaps."""
    plain = tensor.detach().cpu()
    if not _is_dense(plain.shape, plain.stride()):
        plain = plain.clone()
    return plain if _is_dense(plain.shape, plain.stride()) else plain.contiguous()


def _bytes(tensor: Tensor) -> memoryview | bytes:
    """In the order of memory."""
    if not tensor.numel():
        return b""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data
