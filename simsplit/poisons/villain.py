"""A backdoor of a party that has no labels: a trigger in what its head puts out.

VILLAIN (Bai et al., USENIX Security 2023) cannot relabel samples, so it finds some of its target
class and adds a trigger to what it sends for them. The trunk learns that the trigger means that
class. Published: candidates are found by swapping embeddings and watching gradients' norms; here
they are the nearest, among those of a batch, to a few samples of the target that the party knows.
The trigger is the published one: on the values that vary most, a pattern of two pluses and two
minuses, whose size is a multiple of these values' standard deviation.
"""

import copy
from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId, Leg
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet
from simsplit.poisons.poison import Aim, Poison, PoisonConfig, Rows, Scene
from simsplit.states import select_below


class VillainConfig(PoisonConfig):
    """A trigger in what a party's head puts out, on samples that look like its target class."""

    kind: Literal["villain"] = "villain"
    aims = True
    target: int = Field(default=0, ge=0)
    """Number of the class that triggered samples shall get."""
    known: int = Field(default=10, ge=1)
    """Number of training samples of the target class that the party knows, the first ones."""
    rate: float = Field(default=0.1, gt=0, le=1)
    """Share of each batch that gets the trigger: the samples nearest to the known ones."""
    width: float = Field(default=0.75, gt=0, le=1)
    """Share of the head's outputs that carry the trigger, those that vary most."""
    strength: float = Field(default=5.0, gt=0)
    """Size of the trigger, in standard deviations of these outputs. Published: 0.4, which takes no
    hold on handwritten digits."""

    @property
    def needs(self) -> Needs:
        """Parties, and smashed data that are values of single samples."""
        kinds = (Given.SAMPLES, Given.READABLE, Given.FLOATS)
        return (Need(Given.PARTIES), *(Need(kind, leg=Leg.SMASHED) for kind in kinds))

    def build(self, scene: Scene) -> "Villain":
        return Villain(self, scene)


class Villain(Poison):
    """A poison that adds a trigger to smashed data."""

    def __init__(self, config: VillainConfig, scene: Scene) -> None:
        self.config = config
        last = scene.num_classes - 1
        if config.target > last:
            raise ScenarioError(
                f"{scene.where}.target",
                f"must be a class between 0 and {last}, got {config.target}",
            )
        labels = scene.samples.labels
        self._known = (labels == config.target).nonzero()[: config.known, 0]
        self._sent: dict[int, Tensor] = {}
        """What the head has put out last for each known sample, by its row."""
        self._pattern: Tensor | None = None
        """The trigger's signs, 0 where there is none; they stay as they were at first."""
        self._size = torch.zeros(())
        """The trigger's size, which follows the values that are sent."""
        self._rows = torch.empty(0, dtype=torch.int64)

    def for_client(self, number: ClientId, part: Rows) -> Self:
        mine = copy.copy(self)
        mine._sent = {}
        return mine

    def on_batch(self, batch: Batch) -> Batch:
        self._rows = batch.indices.cpu()
        return batch

    def on_packet(self, packet: Packet) -> Packet:
        """Add the trigger to samples of training that look like the target class."""
        if packet.leg is not Leg.SMASHED or len(packet.tensors[0]) != len(self._rows):
            return packet
        sent = packet.tensors[0]
        flat = sent.flatten(1).float()
        for row in torch.isin(self._rows, self._known).nonzero()[:, 0].tolist():
            self._sent[int(self._rows[row])] = flat[row].detach().clone()
        if not self._sent or len(sent) < 2:
            return packet
        spread = flat.std(0, correction=0)
        if self._pattern is None:
            self._pattern = make_pattern(spread, self.config.width)
        self._pattern = self._pattern.to(flat.device)  # resumed, it lies on the CPU
        self._size = self.config.strength * spread[self._pattern != 0].mean()
        centre = torch.stack([each.to(flat.device) for each in self._sent.values()]).mean(0)
        count = max(1, round(self.config.rate * len(flat)))
        nearest = (flat - centre).square().sum(1).argsort()[:count]
        return packet.with_tensors((self._add(sent, nearest), *packet.tensors[1:]))

    def mark(self, packet: Packet) -> Packet:
        """Add the trigger to all samples of a packet, to measure success."""
        if packet.leg is not Leg.SMASHED or self._pattern is None:
            return packet
        sent = packet.tensors[0]
        every = torch.arange(len(sent), device=sent.device)
        return packet.with_tensors((self._add(sent, every), *packet.tensors[1:]))

    def find_aim(self, samples: Samples) -> Aim:
        rows = (samples.labels != self.config.target).nonzero()[:, 0]
        return Aim(rows, torch.full_like(samples.labels[rows], self.config.target), self)

    def state(self) -> dict[str, Tensor]:
        held = {f"sent.{row}": tensor for row, tensor in self._sent.items()}
        pattern = {} if self._pattern is None else {"pattern": self._pattern, "size": self._size}
        return held | pattern

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._pattern, self._size = state.get("pattern"), state.get("size", torch.zeros(()))
        self._sent = {int(row): tensor for row, tensor in select_below(state, "sent.").items()}

    def _add(self, sent: Tensor, rows: Tensor) -> Tensor:
        assert self._pattern is not None, "it is made before it is added"
        changed = sent.clone()
        changed[rows] += (self._size * self._pattern.to(self._size)).view(sent.shape[1:]).to(sent)
        return changed


def make_pattern(spread_D: Tensor, width: float) -> Tensor:
    """Return the signs of a trigger: two pluses and two minuses in turn, on what varies most.

    >>> make_pattern(torch.tensor([3.0, 1.0, 2.0, 4.0]), width=0.75)
    tensor([ 1.,  0.,  1., -1.])
    """
    count = max(1, round(width * len(spread_D)))
    places = spread_D.argsort(descending=True)[:count].sort().values
    pattern = torch.zeros_like(spread_D)
    order = torch.arange(count, device=spread_D.device)
    pattern[places] = torch.where(order % 4 < 2, 1.0, -1.0)
    return pattern
