"""What layers below the lowest adapters compute of a text is kept, since it never changes.

Fine-tuning repeats its texts: in each epoch, each evaluation and each judgement. Where only upper
layers have adapters, the layers below give the same states each time. Each text is computed by
itself, without the padding at its end. So its states do not depend on the texts that come with it,
and a resumed run, which has kept nothing, computes the same to the bit. States of one transformer
serve all runs of a process, such as the cells of a sweep.

Layers whose output is more than one tensor (DeBERTa, T5) are not kept: later layers share the rest.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from simsplit.errors import ProtocolError

MOST_BYTES = 1 << 30
"""Size of the states that are kept; texts that come later are computed each time."""
_SEVERAL_OUTPUTS = ("deberta-v2", "t5")
"""Families whose layers return more than the states."""


Key = tuple[str, int, bool, int, bytes]


@dataclass
class KeptStates:
    """States of texts after lower layers of one transformer."""

    states: dict[Key, Tensor] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, key: Key, states: Tensor) -> None:
        """Keep a text's states if there is room for them."""
        if self.nbytes + states.nbytes <= MOST_BYTES:
            self.states[key] = states.cpu()
            self.nbytes += states.nbytes

    def __deepcopy__(self, memo: object) -> "KeptStates":
        """Return the same states, which copies of a transformer share."""
        return self


class LowerLayers:
    """The layers of a transformer below its lowest adapters, and their states of texts."""

    def __init__(self, layers: nn.ModuleList, count: int, kept: "KeptStates") -> None:
        """Take the list of all layers, the first `count` of which never change."""
        self.layers, self.count, self.kept = layers, count, kept

    def compute(self, body: nn.Module, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the states of texts after these layers, B x L x D; padding at the end is zero."""
        lengths = [max(1, int(row.nonzero().max()) + 1) for row in mask_BL]
        each = [
            self._find_states(body, ids_BL[row, :length], mask_BL[row, :length])
            for row, length in enumerate(lengths)
        ]
        states = each[0].new_zeros(len(each), ids_BL.shape[1], each[0].shape[-1])
        for row, own in enumerate(each):
            states[row, : len(own)] = own.to(states)
        return states

    @contextmanager
    def replace_states(self, states_BLD: Tensor, read_B: Tensor) -> Iterator[None]:
        """Open a context in which these layers return the given states, whatever they get.

        Only the states at the positions `read_B` are asked for, so BERT's last layer leaves out the
        others once it has attended to them: its output is B x 1 x D.
        """
        output = getattr(getattr(self.layers[-1], "attention", None), "output", None)
        rows = torch.arange(len(read_B), device=read_B.device)

        def choose(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(each_BLD[rows, read_B][:, None] for each_BLD in given)

        with ExitStack() as stack:
            stack.enter_context(self._stand_in(range(self.count), _StandIn(states_BLD)))
            if isinstance(output, nn.Module):
                stack.callback(output.register_forward_pre_hook(choose).remove)
            yield

    def _find_states(self, body: nn.Module, ids_L: Tensor, mask_L: Tensor) -> Tensor:
        device, text = ids_L.device, torch.stack([ids_L, mask_L]).cpu().numpy().tobytes()
        # All these round differently: mixed precision, without which attacks compute, too.
        mixed = torch.is_autocast_enabled(device.type)
        key = (device.type, torch.get_num_threads(), mixed, self.count, text)
        if (kept := self.kept.states.get(key)) is not None:
            return kept.to(device)
        noting, upper = _StandIn(), range(self.count, len(self.layers))
        with torch.no_grad(), self._stand_in(upper, noting):
            body(input_ids=ids_L[None], attention_mask=mask_L[None])
        if noting.states is None:
            raise ProtocolError("the transformer did not run its layers in order")
        made = noting.states[0]
        self.kept.add(key, made)
        return made

    @contextmanager
    def _stand_in(self, places: range, module: nn.Module) -> Iterator[None]:
        """Put a module in the place of layers, whose names stay the same."""
        # Of the list itself: an entry of a ModuleList is set by name, without a new list.
        own = {place: self.layers[place] for place in places}
        try:
            for place in places:
                self.layers[place] = module
            yield
        finally:
            for place, layer in own.items():
                self.layers[place] = layer


def find_lower_layers(body: nn.Module, family: str, adapted: Iterable[str]) -> LowerLayers | None:
    """Return the layers below the lowest one that has adapters; None if there are none to keep.

    `adapted` are the names of the parts of the body that have adapters.
    """
    places = [_find_layer(body, name) for name in adapted]
    known = [place for place in places if place is not None]
    if family in _SEVERAL_OUTPUTS or not known or len(known) < len(places):
        return None
    layers, lowest = min(known, key=lambda place: place[1])
    return LowerLayers(layers, lowest, _open_states(_digest(body))) if lowest else None


@lru_cache(maxsize=1)
def _open_states(digest: str) -> KeptStates:
    """Return what is kept of the transformer with these weights; only the last one is kept."""
    return KeptStates()


def _digest(body: nn.Module) -> str:
    hashed = hashlib.blake2b(repr(getattr(body, "config", None)).encode())
    for name, tensor in sorted(body.state_dict().items()):
        hashed.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _find_layer(body: nn.Module, name: str) -> tuple[nn.ModuleList, int] | None:
    """Return the list of layers that a part is in, and the number of its layer."""
    module = body
    for part in name.split("."):
        if isinstance(module, nn.ModuleList):
            return module, int(part)
        module = module.get_submodule(part)
    return None


class _StandIn(nn.Module):
    """A stand-in for layers that gives known states, or notes those that reach it first."""

    def __init__(self, states_BLD: Tensor | None = None) -> None:
        super().__init__()
        self.states = states_BLD

    def forward(self, hidden: Tensor, *others: object, **options: object) -> Tensor:
        """Return the known states, or those that are passed on."""
        if self.states is None:
            self.states = hidden
        return self.states
