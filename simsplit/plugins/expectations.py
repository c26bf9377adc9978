"""What a hook must return is read from the annotations of the base class that declares it."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

DEPTH = 4
"""How deeply values are searched for tensors."""


@cache
def read_annotation(declared: Callable[..., Any]) -> Any:  # noqa: ANN401 - an annotation
    """Return the annotation of what a function returns; Any if it has none that can be read."""
    try:
        return get_type_hints(declared).get("return", Any)
    except (NameError, TypeError):  # a name that only type checkers import
        return Any


def describe_annotation(wanted: Any) -> str:  # noqa: ANN401
    """Return an annotation in words, such as `Tensor or None`."""
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(map(describe_annotation, get_args(wanted)))
    if wanted in (None, NoneType):
        return "None"
    if isinstance(wanted, type) and not get_args(wanted):
        return wanted.__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(wanted))


def fits(value: object, wanted: Any) -> bool:  # noqa: ANN401
    """Return whether a value fits an annotation; where several types do as well, they fit too.

    A list fits where a tuple is declared, and a tensor of one value where a number is.
    """
    origin, args = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in args)
    if value is None or wanted in (None, NoneType):
        return value is None and wanted in (None, NoneType, Any, object)
    if wanted in _PLAIN:
        return _PLAIN[wanted](value)
    kind = origin or wanted
    if not isinstance(kind, type) or issubclass(kind, type):
        return origin is not Literal or value in args
    return _fits_kind(value, kind) and _have_fitting_members(value, kind, args)


def _fits_kind(value: object, kind: type) -> bool:
    """Return whether a value is of a kind, such as a sequence, whatever its members are."""
    if kind is tuple:
        return isinstance(value, tuple | list)
    if kind.__module__ != "collections.abc" or issubclass(kind, Iterator | Mapping | Set):
        return isinstance(value, kind)
    if not issubclass(kind, Iterable):
        return isinstance(value, kind)
    # Any iterable does where a sequence is declared, but a tensor's rows are not what is meant.
    return isinstance(value, Iterable) and not isinstance(value, Tensor | str)


def _have_fitting_members(value: object, kind: type, args: tuple[Any, ...]) -> bool:
    if not args:
        return True
    if isinstance(value, Mapping):
        return all(fits(each, args[-1]) for each in value.values())
    if not isinstance(value, tuple | list | Set):
        return True  # members of an iterator cannot be looked at without taking them
    if kind is tuple and args[-1] is not Ellipsis:
        return len(value) == len(args) and all(map(fits, value, args))
    return all(fits(each, args[0]) for each in value)


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.size == 1 if isinstance(value, np.ndarray) else value.numel() == 1
    return not isinstance(value, str) and hasattr(value, "__float__")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) or (isinstance(value, Tensor) and value.numel() == 1)


_PLAIN: dict[Any, Callable[[object], bool]] = {
    Any: lambda _: True,
    object: lambda _: True,
    float: _is_number,
    bool: _is_number,
    int: _is_whole,
}


def describe(value: object) -> str:
    """Describe what a hook returned: its type, shapes of tensors, and NaN or infinity in it."""
    words = _describe_type(value)
    if "nan" in words or "inf" in words or is_finite(value):
        return words
    return f"{words} with {'NaN' if find_nan(value) else 'infinity'}"


def _describe_type(value: object) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list) and value and len(value) < DEPTH:
        return f"a {type(value).__name__} of {' and '.join(map(_describe_type, value))}"
    if value is None or isinstance(value, float | int | str | Mapping):
        return repr(value)[:80]
    return f"a {type(value).__name__}"


def find_nan(value: object) -> bool:
    """Return whether there is NaN in a value, or in tensors that it holds."""
    # A sum takes a fifth of the time, and is not finite if there is NaN.
    return any(
        not each.sum().isfinite() and bool(each.isnan().any())
        for each in _find_tensors(value, DEPTH)
    )


def is_finite(value: object) -> bool:
    """Return whether all numbers in a value, and in tensors that it holds, are finite."""
    return all(bool(each.isfinite().all()) for each in _find_tensors(value, DEPTH))


def _find_tensors(value: object, depth: int) -> Iterator[Tensor]:
    """Yield the tensors of real numbers that a value holds; numbers are tensors of one value."""
    if isinstance(value, Tensor):
        real = value.is_floating_point() or value.is_complex()
        if real and value.device.type != "meta":
            yield value.detach()
    elif isinstance(value, float | np.floating):
        yield torch.tensor(float(value))
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield torch.from_numpy(np.ascontiguousarray(value))
    elif depth:
        for each in _list_members(value):
            yield from _find_tensors(each, depth - 1)


def _list_members(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple | list):
        return list(value)
    if is_dataclass(value) and not inspect.isclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return []
