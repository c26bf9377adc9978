"""The ceiling: a decoder trained on true pairs.

The attacker has a client encode auxiliary images, as if it had the client's weights, and learns
from the pairs. No deployed server could.

A convolutional decoder alone is no ceiling: it is local, and what a dense projection has mixed it
cannot take apart. So it starts from the closed-form `ridge` map of what crossed, and learns what to
add to that map's images, from them and from SDAR's or FORA's decoder of the lifted payload. It
learns from images that the map gives of pairs left out of it, since those of its own pairs are
nearer to the truth than any target's. Pairs that it has not learned from decide in the end whether
it adds anything; otherwise the map's images stand. MSE on a narrow ResNet-20 at level 4 (6,000
pairs, 200 steps), LightSplit at ratio 8: .024, the map .025, a decoder behind a learned dense layer
.027, the decoder of the lift .038.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from simsplit.attacks.base import Attack, AttackConfig, Done, descend, payloads
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.networks import fora_decoder, glorot, sdar_decoder
from simsplit.attacks.regression import Ridge
from simsplit.attacks.ridge import fitted
from simsplit.data.batches import batch_indices
from simsplit.models.fresh import InputShape
from simsplit.models.layers import BatchNorm2d
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolated

WIDTH = 32
"""Channels of the layers that refine an image."""
ROWS = 512
"""Images that are decoded at once, outside of training."""


class WhiteboxConfig(AttackConfig):
    """A decoder trained on true pairs: an upper bound, which no server could deploy."""

    kind: Literal["whitebox"] = "whitebox"
    pairs: int = Field(default=6000, ge=2)
    """How many auxiliary images a client encodes at most."""
    iterations: int = Field(default=200, ge=1)
    """Training steps of the decoder."""
    batch_size: int = Field(default=64, ge=2)
    """Pairs per training step."""
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""
    decoder: Literal["sdar", "fora"] = "sdar"
    """Whose decoder network; with fora and start: lift this is FORA's reference, on held-out pairs
    once training is over (fora_reference learns online, as published)."""
    start: Literal["ridge", "lift"] = "ridge"
    """ridge: from the closed-form map of the payload. lift: the decoder alone, of what the trunk
    gets; no ceiling where a projection mixes an image's places."""

    @property
    def queries(self) -> int:
        """Auxiliary images that a client encodes, one for each pair."""
        return self.pairs

    def build(self, known: Knowledge) -> "Whitebox":
        return Whitebox(self, known)


class _FromMinusOne(nn.Module):
    """A decoder whose output in [-1, 1] is scaled to [0, 1]."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.layers(x) + 1) / 2
        return out


def _decoder(whose: Literal["sdar", "fora"], known: Knowledge) -> nn.Module:
    cut = known.shapes[0]
    if whose == "fora":
        return _FromMinusOne(fora_decoder(cut, known.image))
    return glorot(sdar_decoder(cut[0], cut, known.image))


class Refined(nn.Module):
    """An image, and what is added to it in view of it and of a decoder's; at first nothing."""

    def __init__(self, decoder: nn.Module, image: InputShape) -> None:
        super().__init__()
        self.decoder = decoder
        layers: list[nn.Module] = []
        for inputs in (2 * image[0], WIDTH):
            layers += [nn.Conv2d(inputs, WIDTH, 3, padding=1), BatchNorm2d(WIDTH), nn.ReLU()]
        last = nn.Conv2d(WIDTH, image[0], 3, padding=1)
        nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, smashed: Tensor, first: Tensor) -> Tensor:
        added: Tensor = self.layers(torch.cat([first, self.decoder(smashed)], 1))
        return first + added


@dataclass(frozen=True)
class Pairs:
    """What is learned from: a row for each image."""

    smashed: Tensor
    pixels: Tensor
    first: Tensor | None
    """The map's images, each of a map that has not seen its pair."""

    def __getitem__(self, rows: Tensor) -> "Pairs":
        first = None if self.first is None else self.first[rows]
        return Pairs(self.smashed[rows], self.pixels[rows], first)


class Whitebox(Attack):
    """Trains a decoder on pairs of images and smashed data."""

    def __init__(self, config: WhiteboxConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        with isolated(known.seed, "whitebox"):
            decoder = _decoder(config.decoder, known)
            whole = Refined(decoder, known.image) if config.start == "ridge" else decoder
        self.decoder = whole.to(known.device)
        self.learners["decoder"] = Learner({"decoder": self.decoder}, AdamConfig(lr=config.lr))
        self._map: Ridge | None = None
        self._pairs: Pairs | None = None
        self._recovered = torch.empty(0)

    def study(self, queries: Sequence[tuple[Packet, Tensor]]) -> None:
        """Keep what the client sent beside the images, as pairs to train on."""
        most = self.config.pairs
        pixels = torch.cat([pixels for _, pixels in queries])[:most]
        smashed = torch.cat([self.known.smashed(packet) for packet, _ in queries])[:most]
        first = None
        if self.config.start == "ridge":
            self._map = fitted(self.known, queries, most)
            sent = torch.cat([self.known.crossed(packet) for packet, _ in queries])[:most]
            parts = zip(sent.split(ROWS), pixels.flatten(1).split(ROWS), strict=True)
            first = torch.cat([self._map.left_out(*part) for part in parts]).view_as(pixels)
        self._pairs = Pairs(smashed, pixels, first)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Train the decoder, then decode the targets."""
        assert self._pairs is not None, "queries come first"
        learned, unseen = self._split(self._pairs)
        self.decoder.train()
        total = self.config.iterations
        while self.iteration < total:
            batch = learned[self._rows(len(learned.pixels))]
            descend(self.learners["decoder"], mse_loss(self._decoded(batch), batch.pixels))
            self.iteration += 1
            yield self.iteration, total
        self.decoder.eval()
        with torch.no_grad():
            self._recovered = self._read(payloads(targets), adds=self._adds(unseen))

    def _split(self, pairs: Pairs) -> tuple[Pairs, Pairs]:
        """The pairs to learn from; and every tenth, to judge by, where there is a map to prefer."""
        number = torch.arange(len(pairs.pixels), device=pairs.pixels.device)
        judged = number % 10 == 9 if pairs.first is not None else number < 0
        return pairs[~judged], pairs[judged]

    def _decoded(self, pairs: Pairs) -> Tensor:
        given = () if pairs.first is None else (pairs.first,)
        out: Tensor = self.decoder(pairs.smashed, *given)
        return out

    def _adds(self, unseen: Pairs) -> bool:
        """Whether the decoder is nearer to pairs that it has not learned from than the map is."""
        if unseen.first is None or not len(unseen.pixels):
            return True
        whole = torch.arange(len(unseen.pixels), device=unseen.pixels.device).split(ROWS)
        made = torch.cat([self._decoded(unseen[rows]) for rows in whole])
        return bool(mse_loss(made, unseen.pixels) < mse_loss(unseen.first, unseen.pixels))

    def _read(self, packets: Sequence[Packet], *, adds: bool) -> Tensor:
        parts = []
        for packet in packets:
            smashed = self.known.smashed(packet)
            if self._map is None:
                parts.append(self.decoder(smashed))
                continue
            first = self._map.predict(self.known.crossed(packet)).view(-1, *self.known.image)
            parts.append(self.decoder(smashed, first) if adds else first)
        return torch.cat(parts)

    def _rows(self, count: int) -> Tensor:
        """This iteration's batch of pairs; passes are reshuffled."""
        size = min(self.config.batch_size, count)
        epoch, place = divmod(self.iteration, count // size)
        cut = batch_indices(torch.arange(count), size, self.known.seed, 0, epoch, drop_last=True)
        return cut[place].to(self.known.device)

    @property
    def recovered(self) -> Tensor:
        return self._recovered
