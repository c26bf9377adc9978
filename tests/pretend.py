"""A pretended accelerator: the device "pretend" computes on the CPU, but refuses what CUDA does.

Its tensors are torch's own, with key PrivateUse1 and memory of the CPU: views, in-place operators,
`.data` and gradients are those of torch's C++ code. Each operator gets CPU tensors over the same
memory and strides, so that it computes the same bits; the exchange goes through DLPack.

It refuses tensors of two devices in one operator (but for those of no dimension, and indices), and
the CPU's generator. It counts copies between devices, and whatever waits for the device, by the
function of simsplit that caused them.

Register it before the process's first backward pass: torch starts a thread for each device then.
"""

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

import simsplit
from simsplit import machine, seeds

NAME, CPU, DEVICE = "pretend", 1, 12  # DLPack's numbers: kDLCPU, kDLExtDev
SYNCHRONISING = {
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "is_nonzero", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "histc", "allclose"),
}
"""Operators that wait for the device on CUDA: the host reads a value, or a shape."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
HOME = str(Path(simsplit.__file__).parent)

counts: Counter[tuple[str, str]] = Counter()
"""How often something happened ("to device", "to host", "waits") by the function that caused it."""
generator = torch.Generator()
"""What the device draws from, unless it is given a generator of its own."""


class _Generator(torch.Generator):
    """A generator of the device, which draws as the CPU's does."""

    @property
    def device(self) -> torch.device:
        return torch.device(NAME)


def make_generator(device: torch.device | None = None) -> torch.Generator:
    """Make a generator of the device. torch's own constructor knows no device made in Python."""
    if device is not None and device.type != NAME:
        return torch.Generator()
    made = _Generator()
    _generators.append(made)
    return made


_generators: list[torch.Generator] = []


class _DLTensor(ctypes.Structure):
    """The beginning of a DLPack capsule."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _move(tensor: Tensor, device: int) -> Tensor:
    """Return a tensor on the other device, over the same memory."""
    capsule = torch._C._to_dlpack(tensor.detach())
    header = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    header.device_type, header.device_id = device, 0
    for axis, stride in enumerate(tensor.stride()):  # DLPack changes those of size 1
        header.strides[axis] = stride
    return torch._C._from_dlpack(capsule)


def is_ours(value: object) -> bool:
    """Return whether a value is a tensor on the pretended device."""
    return isinstance(value, Tensor) and value.device.type == NAME


def count(what: str) -> None:
    """Count an event for the innermost function of simsplit that caused it."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(HOME):
        frame = frame.f_back
    where = "elsewhere"
    if frame is not None:
        file = Path(frame.f_code.co_filename).relative_to(HOME).as_posix()
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        where = f"{file}::{name}"
    counts[what, where] += 1


@contextmanager
def counting() -> Iterator[Counter[tuple[str, str]]]:
    """Collect what happens within a block."""
    before = counts.copy()
    made: Counter[tuple[str, str]] = Counter()
    yield made
    made.update(counts - before)


# --- operators -----------------------------------------------------------------------------------


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU; return its result on the device."""
    name = op._schema.name.removeprefix("aten::")
    _count_waits(name, args)
    _refuse_mixed(op, name, args, kwargs)
    inner = _as_tensors(op, [_unwrap(each) for each in args])
    named = {key: _unwrap(each) for key, each in kwargs.items()}
    fresh = {  # outputs that will be resized
        each.name: torch.empty(0, dtype=kwargs[each.name].dtype)
        for each in op._schema.arguments
        if each.is_out and is_ours(kwargs.get(each.name)) and not kwargs[each.name].numel()
    }
    named |= fresh
    if named.get("device") is not None:
        named |= {"device": "cpu", "pin_memory": False}
    with _draw_from_device(op, named):
        result = op(*inner, **named)
    for key, made in fresh.items():
        kwargs[key].data = _move(made, DEVICE)
    written = _list_written(op, args, kwargs)
    if not written:
        return _wrap(result)
    return written[0] if len(written) == 1 else tuple(written)


def _list_written(op: Any, args: Any, kwargs: Any) -> list[Any]:
    """List the arguments that an operator writes and returns; batch norm writes others too."""
    returns = [each.alias_info for each in op._schema.returns]
    if not returns or not all(returns):
        return []
    return [
        kwargs[each.name] if each.name in kwargs else args[place]
        for place, each in enumerate(op._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]


def _count_waits(name: str, args: Any) -> None:
    """Count what CUDA waits for: a value or a shape that is read, and indices on the CPU."""
    if name in SYNCHRONISING or (name in INDEXING and _counts_mask(*args)):
        count("waits")
    if name in INDEXING:
        for each in args[1]:
            if each is not None and not is_ours(each):
                count("to device")


def _as_tensors(op: Any, args: list[Any]) -> list[Any]:
    """Return arguments with tensors where torch has made numbers of them."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    for place, (argument, value) in enumerate(zip(op._schema.arguments, args, strict=False)):
        if isinstance(value, (int, float, complex)) and str(argument.type) == "Tensor":
            dtype = torch.result_type(tensors[0], value) if tensors else None
            args[place] = torch.tensor(value, dtype=dtype)
    return args


def _unwrap(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_unwrap(each) for each in value]
    if not is_ours(value):
        return value
    inner = _move(value, CPU)  # memory alone: these two are bits of the tensor
    inner = inner.conj() if value.is_conj() else inner
    return inner._neg_view() if value.is_neg() else inner


def _wrap(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_wrap(each) for each in value)
    return _move(value.resolve_conj().resolve_neg(), DEVICE) if isinstance(value, Tensor) else value


def _flatten(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flatten(value)
        else:
            yield value


def _counts_mask(_: Tensor, indices: Any, value: Any = None, *more: object) -> bool:
    """Return whether an index is a mask whose true elements must be counted."""
    masked = any(each is not None and each.dtype == torch.bool for each in indices)
    return masked and (value is None or value.numel() > 1)  # one value is filled in instead


def _refuse_mixed(op: Any, name: str, args: Any, kwargs: Any) -> None:
    """Raise as CUDA does for a tensor on the CPU beside one on the device."""
    for value in _flatten([*args, *kwargs.values()] if name not in INDEXING else args[:1]):
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got {NAME}:0 and cpu in {op}"
            )
        if isinstance(value, torch.Generator) and not any(
            value._cdata == each._cdata for each in _generators
        ):
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")


@contextmanager
def _draw_from_device(op: Any, named: dict[str, Any]) -> Iterator[None]:
    """Let an operator that is given no generator draw from the device's."""
    if torch.Tag.nondeterministic_seeded not in op.tags or named.get("generator") is not None:
        yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _view(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the CPU's kernel make a view: it computes shapes alone, whatever the device."""
    return op.redispatch(_CPU_KERNEL, *args, **kwargs)


def _copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if is_ours(self) != is_ours(source):
        count("to device" if is_ours(self) else "to host")
    _unwrap(self).copy_(_unwrap(source))
    return self


def _resize(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    if tuple(size) != tuple(self.shape):
        self.data = _move(_unwrap(self).clone().resize_(size), DEVICE)
    return self


def _drop_out(x: Tensor, p: float, train: bool) -> Tensor:
    """Drop as the CPU does; torch has a kernel of other roundings for accelerators."""
    if not p or not train or not x.numel():
        return x
    kept = torch.empty_like(x, memory_format=torch.contiguous_format)
    return x * (kept.bernoulli_(1 - p).div_(1 - p) if p < 1 else kept.zero_())


class _Recur(torch.autograd.Function):
    """A recurrent layer, computed on the CPU as a whole: torch fuses its cells on accelerators."""

    @staticmethod
    def forward(ctx: Any, op: Any, x: Tensor, hidden: Tensor, rest: Any, *weights: Tensor) -> Any:
        tensors = [x, hidden, *weights]
        wanted = zip(tensors, (True, True, *(each.requires_grad for each in weights)), strict=True)
        ctx.inner = [_unwrap(each.detach()).requires_grad_(wants) for each, wants in wanted]
        with torch.enable_grad():
            ctx.made = op(ctx.inner[0], ctx.inner[1], ctx.inner[2:], *rest)
        return _wrap(tuple(each.detach() for each in ctx.made))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        learned = [each for each in ctx.inner if each.requires_grad]
        found = iter(torch.autograd.grad(ctx.made, learned, [_unwrap(each) for each in grads]))
        x, hidden, *weights = (
            _wrap(next(found)) if each.requires_grad else None for each in ctx.inner
        )
        return None, x, hidden, None, *weights


def _run_gru(x: Tensor, hidden: Tensor, weights: Any, *rest: Any) -> Any:
    return _Recur.apply(torch.ops.aten.gru.input, x, hidden, rest, *weights)


_WITHOUT_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
LOWERED = {
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("bmm", "mm", "addmm", "addbmm", "baddbmm", "matmul", "linear", "linalg_vecdot"),
    "scaled_dot_product_attention",
}
"""Operators that autocast computes in fewer bits; the CPU's list."""
PROMOTED = {"stack", "cat", "index_copy"}


def _autocast(op: Any, lowered: bool, *args: Any, **kwargs: Any) -> Any:
    """Cast an operator's arguments as autocast does on the CPU, and call it."""
    dtype = torch.get_autocast_dtype(NAME) if lowered else torch.float32

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(each) for each in value]
        floating = is_ours(value) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if floating else value

    with torch._C._ExcludeDispatchKeyGuard(_WITHOUT_AUTOCAST):
        return op(*map(cast, args), **{key: cast(each) for key, each in kwargs.items()})


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *more: Any, **kw: Any
) -> Any:
    """Take the kernel of attention that the CPU would take; torch asks the device's type."""
    mask = kw.pop("attn_mask", mask)
    inner = [_unwrap(each).requires_grad_(each.requires_grad) for each in (query, key, value)]
    if torch._fused_sdp_choice(*inner, _unwrap(mask), *more, **kw) != 1:  # flash attention
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, mask, *more, **kw
        )[0]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    kw.pop("enable_gqa", None)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, *more, attn_mask=mask, **kw
    )[0]


# --- registration --------------------------------------------------------------------------------


class _Module:
    """`torch.pretend`: what torch and simsplit ask a kind of device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def device(self, device: object) -> AbstractContextManager[None]:
        return nullcontext()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        generator.manual_seed(seed)

    manual_seed = manual_seed_all

    def get_rng_state(self, device: object = None) -> Tensor:
        return generator.get_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        generator.set_state(state)

    def synchronize(self, device: object = None) -> None:
        count("waits")

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return 2**35, 2**35

    def get_device_name(self, device: object = None) -> str:
        return "Pretended"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_bf16_supported(self, *, including_emulation: bool = True) -> bool:
        return True


def _load_storage(storage: Any, location: str) -> Any:
    """Return a storage of a file on the device, if it was there: torch.load asks."""
    if not location.startswith(NAME):
        return None
    return _move(torch.empty(0, dtype=torch.uint8).set_(storage), DEVICE).untyped_storage()


_clone_elsewhere = torch.UntypedStorage.clone


def _clone_storage(storage: Any) -> Any:
    """Copy a storage, as copy.deepcopy does; torch would ask an allocator that is not there."""
    if storage.device.type != NAME:
        return _clone_elsewhere(storage)
    return (
        _move(torch.empty(storage.nbytes(), dtype=torch.uint8), DEVICE)
        .untyped_storage()
        .copy_(storage)
    )


_library: list[torch.library.Library] = []


def register() -> None:
    """Add the device to torch in this process, once."""
    if _library:
        return
    torch.UntypedStorage.clone = _clone_storage
    torch.serialization.register_package(5, lambda _: None, _load_storage)
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    anywhere, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _library[:] = [anywhere, aten]
    anywhere.fallback(_run, "PrivateUse1")
    # with a kernel of its own, no operator takes another way than on the CPU
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        if name.startswith("aten::"):
            _implement(aten, name)
    for name in ("aten::convolution", "aten::convolution_backward"):
        _implement(aten, name)
    anywhere.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"):
        packet, op = _find(name)
        if packet not in PROMOTED:
            aten.impl(name, partial(_autocast, op, packet in LOWERED), "AutocastPrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        aten.impl("scaled_dot_product_attention", _attend, key)
        aten.impl("dropout", _drop_out, key)
        aten.impl("gru.input", _run_gru, key)
    aten.impl("copy_", _copy, "PrivateUse1", allow_override=True)
    aten.impl("resize_", _resize, "PrivateUse1", allow_override=True)


def _find(name: str) -> tuple[str, Any]:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return packet, getattr(getattr(torch.ops.aten, packet), overload or "default")


def _implement(aten: torch.library.Library, name: str) -> None:
    packet, op = _find(name)
    aliases = [each.alias_info for each in op._schema.returns]
    views = any(each is not None and not each.is_write for each in aliases)
    if packet not in ("copy_", "resize_"):
        aten.impl(name, partial(_view if views or packet == "set_" else _run, op), "PrivateUse1")


def prepare() -> None:
    """Make a process ready for tests on the device: `device: auto` finds it."""
    torch.set_num_threads(1)
    register()
    machine.ACCELERATORS = (NAME,)
    seeds.make_generator = lambda device: make_generator(device or torch.device("cpu"))
