"""The ceiling of image attacks: a decoder trained on true pairs.

A client encodes auxiliary images for the attacker, as if the attacker had the client's weights, and
the decoder learns from the pairs. No deployed server could do this.

A convolutional decoder alone is no ceiling: it is local, so it cannot undo the mixing of a dense
projection. The decoder therefore starts from the closed-form `ridge` map of the payload. It learns
an addition to the map's images, from these and from SDAR's or FORA's decoder of the lifted payload.
For training, each image of the map is predicted as if its pair had been left out of the fit, since
the map's images of its own pairs are nearer to the truth than those of any target. In the end,
pairs that the decoder has not learned from decide whether the addition is used at all. MSE on a
narrow ResNet-20 at level 4 (6,000 pairs, 200 steps), LightSplit at ratio 8: .024; the map alone
.025, a decoder behind a learned dense layer .027, the decoder of the lift .038.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from simsplit.attacks.attack import Done, ImageAttackConfig, KeepingAttack, descend, payloads
from simsplit.attacks.epoch_averages import Queries, average_epochs
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.networks import fora_decoder, glorot, sdar_decoder
from simsplit.attacks.regression import Ridge
from simsplit.attacks.ridge import fit_map
from simsplit.attacks.threat import Knows, Threat
from simsplit.data.batches import draw_batches
from simsplit.models.fresh import InputShape
from simsplit.models.layers import BatchNorm2d
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate

WIDTH = 32
"""Number of channels of the layers that refine an image."""
ROWS = 512
"""Number of images that are decoded at once outside of training."""


class WhiteboxConfig(ImageAttackConfig):
    """A decoder trained on true pairs: an upper bound, which no server could deploy."""

    kind: Literal["whitebox"] = "whitebox"
    threat: ClassVar[Threat] = Threat(knows=(Knows.PUBLIC, Knows.QUERIES))
    pairs: int = Field(default=6000, ge=2)
    """Maximum number of auxiliary images that a client encodes."""
    iterations: int = Field(default=200, ge=1)
    """Training steps of the decoder."""
    batch_size: int = Field(default=64, ge=2)
    """Number of pairs per training step."""
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""
    decoder: Literal["sdar", "fora"] = "sdar"
    """The attack whose decoder network is used. `decoder: fora` with `start: lift` is FORA's
    reference decoder, trained on public pairs after training (`fora_reference` learns online, as
    published)."""
    start: Literal["ridge", "lift"] = "ridge"
    """ridge: the decoder adds to the images of the closed-form map of the payload. lift: the
    decoder reads only the trunk's input, which is no ceiling where a projection mixes an image's
    positions."""

    @property
    def queries(self) -> int:
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


class Refined(nn.Module):
    """A network that adds a correction to the map's image, from that image and a decoder's.

    The correction is zero at first, so training starts from the map.
    """

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
    """Training pairs, one row per image."""

    smashed: Tensor
    pixels: Tensor
    first: Tensor | None
    """The map's images, each predicted as if its pair had been left out; None: there is no map."""

    def __getitem__(self, rows: Tensor) -> "Pairs":
        first = None if self.first is None else self.first[rows]
        return Pairs(self.smashed[rows], self.pixels[rows], first)


class Whitebox(KeepingAttack):
    """An attack that trains a decoder on pairs of images and smashed data."""

    config: WhiteboxConfig

    def __init__(self, config: WhiteboxConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        cut = known.shapes[0]
        with isolate(known.seed, "whitebox"):
            decoder: nn.Module
            if config.decoder == "fora":
                decoder = _FromMinusOne(fora_decoder(cut, known.image))
            else:
                decoder = glorot(sdar_decoder(cut[0], cut, known.image))
            whole = Refined(decoder, known.image) if config.start == "ridge" else decoder
        self.decoder = whole.to(known.device)
        self.learners["decoder"] = Learner({"decoder": self.decoder}, AdamConfig(lr=config.lr))
        self._map: Ridge | None = None
        self._pairs: Pairs | None = None
        self._note = ""

    def study(self, queries: Queries) -> None:
        """Keep the images and their smashed data as training pairs, and fit the map."""
        most = self.config.pairs
        known, packets = self.known, [packet for packet, _ in queries]
        smashed = torch.cat([*average_epochs(packets, known.lift_smashed)])[:most]
        # all epochs have the same images
        pixels = torch.cat([pixels for _, pixels in queries])[: len(smashed)]
        first = None
        if self.config.start == "ridge":
            self._map = fit_map(known, queries, most)
            sent = torch.cat([*average_epochs(packets, known.flatten_payload)])[:most]
            parts = zip(sent.split(ROWS), pixels.flatten(1).split(ROWS), strict=True)
            first = torch.cat([self._map.predict_left_out(*part) for part in parts])
            first = first.view_as(pixels)
        self._pairs = Pairs(smashed, pixels, first)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        assert self._pairs is not None, "queries come first"
        learned, unseen = self._split(self._pairs)
        self.decoder.train()
        total = self.config.iterations
        while self.iteration < total:
            batch = learned[self._draw_rows(len(learned.pixels))]
            descend(self.learners["decoder"], mse_loss(self._decode(batch), batch.pixels))
            self.iteration += 1
            yield self.iteration, total
        self.decoder.eval()
        with torch.no_grad():
            improves = self._improves_map(unseen)
            if not improves:
                self._note = (
                    f"its decoder was no better than the linear map on unseen pairs after {total} "
                    "iterations, so its figures are those of ridge; more iterations may help"
                )
            self._recovered = self._reconstruct(payloads(targets), refine=improves)

    def _split(self, pairs: Pairs) -> tuple[Pairs, Pairs]:
        """Split off every tenth pair to compare decoder and map by; without a map, none."""
        number = torch.arange(len(pairs.pixels), device=pairs.pixels.device)
        held = number % 10 == 9 if pairs.first is not None else number < 0
        return pairs[~held], pairs[held]

    def _decode(self, pairs: Pairs) -> Tensor:
        """Reconstruct the images of pairs with the decoder."""
        given = () if pairs.first is None else (pairs.first,)
        out: Tensor = self.decoder(pairs.smashed, *given)
        return out

    def _improves_map(self, unseen: Pairs) -> bool:
        """Return whether the decoder has a lower error on unseen pairs than the map alone."""
        if unseen.first is None or not len(unseen.pixels):
            return True
        whole = torch.arange(len(unseen.pixels), device=unseen.pixels.device).split(ROWS)
        decoded = torch.cat([self._decode(unseen[rows]) for rows in whole])
        return bool(mse_loss(decoded, unseen.pixels) < mse_loss(unseen.first, unseen.pixels))

    def _reconstruct(self, packets: Sequence[Packet], *, refine: bool) -> Tensor:
        """Reconstruct the targets' images; without `refine`, by the map alone if there is one."""
        known, lifted = self.known, average_epochs(packets, self.known.lift_smashed)
        if self._map is None:
            return torch.cat([self.decoder(smashed) for smashed in lifted])
        sent = average_epochs(packets, known.flatten_payload)
        first = [self._map.predict(rows).view(-1, *known.image) for rows in sent]
        if not refine:
            return torch.cat(first)
        return torch.cat([self.decoder(*each) for each in zip(lifted, first, strict=True)])

    def _draw_rows(self, count: int) -> Tensor:
        """Draw the row numbers of this iteration's batch; each pass has a new order."""
        size = min(self.config.batch_size, count)
        epoch, place = divmod(self.iteration, count // size)
        cut = draw_batches(torch.arange(count), size, self.known.seed, 0, epoch, drop_last=True)
        return cut[place].to(self.known.device)

    @property
    def note(self) -> str:
        return self._note
