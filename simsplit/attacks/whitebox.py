"""The ceiling: a decoder trained on true pairs.

The attacker has a client encode auxiliary images, as if it had the client's weights, and fits
SDAR's or FORA's decoder to the pairs. No deployed server could; what this cannot recover, no honest
attack will.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from simsplit.attacks.base import Attack, AttackConfig, Done, Knowledge, descend, payloads
from simsplit.attacks.networks import fora_decoder, glorot, sdar_decoder
from simsplit.data.batches import batch_indices
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolated


class WhiteboxConfig(AttackConfig):
    """A decoder trained on true pairs: an upper bound, which no server could deploy."""

    kind: Literal["whitebox"] = "whitebox"
    pairs: int = Field(default=6000, ge=1)
    """How many auxiliary images a client encodes at most."""
    iterations: int = Field(default=200, ge=1)
    """Training steps of the decoder."""
    batch_size: int = Field(default=64, ge=2)
    """Pairs per training step."""
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""
    decoder: Literal["sdar", "fora"] = "sdar"
    """Whose decoder network; with fora this is FORA's reference."""

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


class Whitebox(Attack):
    """Trains a decoder on pairs of images and smashed data."""

    def __init__(self, config: WhiteboxConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        with isolated(known.seed, "whitebox"):
            self.decoder = _decoder(config.decoder, known).to(known.device)
        self.learners["decoder"] = Learner({"decoder": self.decoder}, AdamConfig(lr=config.lr))
        self._pairs: tuple[Tensor, Tensor] | None = None
        self._recovered = torch.empty(0)

    def study(self, queries: Sequence[tuple[Packet, Tensor]]) -> None:
        """Keep what the client sent beside the images, as pairs to train on."""
        smashed = torch.cat([self.known.smashed(packet) for packet, _ in queries])
        pixels = torch.cat([pixels for _, pixels in queries])
        self._pairs = smashed[: self.config.pairs], pixels[: self.config.pairs]

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Train the decoder, then decode the targets."""
        assert self._pairs is not None, "queries come first"
        smashed, pixels = self._pairs
        self.decoder.train()
        total = self.config.iterations
        while self.iteration < total:
            rows = self._rows(len(pixels))
            loss = mse_loss(self.decoder(smashed[rows]), pixels[rows])
            descend(self.learners["decoder"], loss)
            self.iteration += 1
            yield self.iteration, total
        self.decoder.eval()
        with torch.no_grad():
            parts = [self.decoder(self.known.smashed(packet)) for packet in payloads(targets)]
        self._recovered = torch.cat(parts)

    def _rows(self, count: int) -> Tensor:
        """This iteration's batch of pairs; passes are reshuffled."""
        size = min(self.config.batch_size, count)
        epoch, place = divmod(self.iteration, count // size)
        cut = batch_indices(torch.arange(count), size, self.known.seed, 0, epoch, drop_last=True)
        return cut[place].to(self.known.device)

    @property
    def recovered(self) -> Tensor:
        return self._recovered
