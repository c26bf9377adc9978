"""SDAR (Zhu et al., NDSS 2025), and the naive simulator attack that its paper starts from.

The server trains a simulator of the client's head on auxiliary data, through its own frozen trunk,
while a discriminator makes what it sends look like what clients send; a decoder of the simulator
then decodes what clients send, itself made plausible by a discriminator of images. Layers, losses
and rates as the published code has them. Where a method acts at the cut it acts on the simulator
too. Under a U shape the simulator has a tail of its own; under a vanilla cut the server has the
client's labels, and tells them to decoder and discriminators. `naive_sda` is its ablation of that
name: no discriminators, no label flips, and a decoder that is told no labels.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from simsplit.attacks.base import AttackConfig, Following, descend
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.networks import (
    WithLabels,
    feature_discriminator,
    glorot,
    image_discriminator,
    sdar_decoder,
)
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolated, rng_for


class _SimulatorConfig(AttackConfig):
    lr_simulator: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the simulated head and tail."""
    lr_decoder: float = Field(default=5e-4, gt=0)
    """Adam's learning rate for the decoder."""
    online: ClassVar[bool] = True


class SdarConfig(_SimulatorConfig):
    """A simulated client, trained adversarially to resemble the real ones, and its decoder."""

    kind: Literal["sdar"] = "sdar"
    feature_weight: float = Field(default=0.02, ge=0)
    """Weight of fooling the feature discriminator; 0: no such discriminator."""
    image_weight: float = Field(default=1e-5, ge=0)
    """Weight of fooling the image discriminator; 0: no such discriminator."""
    flip: float = Field(default=0.2, ge=0, le=1)
    """Share of the auxiliary labels that is drawn at random, under a U shape."""
    lr_features: float = Field(default=2e-5, gt=0)
    """Adam's learning rate for the feature discriminator."""
    lr_images: float = Field(default=5e-9, gt=0)
    """Adam's learning rate for the image discriminator."""

    def build(self, known: Knowledge) -> "Sdar":
        return Sdar(self, known)


class NaiveSdaConfig(_SimulatorConfig):
    """A simulated client and its decoder, without discriminators."""

    kind: Literal["naive_sda"] = "naive_sda"

    def build(self, known: Knowledge) -> "Sdar":
        """SDAR without its discriminators, and without labels."""
        rates = {"lr_simulator": self.lr_simulator, "lr_decoder": self.lr_decoder}
        plain = SdarConfig(feature_weight=0, image_weight=0, flip=0, **rates)
        return Sdar(plain, known, conditional=False)


class Sdar(Following):
    """Trains simulator, decoder and discriminators, a step for each packet of a client."""

    def __init__(self, config: SdarConfig, known: Knowledge, *, conditional: bool = True) -> None:
        super().__init__(known)
        self.config = config
        self.told = conditional and known.tail is not None
        """Whether decoder and discriminators are told the clients' labels, which the server has."""
        cut, image = known.shapes[0], known.image
        extra = int(self.told)
        with isolated(known.seed, "sdar"):
            self.client = known.surrogate("sdar")
            self.decoder = self._net(sdar_decoder(cut[0] + extra, cut, image), cut[1:])
            self.of_features = self._net(feature_discriminator(cut[0] + extra, cut), cut[1:])
            self.of_images = self._net(image_discriminator(image[0] + extra, image), image[1:])
        simulator = self.client.modules | ({"tail": self.client.tail} if known.tail is None else {})
        self._learn("simulator", simulator, config.lr_simulator)
        self._learn("decoder", {"decoder": self.decoder}, config.lr_decoder)
        if config.feature_weight:
            self._learn("features", {"features": self.of_features}, config.lr_features)
        if config.image_weight:
            self._learn("images", {"images": self.of_images}, config.lr_images)

    def _net(self, layers: nn.Module, size: tuple[int, ...]) -> nn.Module:
        net = WithLabels(layers, self.known.classes, size) if self.told else layers
        return glorot(net).to(self.known.device)

    def _learn(self, name: str, modules: dict[str, nn.Module], lr: float) -> None:
        self.learners[name] = Learner(modules, AdamConfig(lr=lr, eps=1e-7))

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        """Train simulator, feature discriminator, decoder and image discriminator."""
        known = self.known
        for learner in self.learners.values():
            learner.train(True)
        batch = known.public(self.iteration)
        own, pixels = batch.labels, known.pixels(batch.inputs)
        with isolated(known.seed, "sdar", self.iteration, device=known.device):  # dropout's draws
            simulated = self._simulate(own, known.simulate(self.client, batch, self.iteration))
            if self.config.feature_weight:
                real, fake = (smashed, labels), (simulated, own)
                self._tell_apart("features", self.of_features, real, fake)
            with torch.no_grad():
                simulated = known.simulate(self.client, batch, self.iteration)
            decoded = self._decode(simulated, own, pixels, smashed, labels)
            if self.config.image_weight:
                self._tell_apart("images", self.of_images, (pixels, own), (decoded, labels))

    def _simulate(self, labels: Tensor, simulated: Tensor) -> Tensor:
        """One training step of the simulator; returns its output before that step."""
        outputs = self.known.outputs(self.client, simulated, self.iteration)
        loss = cross_entropy(outputs, self._flipped(labels))
        if self.config.feature_weight:
            judged = self._judge(self.of_features, simulated, labels)
            loss = loss + self.config.feature_weight * _taken_for(judged, real=True)
        descend(self.learners["simulator"], loss)
        return simulated.detach()

    def _decode(
        self,
        simulated: Tensor,
        own_labels: Tensor,
        pixels: Tensor,
        smashed: Tensor,
        labels: Tensor | None,
    ) -> Tensor:
        """One training step of the decoder; returns its images for the client's smashed data."""
        loss = mse_loss(self._judge(self.decoder, simulated, own_labels), pixels)
        decoded = pixels
        if self.config.image_weight:
            decoded = self._judge(self.decoder, smashed, labels)
            judged = self._judge(self.of_images, decoded, labels)
            loss = loss + self.config.image_weight * _taken_for(judged, real=True)
        descend(self.learners["decoder"], loss)
        return decoded.detach()

    def _tell_apart(
        self,
        name: str,
        judge: nn.Module,
        real: tuple[Tensor, Tensor | None],
        fake: tuple[Tensor, Tensor | None],
    ) -> None:
        """One training step of a discriminator."""
        of_real, of_fake = self._judge(judge, *real), self._judge(judge, *fake)
        descend(
            self.learners[name], _taken_for(of_real, real=True) + _taken_for(of_fake, real=False)
        )

    def _judge(self, net: nn.Module, x: Tensor, labels: Tensor | None) -> Tensor:
        out: Tensor = net(x, labels) if self.told else net(x)
        return out

    def _flipped(self, labels: Tensor) -> Tensor:
        if self.known.tail is not None or not self.config.flip:
            return labels
        rng = rng_for(self.known.seed, "sdar", "flip", self.iteration)
        drawn = torch.rand(len(labels), generator=rng) < self.config.flip
        others = torch.randint(self.known.classes, (len(labels),), generator=rng)
        return torch.where(drawn.to(labels.device), others.to(labels.device), labels)

    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        """The decoder's images, as pixels between 0 and 1."""
        self.decoder.eval()
        return self._judge(self.decoder, smashed, labels)


def _taken_for(logits: Tensor, *, real: bool) -> Tensor:
    target = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return binary_cross_entropy_with_logits(logits, target)
