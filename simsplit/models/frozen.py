"""Weights that never learn: the type in which they are held, and one copy for all who hold them."""

import copy
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.quantised import list_scales

Dtype = Literal["float32", "bfloat16", "float16"]


def parse_dtype(name: Dtype) -> torch.dtype:
    """Return torch's type of this name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def refuse_missing_dtype(model: object, device: torch.device) -> None:
    """Raise ScenarioError if a device does not compute in the type of a model's weights."""
    name: Dtype = getattr(model, "dtype", "float32")
    if name == "float32":
        return
    have: list[Dtype] = [
        each for each in get_args(Dtype) if _computes(parse_dtype(each), str(device))
    ]
    if name not in have:
        raise ScenarioError(
            "model.dtype",
            f"got {name}, which {device} does not compute in; allowed: {', '.join(have)}",
        )


@lru_cache
def _computes(dtype: torch.dtype, device: str) -> bool:
    """Return whether a device has the operations of a transformer in a type."""
    if torch.device(device).type not in ("cpu", "meta") and dtype == torch.bfloat16:
        # older GPUs emulate it: every operator is there, and slower than in float32
        supports = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        if supports is not None:
            return bool(supports(including_emulation=False))
    try:
        x = torch.ones(1, 1, 2, 2, dtype=dtype, device=device, requires_grad=True)
        made = nn.functional.scaled_dot_product_attention(x, x, nn.functional.linear(x, x[0, 0]))
        nn.functional.layer_norm(made, (2,)).sum().backward()
    except RuntimeError:  # torch's for an operation that is not implemented
        return False
    return True


def hold_frozen(segment: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Hold a segment's frozen weights in `dtype` and all others in float32, in place.

    Buffers keep their types: the library computes rotary angles in float32. So do scales of
    quantised weights.
    """
    scales = {id(each) for each in list_scales(segment)}
    for weight in segment.parameters():
        wanted = torch.float32 if weight.requires_grad else dtype
        if weight.is_floating_point() and weight.dtype != wanted and id(weight) not in scales:
            weight.data = weight.data.to(wanted)
    held = dtype if any(not weight.requires_grad for weight in segment.parameters()) else None
    for module in segment.modules():
        if hasattr(module, "computes_in"):
            module.computes_in = held or torch.float32  # type: ignore[assignment]
    return segment


def copy_learning(module: nn.Module) -> nn.Module:
    """Copy a module; frozen weights are the same tensors in both."""
    frozen = {id(weight): weight for weight in module.parameters() if not weight.requires_grad}
    return copy.deepcopy(module, dict(frozen))


def share_frozen(module: nn.Module, other: nn.Module) -> nn.Module:
    """Let a module use another one's frozen weights where they are equal, in place."""
    others = dict(other.named_parameters())
    for prefix, part in module.named_modules():
        for name, weight in part._parameters.items():
            twin = others.get(f"{prefix}.{name}".strip("."))
            if weight is None or twin is None or weight.requires_grad or twin.requires_grad:
                continue
            if weight.dtype == twin.dtype and (weight.is_meta or torch.equal(weight, twin)):
                part._parameters[name] = twin
    return module
