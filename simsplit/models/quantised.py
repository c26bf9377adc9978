"""Frozen weights of a transformer's layers, held in 8 or 4 bits.

Both forms are those of the package bitsandbytes, value for value:

- int8 (Dettmers et al., LLM.int8(), 2022): each row of outputs is divided by its largest magnitude,
  and rounded to a 127th of it;
- nf4 (Dettmers et al., QLoRA, 2023, appendix E): each block of 64 values is divided by its largest
  magnitude, and each value becomes the nearest of 16 levels, the quantiles of a normal
  distribution. The scales are not quantised again.

Values are computed back where a layer uses them, and again in the backward pass, so that a step
keeps none of them. The package itself is not used: on CPUs it predicts by another kernel than it
trains, so that evaluations would differ from training, and torchao no longer has nf4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

QuantisedForm = Literal["int8", "nf4"]
BLOCK = 64
"""Number of values of nf4 that have one scale."""
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The 16 values of nf4."""
_STEPS = 127.0
_AT_ONCE = 1 << 18
"""Number of values that are quantised at a time."""
_CODES, _SCALES = "_codes", "_scales"


class Packed(NamedTuple):
    """Weights as they are held."""

    codes: Tensor
    """int8: a byte for each value. nf4: a byte for two of them, the first one in its high bits."""
    scales: Tensor
    """The largest magnitude of each row or block, in float32."""


def pack(weight: Tensor, form: QuantisedForm) -> Packed:
    """Quantise a matrix of outputs x inputs, or several of them one by one."""
    rows, lead = weight.detach(), weight.shape[:-2]
    if form == "nf4":
        flat = rows.reshape(*lead, -1)
        rows = F.pad(flat, (0, -flat.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    width, pack_rows = rows.shape[-1], {"int8": _pack_int8, "nf4": _pack_nf4}[form]
    # Some rows at a time: a weight in float32 would be larger than what is made of it.
    parts = rows.reshape(-1, width).split(max(1, _AT_ONCE // width))
    codes, scales = map(torch.cat, zip(*(pack_rows(part.float()) for part in parts), strict=True))
    shape = (*lead, -1) if form == "nf4" else weight.shape
    return Packed(codes.view(shape), scales.view(rows.shape[:-1]))


def _pack_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    largest = rows.abs().amax(-1)
    return (rows * (_STEPS / _fill_zeros(largest))[..., None]).round().to(torch.int8), largest


def _pack_nf4(blocks: Tensor) -> tuple[Tensor, Tensor]:
    largest = blocks.abs().amax(-1)
    levels = torch.tensor(LEVELS, device=blocks.device)
    between = (levels[1:] + levels[:-1]) / 2
    # Not divided: a value between two levels would be rounded otherwise than by the package.
    scaled = blocks * (1 / _fill_zeros(largest))[..., None]
    codes = torch.bucketize(scaled, between, out_int32=True).to(torch.uint8)
    return codes[..., ::2] << 4 | codes[..., 1::2], largest


def _fill_zeros(largest: Tensor) -> Tensor:
    """Return divisors: 1 where all values are zero."""
    return torch.where(largest == 0, 1.0, largest)


def unpack(packed: Packed, form: QuantisedForm, shape: Sequence[int]) -> Tensor:
    """Return the values that a layer computes with, in float32."""
    codes, scales = packed
    if form == "int8":
        return (codes * scales[..., None]).mul_(1 / _STEPS)
    pairs = _list_pairs(codes.device).index_select(0, codes.flatten().int())
    blocks = pairs.view(*scales.shape, BLOCK).mul_(scales[..., None])
    size = shape[-1] * shape[-2]
    return blocks.flatten(-2)[..., :size].reshape(tuple(shape))


@lru_cache
def _list_pairs(device: torch.device) -> Tensor:
    """Return the two levels of each byte of nf4."""
    levels = torch.tensor(LEVELS)
    return torch.stack(torch.meshgrid(levels, levels, indexing="ij"), -1).view(256, 2).to(device)


class QuantisedWeight:
    """Stands in a layer for one of its weights, whose packed form the layer holds.

    Products with it keep nothing of its values for the backward pass. In other operations it is
    the tensor of its values. One expert of several is unpacked alone.
    """

    def __init__(
        self,
        owner: nn.Module,
        name: str,
        form: QuantisedForm,
        weight: Tensor,
        place: Tensor | int = -1,
    ) -> None:
        """Read the packed form from `owner`, by the weight's name; the type is that of `weight`.

        `place` is the number of the expert, if not all are meant.
        """
        # The owner, not its tensors: they move to a device, and copies share or replace them.
        self.owner, self.name, self.form = owner, name, form
        self.shape, self.dtype, self.place = weight.shape, weight.dtype, int(place)

    @property
    def packed(self) -> Packed:
        """The packed form that is held now."""
        held = self.owner._parameters
        both = [held[f"{self.name}{suffix}"] for suffix in (_CODES, _SCALES)]
        codes, scales = (part.detach() for part in both if part is not None)
        one = self.place >= 0
        return Packed(codes[self.place], scales[self.place]) if one else Packed(codes, scales)

    @property
    def device(self) -> torch.device:
        """Where the packed form lies."""
        return self.packed.codes.device

    def unpack(self) -> Tensor:
        """Return the weight's values in its type."""
        turned = _has_inputs_first(self.owner)
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2]) if turned else self.shape
        values = unpack(self.packed, self.form, shape).to(self.dtype)
        return values.mT.contiguous() if turned else values

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - whatever takes a part of a tensor
        """Return one expert, still packed, or the values of another part."""
        single = place.ndim == 0 if isinstance(place, Tensor) else isinstance(place, int)
        if not single or len(self.shape) < 3:
            return self.unpack()[place]
        one = torch.empty(self.shape[1:], dtype=self.dtype, device="meta")
        return QuantisedWeight(self.owner, self.name, self.form, one, place)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever torch's function returns
        """Apply one of torch's functions to the values."""
        given = dict(kwargs or {})
        if func is F.linear and isinstance(args[1], cls) and not given:
            x, weight, bias = (*args, None)[:3]
            return _Product.apply(x, bias, weight, func)
        if func is torch.addmm and isinstance(args[-1], cls) and not given:
            bias, x, weight = args
            return _Product.apply(x, bias, weight, func)
        plain = [each.unpack() if isinstance(each, cls) else each for each in args]
        given = {k: each.unpack() if isinstance(each, cls) else each for k, each in given.items()}
        return func(*plain, **given)


class _Product(torch.autograd.Function):
    """The product of a linear layer, which unpacks its weight in either direction."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's
        x: Tensor,
        bias: Tensor | None,
        weight: QuantisedWeight,
        func: Callable[..., Tensor],
    ) -> Tensor:
        ctx.weight, ctx.dtype, ctx.is_linear = weight, x.dtype, func is F.linear
        values = weight.unpack()
        return func(x, values, bias) if ctx.is_linear else func(bias, x, values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        (grad,) = grads
        values = ctx.weight.unpack().to(grad.dtype)
        inner = grad @ (values if ctx.is_linear else values.T)
        outer = grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return inner.to(ctx.dtype), outer, None, None


def _has_inputs_first(owner: nn.Module) -> bool:
    """Return whether a layer's weights are inputs x outputs: GPT-2's, and gpt-oss' experts."""
    return type(owner).__name__ == "Conv1D" or bool(getattr(owner, "is_transposed", False))


def list_weights(layers: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield the weights that can be quantised: those of linear layers, and of experts.

    Embeddings, norms, biases and routers are held as they are.
    """
    for owner in layers.modules():
        linear = isinstance(owner, nn.Linear) or type(owner).__name__ == "Conv1D"
        for name, weight in list(owner._parameters.items()):
            if weight is None or not weight.is_floating_point():
                continue
            of_experts = hasattr(owner, "num_experts") and weight.ndim == 3
            if of_experts or (linear and name == "weight"):
                yield owner, name, weight


def hold_packed(owner: nn.Module, name: str, weight: Tensor, form: QuantisedForm) -> None:
    """Put the packed form of a weight into its place in a layer."""
    packed = pack(weight.mT if _has_inputs_first(owner) else weight, form)
    owner._parameters.pop(name, None)
    for suffix, part in zip((_CODES, _SCALES), packed, strict=True):
        owner.register_parameter(f"{name}{suffix}", nn.Parameter(part, requires_grad=False))
    owner.__dict__[name] = QuantisedWeight(owner, name, form, weight)
    if (config := getattr(owner, "config", None)) is not None:
        config._experts_implementation = "eager"  # one expert at a time, the others stay packed


def quantise(layers: nn.Module, form: QuantisedForm | None, dtype: torch.dtype) -> None:
    """Quantise the weights of layers that can be, in place, from values in `dtype`; None: none."""
    if form is not None:
        for owner, name, weight in list_weights(layers):
            hold_packed(owner, name, weight.detach().to(dtype), form)


def list_quantised(module: nn.Module) -> Iterator[QuantisedWeight]:
    """Yield the quantised weights of a module."""
    for owner in module.modules():
        yield from [each for each in owner.__dict__.values() if isinstance(each, QuantisedWeight)]


def measure_unpacking(module: nn.Module) -> int:
    """Return the bytes of the values of the largest quantised weight while a layer uses them.

    Of experts there is one at a time. Values are in float32, and in the layer's type; nf4 has
    numbers of pairs next to them.
    """
    return max(
        (
            each.shape[-1] * each.shape[-2] * (4 + 2 * (each.form == "nf4") + each.dtype.itemsize)
            for each in list_quantised(module)
        ),
        default=0,
    )


def list_scales(module: nn.Module) -> Iterator[Tensor]:
    """Yield the scales of quantised weights, whose type is fixed."""
    for each in list_quantised(module):
        scales = each.owner._parameters[f"{each.name}{_SCALES}"]
        assert scales is not None, "hold_packed sets both parts"
        yield scales


def collect_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state with the values of quantised weights instead of their packed form."""
    state: dict[str, Tensor] = module.state_dict()
    for prefix, owner in module.named_modules():
        for name, weight in owner.__dict__.items():
            if isinstance(weight, QuantisedWeight):
                full = f"{prefix}.{name}".strip(".")
                for suffix in (_CODES, _SCALES):
                    del state[f"{full}{suffix}"]
                state[full] = weight.unpack()
    return state


def dequantise(module: nn.Module) -> nn.Module:
    """Put the values of quantised weights into their layers, in place."""
    for each in list(list_quantised(module)):
        values, owner = each.unpack(), each.owner
        for suffix in (_CODES, _SCALES):
            del owner._parameters[f"{each.name}{suffix}"]
        del owner.__dict__[each.name]
        owner.register_parameter(each.name, nn.Parameter(values, requires_grad=False))
    return module
