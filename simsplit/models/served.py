"""A whole transformer that a server offers, and what its clients bring: adapters, and a head.

The server keeps nothing of a client's: adapters arrive with every call, a row of numbers for each
set, and stand in for those that the package peft has put into the layers. So a call computes what
peft computes. Dropout is off, for a call with the same arguments has to give the same answer.

What crosses are the states that a class is read off: at the first real token of BERT, RoBERTa and
DeBERTa, at the last one of all others. (Of T5 the published code runs the decoder too, whose
last state it takes; here the encoder's state at the token that ends the text.)

Shapes: n sets of adapters, P numbers in a set, B texts, L tokens, D values per state.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from simsplit.models.lora import inject, targeted
from simsplit.seeds import Scope, isolated

Pooling = Literal["first", "last"]
Layout = Mapping[str, tuple[int, ...]]
"""An adapter set's parameters: their shapes by name."""


def layout_of(
    body: nn.Module, rank: int, targets: Sequence[str] | str
) -> dict[str, tuple[int, int]]:
    """What a set of adapters for this body consists of."""
    return {
        f"{name}.lora_{part}.default.weight": shape
        for name, (inputs, outputs) in targeted(body, targets).items()
        for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank)))
    }


class Adapters(nn.Module):
    """A client's sets of low-rank adapters."""

    def __init__(self, layout: Layout, count: int, seed: int, scope: tuple[Scope, ...]) -> None:
        """Sets differ in their A matrices; B starts at zero, so at first all of them do nothing."""
        super().__init__()
        self.sets = nn.ModuleList(_drawn(layout, seed, (number, *scope)) for number in range(count))

    def forward(self) -> Tensor:
        """All sets as n x P numbers."""
        rows = [torch.cat([weight.flatten() for weight in each.parameters()]) for each in self.sets]
        return torch.stack(rows)


def _drawn(layout: Layout, seed: int, scope: tuple[Scope, ...]) -> nn.ParameterDict:
    """As peft draws them."""
    made = nn.ParameterDict()
    with isolated(seed, "lora", "head", *scope):
        for name, shape in layout.items():
            weight = nn.Parameter(torch.zeros(shape))
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
            made[name.replace(".", "/")] = weight  # torch allows no dots
    return made


class NoAdapters(nn.Module):
    """In their place where a client trains its head alone."""

    def forward(self) -> Tensor:
        """No set of none."""
        return torch.empty(0, 0)


class Served(nn.Module):
    """The transformer that a server offers: frozen, and run under whatever adapters arrive."""

    def __init__(self, body: nn.Module, layout: Layout, scale: float, pooling: Pooling) -> None:
        """`scale` is what adapters' outputs are multiplied by."""
        super().__init__()
        self.body, self.layout, self.pooling = body, dict(layout), pooling
        if layout:
            _made_room(body, layout, scale)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """As in evaluation, always: the same call has the same answer."""
        del mode
        return super().train(False)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that it embeds."""
        body: Any = self.body
        return int(body.get_input_embeddings().num_embeddings)

    @property
    def numbers(self) -> int:
        """How many numbers a set of adapters has."""
        return sum(math.prod(shape) for shape in self.layout.values())

    def forward(self, adapters_NP: Tensor, ids_BL: Tensor, mask_BL: Tensor | None = None) -> Tensor:
        """The pooled states under each set of adapters, B x n x D; without any set, of none."""
        mask = torch.ones_like(ids_BL) if mask_BL is None else mask_BL.long()
        given = {"input_ids": ids_BL.long(), "attention_mask": mask}
        if not len(adapters_NP):
            return self.pooled(self._states(given), mask)[:, None]
        made = [
            self.pooled(self._states(given, self._named(each_P)), mask) for each_P in adapters_NP
        ]
        return torch.stack(made, dim=1)

    def pooled(self, states_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """The states that a class is read off."""
        places = torch.arange(mask_BL.shape[1], device=mask_BL.device)
        read_B = mask_BL.argmax(1) if self.pooling == "first" else (mask_BL * places).argmax(1)
        return states_BLD[torch.arange(len(states_BLD), device=read_B.device), read_B]

    def _states(
        self, given: Mapping[str, Tensor], adapters: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        out = functional_call(self.body, dict(adapters or {}), (), dict(given))
        states: Tensor = out.last_hidden_state
        return states

    def _named(self, numbers_P: Tensor) -> dict[str, Tensor]:
        """A row of numbers as the parameters that it consists of."""
        shapes = self.layout.values()
        parts = numbers_P.split([math.prod(shape) for shape in shapes])
        return {
            name: part.view(shape)
            for name, part, shape in zip(self.layout, parts, shapes, strict=True)
        }


def _made_room(body: nn.Module, layout: Layout, scale: float) -> None:
    """Put adapters of zeros into the layers, in place, for others to stand in for."""
    (first, *_) = layout.values()
    rank = first[0]
    names = [name.removesuffix(_A) for name in layout if name.endswith(_A)]
    with isolated(0, "lora"):  # drawn, and put to zero below
        inject(body, names, rank, scale * rank, init_lora_weights=False)
    parameters = dict(body.named_parameters())
    for name, shape in layout.items():
        assert tuple(parameters[name].shape) == shape, f"peft made {name} another way"
        nn.init.zeros_(parameters[name])


_A = ".lora_A.default.weight"


class ServedTail(nn.Module):
    """A client's head: the classification layers of the model's family, on the pooled states."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader
        for module in reader.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def forward(self, h: Tensor, *context: Tensor) -> Tensor:
        """Logits of B x D states, or of the mean over sets of B x n x D; they need no mask."""
        del context
        if h.ndim == 3:
            h = h[:, 0] if h.shape[1] == 1 else h.mean(1)
        out: Tensor = self.reader(h[:, None])
        return out[:, 0] if out.ndim == 3 else out
