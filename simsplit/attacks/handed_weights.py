"""A curious client reads others' inputs in the change of the shared head since it last had it.

A sample x moves row k of a linear first layer by a multiple of x, and the bias k by the same
multiple. So a row's change divided by its bias's change is x itself where one sample alone
activated the neuron, and a weighted mean of samples elsewhere (Phong et al. 2018, section 3). Here
a client does it: the head that is handed to it, less the head that it handed on, or a broadcast
average less the one before.

It cannot know which sample a row is, so it has candidates: the judge gives each target the nearest,
beside a floor of as many samples of others. Momentum and several steps blend samples; Adam's steps
are no multiples of gradients, and nothing is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import AttackConfig, Done, Guesses, KeepingAttack
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.threat import Sees, Threat, When
from simsplit.legs import Leg
from simsplit.methods.method import NUMBERS, Modality
from simsplit.packets import Packet
from simsplit.states import select_below

LEAST = 1e-3
"""A bias that moves less than this part of the most moved one is left out: its ratio is rounding.
"""


class HandedWeightsConfig(AttackConfig):
    """The inputs of other clients, from the change of the head that they hand on."""

    kind: Literal["handed_weights"] = "handed_weights"
    by: str = Field(default="client 1", pattern=r"^client \S.*$")
    """The client that is curious: its number, or its name of `clients.names`."""
    threat: ClassVar[Threat] = Threat(
        (Sees.HANDED,),
        (),
        when=When.TRAINING,
        limits="plain SGD; a step or two of a few samples between two hand-overs",
    )
    modalities: ClassVar[frozenset[Modality]] = NUMBERS
    effort: ClassVar[tuple[str, ...]] = ()
    most: int = Field(default=2000, ge=1)
    """The largest number of candidates that it keeps, the first ones."""

    def build(self, known: Knowledge) -> "HandedWeights":
        return HandedWeights(self, known)


class HandedWeights(KeepingAttack):
    """An attack that divides changes of weights by changes of biases."""

    config: HandedWeightsConfig

    def __init__(self, config: HandedWeightsConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self._before: dict[str, Tensor] = {}
        self._recovered = torch.empty(0, *known.image)

    def observe(self, packet: Packet) -> None:
        """Compare weights that arrive with those that left, or with those that arrived before."""
        if packet.leg not in (Leg.HANDOVER, Leg.BROADCAST):
            return
        layer = find_first_layer(packet, self.known.image)
        leaves = packet.leg is Leg.HANDOVER and packet.client == self.known.seat
        if layer and self._before and not leaves:
            moved = (layer[name] - self._before[name] for name in ("weight", "bias"))
            read = divide_changes(*moved).view(-1, *self.known.image)
            left = self.config.most - len(self._recovered)
            pixels = self.known.pixels(read)[:left].cpu()
            self._recovered = torch.cat([self._recovered, pixels])
            self.iteration += 1
        # An average goes on from the average before it, not from what this client sent of it.
        if layer and not (leaves and "averaged" in self._before):
            averaged = {"averaged": torch.ones(1)} if packet.leg is Leg.BROADCAST else {}
            self._before = {**layer, **averaged}

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Do nothing more: all was read as the weights arrived."""
        del targets
        yield 1, 1

    def guesses(self) -> Guesses:
        return Guesses(rows=self.recovered, unordered=True)

    def state(self) -> dict[str, Tensor]:
        before = {f"before/{name}": tensor for name, tensor in self._before.items()}
        return {**super().state(), **before, "candidates": self._recovered}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._before = dict(select_below(state, "before/"))
        self._recovered = state["candidates"]


def divide_changes(moved_KD: Tensor, moved_K: Tensor) -> Tensor:
    """Return the samples, or blends of samples, that moved a linear layer's rows.

    >>> divide_changes(torch.tensor([[2.0, 4.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0]))
    tensor([[1., 2.]])
    """
    size = moved_K.abs()
    used = size > LEAST * size.max()
    return moved_KD[used] / moved_K[used, None]


def find_first_layer(packet: Packet, image: Sequence[int]) -> dict[str, Tensor]:
    """Return copies of the weights and biases of a head's linear first layer; {}: not handed."""
    tensors = dict(zip(packet.names, packet.tensors, strict=False))
    first = next((name for name in tensors if name.startswith("head.")), "")
    weight, bias = (tensors.get(f"{first.rpartition('.')[0]}.{end}") for end in ("weight", "bias"))
    if weight is None or bias is None or weight.shape[1:] != (torch.Size(image).numel(),):
        return {}
    # What is handed over are the live weights.
    return {"weight": weight.detach().clone(), "bias": bias.detach().clone()}
