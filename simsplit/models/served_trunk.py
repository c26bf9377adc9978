"""A whole transformer on a server, and its clients' parts: adapters and classification layers.

The server stores nothing of a client: adapters arrive with every call, a row of numbers for each
set, and replace the ones that the package peft has added to the layers. So a call computes what
peft computes. Dropout is off, since the same call must give the same answer.

The states that predict the class cross: at the first real token for BERT, RoBERTa and DeBERTa, at
the last one for all others. For T5 the published code also runs the decoder and takes its last
state; here it is the encoder's state at the token that ends the text.

Shapes: n sets of adapters, P numbers in a set, B texts, L tokens, D values per state.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from simsplit.models.lower_layers import LowerLayers
from simsplit.models.text_model import find_targets, inject
from simsplit.seeds import Scope, isolate

Pooling = Literal["first", "last"]
Layout = Mapping[str, tuple[int, ...]]
"""The shapes of an adapter set's parameters, by name."""


def build_layout(
    body: nn.Module, rank: int, targets: Sequence[str] | str
) -> dict[str, tuple[int, int]]:
    """Return the shapes of an adapter set's parameters for this body, by name."""
    return {
        f"{name}.lora_{part}.default.weight": shape
        for name, (inputs, outputs) in find_targets(body, targets).items()
        for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank)))
    }


class Adapters(nn.Module):
    """A client's sets of low-rank adapters."""

    def __init__(self, layout: Layout, count: int, seed: int, scope: tuple[Scope, ...]) -> None:
        """Draw the sets, which differ in A; B starts at zero, so at first none has an effect."""
        super().__init__()
        self.sets = nn.ModuleList()
        for number in range(count):
            made = nn.ParameterDict()
            with isolate(seed, "lora", "head", number, *scope):  # as peft draws them
                for name, shape in layout.items():
                    weight = nn.Parameter(torch.zeros(shape))
                    if ".lora_A." in name:
                        nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
                    made[name.replace(".", "/")] = weight  # torch forbids dots in names
            self.sets.append(made)

    def forward(self) -> Tensor:
        """Return all sets as n x P numbers."""
        rows = [torch.cat([weight.flatten() for weight in each.parameters()]) for each in self.sets]
        return torch.stack(rows)


class NoAdapters(nn.Module):
    """The head of a client that trains its classification layers only."""

    def forward(self) -> Tensor:
        return torch.empty(0, 0)


class Served(nn.Module):
    """The frozen transformer of the server, which runs with the adapters of each call."""

    def __init__(
        self,
        body: nn.Module,
        layout: Layout,
        scale: float,
        pooling: Pooling,
        lower: LowerLayers | None = None,
    ) -> None:
        """Add placeholders for adapters to `body`; `scale` is the factor on adapters' outputs.

        `lower` are the layers below all adapters; None: computed anew at each call, as all are.
        """
        super().__init__()
        self.lower = lower
        self.body, self.layout, self.pooling = body, dict(layout), pooling
        if layout:
            _add_placeholders(body, layout, scale)
        # A decoder would fill a cache in each call, and again in a second pass; nothing reads it.
        body.config.use_cache = False  # type: ignore[union-attr]
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, since the same call must give the same answer."""
        return super().train(False)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the transformer embeds."""
        body: Any = self.body
        return int(body.get_input_embeddings().num_embeddings)

    @property
    def numbers(self) -> int:
        """Number of values in a set of adapters."""
        return sum(math.prod(shape) for shape in self.layout.values())

    def forward(self, adapters_NP: Tensor, ids_BL: Tensor, mask_BL: Tensor | None = None) -> Tensor:
        """Return the pooled states under each set of adapters, B x n x D; without sets n is 1."""
        mask = torch.ones_like(ids_BL) if mask_BL is None else mask_BL.long()
        given = {"input_ids": ids_BL.long(), "attention_mask": mask}
        if not len(adapters_NP):
            return self._compute_pooled(given)[:, None]
        return torch.stack([self._compute_pooled(given, each_P) for each_P in adapters_NP], dim=1)

    def pool(self, states_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the states that predict the class: at the first or the last real token."""
        read_B = self._find_read_positions(mask_BL)
        return states_BLD[torch.arange(len(states_BLD), device=read_B.device), read_B]

    def _find_read_positions(self, mask_BL: Tensor) -> Tensor:
        places = torch.arange(mask_BL.shape[1], device=mask_BL.device)
        return mask_BL.argmax(1) if self.pooling == "first" else (mask_BL * places).argmax(1)

    def _compute_pooled(
        self, given: Mapping[str, Tensor], numbers_P: Tensor | None = None
    ) -> Tensor:
        """Return the states that predict the class, under the adapters of these numbers."""
        adapters: dict[str, Tensor] = {}
        if numbers_P is not None:
            shapes = self.layout.values()
            parts = numbers_P.split([math.prod(shape) for shape in shapes])
            named = zip(self.layout, parts, shapes, strict=True)
            adapters = {name: part.view(shape) for name, part, shape in named}
        known: AbstractContextManager[None] = nullcontext()
        if self.lower is not None:
            # The positions at the end at which no text of the batch has a token are left out.
            real = given["attention_mask"].any(0).nonzero()
            length = int(real.max()) + 1 if len(real) else 1
            given = {name: tensor[:, :length] for name, tensor in given.items()}
            below = self.lower.compute(self.body, given["input_ids"], given["attention_mask"])
            read_B = self._find_read_positions(given["attention_mask"])
            known = self.lower.replace_states(below, read_B)
        with known:
            out = functional_call(self.body, adapters, (), dict(given))
        states_BLD: Tensor = out.last_hidden_state.float()
        if states_BLD.shape[1] == 1:
            return states_BLD[:, 0]
        return self.pool(states_BLD, given["attention_mask"])


def _add_placeholders(body: nn.Module, layout: Layout, scale: float) -> None:
    """Add adapters of zeros to the layers, in place, which each call replaces by its own."""
    (first, *_) = layout.values()
    rank = first[0]
    ending = ".lora_A.default.weight"
    names = [name.removesuffix(ending) for name in layout if name.endswith(ending)]
    with isolate(0, "lora"):  # peft draws weights, which are set to zero below
        inject(body, names, rank, scale * rank, init_lora_weights=False)
    parameters = dict(body.named_parameters())
    for name, shape in layout.items():
        assert tuple(parameters[name].shape) == shape, f"peft made {name} another way"
        nn.init.zeros_(parameters[name])


class ServedTail(nn.Module):
    """A client's classification layers, those of the model's family, on the pooled states."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader
        for module in reader.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def forward(self, h: Tensor, *context: Tensor) -> Tensor:
        """Return logits of states, B x D, or of their mean over adapter sets, B x n x D."""
        del context  # pooled states have no padding
        if h.ndim == 3:
            h = h[:, 0] if h.shape[1] == 1 else h.mean(1)
        out: Tensor = self.reader(h[:, None])
        return out[:, 0] if out.ndim == 3 else out
