"""Clients' own adapters on one frozen transformer: its weights are multiplied once for all clients.

Their texts are one batch to the base, which is common and never learns. Only an adapter's two small
layers multiply each client's tokens by that client's weights. Texts are padded on the right to the
longest of all clients for this call alone: under causal attention no token sees what follows it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from simsplit.models.transformer import Blocks, Head, Tail


def reads_texts(module: nn.Module) -> bool:
    """Return whether a module is a segment of a language model, whose rows are texts."""
    return isinstance(module, Head | Blocks | Tail)


def find_unadapted(module: nn.Module) -> Iterator[str]:
    """Yield what keeps a segment of a language model out of a stack."""
    parts = list(module.modules())
    if any("experts" in part._modules for part in parts):
        yield "experts take the tokens of all texts in an order of their own"
    plain = {id(part.weight) for part in parts if _is_plain(part)}
    learning = (p for part in parts for p in part._parameters.values() if p is not None)
    if any(p.requires_grad and id(p) not in plain for p in learning):
        yield "weights of a transformer learn that are not adapters (model.lora)"


class AdaptedCall:
    """A segment that runs once on the texts of all clients, with each one's adapters."""

    def __init__(self, module: nn.Module, numbers: Mapping[int, int]) -> None:
        """Find the layers with stacked weights, which have numbers by their id."""
        self._module = module
        self._layers: list[tuple[nn.Module, Callable[..., Tensor], list[int]]] = []
        # The package's classes are untyped.
        layers: list[Any] = [part for part in module.modules() if hasattr(part, "lora_A")]
        for layer in layers:
            for name, low in layer.lora_A.items():
                own = [numbers[id(each.weight)] for each in (low, layer.lora_B[name])]
                add = partial(_add, layer.base_layer, layer.scaling[name])
                self._layers.append((layer, add, own))
        taken = {number for *_, own in self._layers for number in own}
        for part in filter(_is_plain, module.modules()):
            number = numbers.get(id(part.weight))
            if number is not None and number not in taken:
                self._layers.append((part, _multiply, [number]))

    def __call__(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs of all texts, as [client, text, token, ...]."""
        with ExitStack() as after:
            for layer, run, numbers in self._layers:
                # An attribute of the layer goes before its class's function.
                layer.forward = partial(run, *(tensors[number] for number in numbers))
                after.callback(layer.__dict__.pop, "forward")
            made: Tensor = self._module(x.flatten(0, 1))
        return made.view(*x.shape[:2], *made.shape[1:])


def _is_plain(part: nn.Module) -> TypeGuard[nn.Linear]:
    return type(part) is nn.Linear and part.bias is None


def _multiply(weights_COI: Tensor, x_RLI: Tensor) -> Tensor:
    """Multiply each client's rows by its weights; all clients have as many."""
    x_CTI = x_RLI.reshape(len(weights_COI), -1, x_RLI.shape[-1])
    return torch.bmm(x_CTI, weights_COI.mT).view(*x_RLI.shape[:-1], -1)


def _add(base: nn.Module, scale: float, low_CDI: Tensor, high_COD: Tensor, x_RLI: Tensor) -> Tensor:
    """Add each client's adapter to a layer of the base, in one pass over its outputs."""
    made_RLO: Tensor = base(x_RLI)
    clients = len(low_CDI)
    low_CTD = torch.bmm(x_RLI.reshape(clients, -1, x_RLI.shape[-1]), low_CDI.mT)
    made_CTO = made_RLO.reshape(clients, -1, made_RLO.shape[-1])
    return torch.baddbmm(made_CTO, low_CTD, high_COD.mT, alpha=scale).view_as(made_RLO)
