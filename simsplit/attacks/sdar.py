"""SDAR (Zhu et al., NDSS 2025), and the naive simulator attack from which its paper starts.

The server trains a simulator of the client's head on auxiliary data, through its own frozen trunk.
A discriminator of features makes the simulator's outputs resemble the clients' smashed data. A
decoder learns to invert the simulator, and a discriminator of images makes its images of clients'
data plausible. Layers, initial weights, losses, rates and modes of batch normalisation are those of
the published code (the authors', in Keras). Its losses have a value for each sample, whose
gradients Keras adds up, so losses are sums here too: Adam's eps is 1e-7 beside gradients of a sum.
The victim there learns from sums as well, to which `eps: 7.8e-10` (1e-7 / 128) of `train.client`
and `train.server` corresponds at a batch of 128. If a method acts at the cut, it acts on the
simulator too, and with `method_losses` so do the loss terms that clients learn with. Under a U
shape the simulator has its own tail, which names the classes of clients' samples: if few are right,
the simulator's features are not the clients', however well its own images are decoded. Under a
vanilla cut the server has the client's labels, so decoder and discriminators get them as inputs.

`naive_sda` is the paper's ablation of that name: no discriminators, no label flips, and a decoder
without labels.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from simsplit.attacks.attack import Following, SimulatingConfig, descend, descend_both
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.networks import (
    WithLabels,
    feature_discriminator,
    glorot,
    image_discriminator,
    sdar_decoder,
)
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.data.batches import Batch
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate, rng_for


class _SimulatorConfig(SimulatingConfig):
    threat: ClassVar[Threat] = Threat(
        knows=(Knows.ARCHITECTURE, Knows.METHODS, Knows.PUBLIC),
        sees=(Sees.SMASHED, Sees.TRUNK),
        when=When.TRAINING,
    )
    lr_simulator: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the simulated head and tail."""
    lr_decoder: float = Field(default=5e-4, gt=0)
    """Adam's learning rate for the decoder."""


class SdarConfig(_SimulatorConfig):
    """A simulated client, trained adversarially to resemble the real ones, and a decoder of it."""

    kind: Literal["sdar"] = "sdar"
    feature_weight: float = Field(default=0.02, ge=0)
    """Weight of deceiving the feature discriminator; 0: no such discriminator."""
    image_weight: float = Field(default=1e-5, ge=0)
    """Weight of deceiving the image discriminator; 0: no such discriminator."""
    flip: float = Field(default=0.2, ge=0, le=1)
    """Share of the auxiliary labels that are replaced by random ones under a U shape."""
    lr_features: float = Field(default=2e-5, gt=0)
    """Adam's learning rate for the feature discriminator."""
    lr_images: float = Field(default=5e-9, gt=0)
    """Adam's learning rate for the image discriminator."""

    def build(self, known: Knowledge) -> "Sdar":
        return Sdar(self, known)


class NaiveSdaConfig(_SimulatorConfig):
    """A simulated client and a decoder of it, trained without discriminators."""

    kind: Literal["naive_sda"] = "naive_sda"

    def build(self, known: Knowledge) -> "Sdar":
        """Build SDAR without discriminators and labels."""
        same = self.model_dump(exclude={"kind"})
        plain = SdarConfig(**same, feature_weight=0, image_weight=0, flip=0)
        return Sdar(plain, known, conditional=False)


class Sdar(Following):
    """An attack that trains simulator, decoder and discriminators at each step of a client."""

    config: SdarConfig

    def __init__(self, config: SdarConfig, known: Knowledge, *, conditional: bool = True) -> None:
        super().__init__(config, known)
        self.conditional = conditional and known.tail is not None
        """Whether decoder and discriminators get labels; the server has a tail and the labels."""
        cut, image = known.shapes[0], known.image
        extra = int(self.conditional)
        with isolate(known.seed, "sdar"):
            self.client = known.surrogate("sdar")
            decoder = sdar_decoder(cut[0] + extra, cut, image)
            self.decoder = self._build_net(decoder, cut[1:])
            of_features = feature_discriminator(cut[0] + extra, cut)
            self.of_features = self._build_net(of_features, cut[1:])
            of_images = image_discriminator(image[0] + extra, image)
            self.of_images = self._build_net(of_images, image[1:])
        simulator = self.client.modules | ({"tail": self.client.tail} if known.tail is None else {})
        self._add_net("simulator", simulator, config.lr_simulator)
        self._add_net("decoder", {"decoder": self.decoder}, config.lr_decoder)
        if config.feature_weight:
            self._add_net("features", {"features": self.of_features}, config.lr_features)
        if config.image_weight:
            self._add_net("images", {"images": self.of_images}, config.lr_images)

    def _build_net(self, layers: nn.Module, size: tuple[int, ...]) -> nn.Module:
        """Initialise a network, with an input for labels if the attack is conditional."""
        net = WithLabels(layers, self.known.classes, size) if self.conditional else layers
        return glorot(net).to(self.known.device)

    def _add_net(self, name: str, modules: dict[str, nn.Module], lr: float) -> None:
        """Add a learner with Adam; its eps is Keras's default, as in the published code."""
        self.add_learner(name, modules, AdamConfig(lr=lr, eps=1e-7))

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        # The decoder gets the simulator's outputs from after its step.
        known = self.known
        batch = known.public(self.iteration)
        with isolate(known.seed, "sdar", self.iteration, device=known.device):  # dropout's draws
            self._train_simulator(batch, smashed, labels)
            # The decoder's loss must not train the simulator.
            with torch.no_grad():
                simulated = known.simulate(self.client, batch, self.iteration)
            self._train_decoder(batch, simulated, smashed, labels)

    def _train_simulator(self, batch: Batch, smashed: Tensor, labels: Tensor | None) -> None:
        """Take a training step of the simulator and of the discriminator of features."""
        known = self.known
        simulated, term = known.simulate_with_losses(
            self.client, batch, self.iteration, wanted=self.config.method_losses
        )
        outputs = known.outputs(self.client, simulated, self.iteration)
        loss = cross_entropy(outputs.float(), self._flip(batch.labels), reduction="sum")
        if term is not None:
            loss = loss + len(batch.labels) * term  # a client adds it to the mean loss
        simulator = self.learners["simulator"]
        if not self.config.feature_weight:
            descend(simulator, loss)
            return
        # One pass serves both sides, so that they see the same dropout.
        fake = self._apply(self.of_features, simulated, batch.labels)
        real = self._apply(self.of_features, smashed, labels)
        loss = loss + self.config.feature_weight * _adversarial_loss(fake, real=True)
        telling = _adversarial_loss(real, real=True) + _adversarial_loss(fake, real=False)
        descend_both((simulator, loss), (self.learners["features"], telling))

    def _train_decoder(
        self, batch: Batch, simulated: Tensor, smashed: Tensor, labels: Tensor | None
    ) -> None:
        """Take a training step of the decoder and of the discriminator of images."""
        pixels = self.known.pixels(batch.inputs)
        errors = self._apply(self.decoder, simulated, batch.labels).float() - pixels
        loss = errors.square().flatten(1).mean(1).sum()
        decoder = self.learners["decoder"]
        if not self.config.image_weight:
            descend(decoder, loss)
            return
        decoded = self._apply(self.decoder, smashed, labels)
        fake = self._apply(self.of_images, decoded, labels)
        real = self._apply(self.of_images, pixels, batch.labels)
        loss = loss + self.config.image_weight * _adversarial_loss(fake, real=True)
        telling = _adversarial_loss(real, real=True) + _adversarial_loss(fake, real=False)
        descend_both((decoder, loss), (self.learners["images"], telling))

    def _apply(self, net: nn.Module, x: Tensor, labels: Tensor | None) -> Tensor:
        """Apply a network, with the labels if the attack is conditional."""
        out: Tensor = net(x, labels) if self.conditional else net(x)
        return out

    def _flip(self, labels: Tensor) -> Tensor:
        """Replace a share of the labels by random ones; only under a U shape."""
        if self.known.tail is not None or not self.config.flip:
            return labels
        rng = rng_for(self.known.seed, "sdar", "flip", self.iteration)
        drawn = torch.rand(len(labels), generator=rng) < self.config.flip
        others = torch.randint(self.known.classes, (len(labels),), generator=rng)
        return torch.where(drawn.to(labels.device), others.to(labels.device), labels)

    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        self.decoder.eval()
        return self._apply(self.decoder, smashed, labels)

    def name_classes(self, smashed: Tensor) -> Tensor | None:
        return self.known.name_classes(self.client, smashed, self.iteration)


def _adversarial_loss(logits: Tensor, *, real: bool) -> Tensor:
    """Compute the summed loss of a discriminator's logits for inputs that count as real or fake."""
    logits = logits.float()
    target = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return binary_cross_entropy_with_logits(logits, target, reduction="sum")
