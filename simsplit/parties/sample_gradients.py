"""Gradients of single samples, from one backward pass of a batch.

A hook on each layer with weights keeps what the layer gets and the gradient of what it returns,
sample by sample. Of a linear layer or an embedding these two factors are enough for the norm and
for a weighted sum, without the gradients themselves ("book-keeping", Bu et al., ICML 2023). Other
layers are differentiated again for each sample by torch.func. So nothing is wrapped, a head may be
shared by clients, and dropout is drawn once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import unfold
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from simsplit.errors import ScenarioError


class Rows:
    """Gradients of samples, spelt out."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def measure(self) -> Tensor:
        """Return the squared norm of each sample's gradient."""
        return self.rows.flatten(1).square().sum(1)

    def add_up(self, weights_B: Tensor) -> Tensor:
        """Return the weighted sum over samples."""
        return (weights_B @ self.rows.flatten(1)).view(self.rows.shape[1:])

    def spell_out(self) -> Tensor:
        """Return each sample's gradient."""
        return self.rows


class Products:
    """Gradients of a linear layer's weight: sums of outer products over tokens."""

    def __init__(self, x_BLI: Tensor, g_BLO: Tensor) -> None:
        self.x_BLI, self.g_BLO = x_BLI, g_BLO

    def measure(self) -> Tensor:
        x, g = self.x_BLI, self.g_BLO
        if x.shape[1] == 1:
            return x.square().sum((1, 2)) * g.square().sum((1, 2))
        return ((x @ x.mT) * (g @ g.mT)).sum((1, 2))

    def add_up(self, weights_B: Tensor) -> Tensor:
        weighted = self.g_BLO * weights_B[:, None, None]
        return weighted.flatten(0, 1).T @ self.x_BLI.flatten(0, 1)

    def spell_out(self) -> Tensor:
        return self.g_BLO.mT @ self.x_BLI


class Lookups:
    """Gradients of an embedding's table: sums over equal tokens."""

    def __init__(self, ids_BL: Tensor, g_BLD: Tensor, table: Tensor) -> None:
        self.ids_BL, self.g_BLD, self.shape = ids_BL, g_BLD, table.shape

    def measure(self) -> Tensor:
        same = self.ids_BL[:, :, None] == self.ids_BL[:, None]
        return (same * (self.g_BLD @ self.g_BLD.mT)).sum((1, 2))

    def add_up(self, weights_B: Tensor) -> Tensor:
        weighted = (self.g_BLD * weights_B[:, None, None]).flatten(0, 1)
        return weighted.new_zeros(self.shape).index_add_(0, self.ids_BL.flatten(), weighted)

    def spell_out(self) -> Tensor:
        rows = self.g_BLD.new_zeros(len(self.ids_BL), *self.shape)
        places = self.ids_BL[..., None].expand_as(self.g_BLD)
        return rows.scatter_add_(1, places, self.g_BLD)


class BothEnds:
    """Gradients of a table that embeds tokens and predicts them: sums of these two."""

    def __init__(self, lookups: Lookups, products: Products) -> None:
        self.lookups, self.products = lookups, products

    def measure(self) -> Tensor:
        ids_BL, x_BTD = self.lookups.ids_BL, self.products.x_BLI
        dots_BTL = x_BTD @ self.lookups.g_BLD.mT
        # Of what a token's prediction gives to all rows, the rows that are looked up.
        picked_BTL = self.products.g_BLO.gather(2, ids_BL[:, None].expand_as(dots_BTL))
        common_B = (dots_BTL * picked_BTL).sum((1, 2))
        return self.lookups.measure() + self.products.measure() + 2 * common_B

    def add_up(self, weights_B: Tensor) -> Tensor:
        return self.lookups.add_up(weights_B) + self.products.add_up(weights_B)

    def spell_out(self) -> Tensor:
        return self.lookups.spell_out() + self.products.spell_out()


Factors = Rows | Products | Lookups | BothEnds
"""The gradients of one layer's weight for each sample, in some form."""
Found = dict[Tensor, Factors]


def _add_factors(one: Factors, other: Factors) -> Factors:
    """Return the gradients of a weight that is used twice."""
    match one, other:
        case (Lookups() as lookups, Products() as products) | (
            Products() as products,
            Lookups() as lookups,
        ):
            return BothEnds(lookups, products)  # spelt out, it is a table for each sample
    return Rows(one.spell_out() + other.spell_out())


def _learns(weight: Tensor | None) -> TypeGuard[Tensor]:
    return weight is not None and weight.requires_grad


def _differentiate_linear(layer: nn.Linear, x: Tensor, g: Tensor) -> Found:
    x_BLI, g_BLO = x.reshape(len(x), -1, x.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
    found: Found = {}
    if _learns(layer.weight):
        tokens, inputs, outputs = x_BLI.shape[1], x_BLI.shape[2], g_BLO.shape[2]
        made = Products(x_BLI, g_BLO)
        # Few weights (an adapter's) cost less spelt out than products of all pairs of tokens.
        few = tokens > 1 and inputs * outputs <= tokens * (inputs + outputs)
        found[layer.weight] = Rows(made.spell_out()) if few else made
    if _learns(layer.bias):
        found[layer.bias] = Rows(g_BLO.sum(1))
    return found


def _differentiate_conv(layer: nn.Conv2d, x: Tensor, g: Tensor) -> Found:
    assert not isinstance(layer.padding, str), "a rule for numbers alone"
    found: Found = {}
    if _learns(layer.weight):
        patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        rows = g.flatten(2) @ patches.mT
        found[layer.weight] = Rows(rows.view(len(x), *layer.weight.shape))
    if layer.bias is not None and _learns(layer.bias):
        found[layer.bias] = Rows(g.sum((2, 3)))
    return found


def _differentiate_embedding(layer: nn.Embedding, ids: Tensor, g: Tensor) -> Found:
    ids_BL, g_BLD = ids.reshape(len(ids), -1), g.reshape(len(g), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g_BLD = g_BLD * (ids_BL != layer.padding_idx)[..., None]
    return {layer.weight: Lookups(ids_BL, g_BLD, layer.weight)}


def _differentiate_anything(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    """Differentiate a layer's output for each sample alone, by torch.func."""
    weights = {name: each for name, each in _list_own(layer).items() if each.requires_grad}

    def project(given: dict[str, Tensor], x_1: Tensor, g_1: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, given, (x_1[None],))[0]
        return (_widen(out) * g_1).sum()

    detached = {name: each.detach() for name, each in weights.items()}
    rows = vmap(grad(project), in_dims=(None, 0, 0))(detached, x, g)
    return {weights[name]: Rows(_widen(each)) for name, each in rows.items()}


_RULES: Mapping[type[nn.Module], Any] = {
    nn.Linear: _differentiate_linear,
    nn.Conv2d: _differentiate_conv,
    nn.Embedding: _differentiate_embedding,
}


def _list_own(module: nn.Module) -> dict[str, nn.Parameter]:
    """List the weights that a module has itself, those of its children left out."""
    return dict(module.named_parameters(recurse=False))


def list_learning(segment: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the layers of a segment that have weights that learn."""
    return [
        (name, module)
        for name, module in segment.named_modules()
        if any(weight.requires_grad for weight in _list_own(module).values())
    ]


def uses_torch_func(segment: nn.Module) -> bool:
    """Return whether layers of a segment are differentiated by torch.func, as norms are."""
    layers = (layer for _, layer in list_learning(segment))
    return any(_find_rule(layer) is _differentiate_anything for layer in layers)


def _find_rule(layer: nn.Module) -> Callable[..., Found]:
    rule: Callable[..., Found] = _RULES.get(type(layer), _differentiate_anything)
    if rule is not _differentiate_conv:
        return rule
    plain = layer.groups == 1 and layer.padding_mode == "zeros"
    return rule if plain and not isinstance(layer.padding, str) else _differentiate_anything


def find_unfit(segment: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield layers that have no gradient of a single sample, or whose one is not known here."""
    for name, module in list_learning(segment):
        if isinstance(module, _BatchNorm | nn.RNNBase) or any(True for _ in module.children()):
            yield name or "itself", module


def _refuse(layer: nn.Module, why: str) -> ScenarioError:
    return ScenarioError(
        "train.dp",
        f"no gradient of a single sample is known for a layer {type(layer).__name__} that {why}; "
        "use another cut, or take this part out of model.learns",
    )


def _widen(x: Tensor) -> Tensor:
    """Return numbers that are at least as wide as single precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class SampleGradients:
    """The gradients of each sample of one batch, layer by layer."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._found: Found = {}
        self._paused = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Open a context in which gradients that a method computes for itself are not recorded."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @contextmanager
    def record(self, segment: nn.Module) -> Iterator[None]:
        """Open a context in which the forward pass of a segment is noted."""
        handles: list[RemovableHandle] = [
            module.register_forward_hook(self._note, with_kwargs=True)
            for _, module in list_learning(segment)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def clip(self, clip: float, scales_B: Tensor) -> dict[Tensor, Tensor]:
        """Return the sums of the samples' gradients, each scaled and shortened to the norm `clip`.

        The norm is that of all weights together. `scales_B` make of a row of the batch's gradient
        the gradient of the sample alone.
        """
        if not self._found:
            return {}
        squares = torch.stack([each.measure().clamp_min(0) for each in self._found.values()])
        scales_B = scales_B.to(squares)
        norms_B = squares.sum(0).sqrt() * scales_B
        # In this order, so that rounding leaves no sample above the norm by more than itself.
        weights_B = scales_B * (clip / norms_B.clamp_min(1e-12)).clamp(max=1.0)
        return {weight: each.add_up(weights_B) for weight, each in self._found.items()}

    def _note(
        self, layer: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, object], out: object
    ) -> Tensor | None:
        if len(given) != 1 or named or not isinstance(out, Tensor):  # its gradient would be lost
            raise _refuse(layer, "takes or returns more than one tensor")
        if not out.requires_grad:
            return None
        x = given[0].detach()
        shared = len(x) == 1 < self.rows  # positions, which all samples have in common
        if shared:
            x = x.expand(self.rows, *x.shape[1:])
            out = out.expand(self.rows, *out.shape[1:])
        if len(x) != self.rows:
            raise _refuse(layer, "has rows that are not samples")
        out.register_hook(partial(self._take, layer, x))
        return out if shared else None

    def _take(self, layer: nn.Module, x: Tensor, g: Tensor) -> None:
        if self._paused:
            return
        rule = _find_rule(layer)
        x = _widen(x) if x.is_floating_point() else x
        with torch.no_grad():
            made: Found = rule(layer, x, _widen(g))
        for weight, factors in made.items():
            before = self._found.get(weight)
            self._found[weight] = factors if before is None else _add_factors(before, factors)
