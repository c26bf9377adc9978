"""FORA (Xu et al., CVPR 2024): a substitute client whose features resemble the real ones.

The attack does not use the trunk. A substitute head learns, on auxiliary images, to produce outputs
that a critic (WGAN with a gradient penalty) and a multi-kernel MMD cannot distinguish from clients'
smashed data. A pseudo decoder learns to invert the substitute, and then inverts the clients. As in
the published code, the critic learns last, from the substitute's outputs before its own step.
Images have values between -1 and 1.

`fora_reference` is the paper's ceiling, its reference decoder: the same decoder, trained online on
the victim's own batches with their smashed data. `whitebox` with `decoder: fora` is our own
ceiling, trained once the run's training is over, on pairs that are not the victim's.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from simsplit.attacks.attack import Decoding, OnlineConfig, descend
from simsplit.attacks.knowledge import Knowledge, inference
from simsplit.attacks.networks import critic, fora_decoder, fora_substitute, gradient_penalty
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.legs import ClientId
from simsplit.methods import Step
from simsplit.packets import Packet
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate, rng_for


class ForaConfig(OnlineConfig):
    """A substitute client, trained for features like the real ones, and a decoder of it."""

    kind: Literal["fora"] = "fora"
    threat: ClassVar[Threat] = Threat(knows=(Knows.SHAPE, Knows.PUBLIC), when=When.TRAINING)
    critic_weight: float = Field(default=0.2, ge=0)
    """Weight of the critic in the substitute's loss."""
    mmd_weight: float = Field(default=0.8, ge=0)
    """Weight of the multi-kernel MMD in the substitute's loss."""
    penalty: float = Field(default=1000.0, ge=0)
    """Weight of the critic's gradient penalty."""
    projected: bool = False
    """Whether the substitute's output passes the scenario's methods, like the clients'; the paper
    leaves this open."""
    lr_substitute: float = Field(default=1e-4, gt=0)
    """Adam's learning rate for the substitute."""
    lr_critic: float = Field(default=3e-4, gt=0)
    """Adam's learning rate for the critic."""
    lr_decoder: float = Field(default=1e-4, gt=0)
    """Adam's learning rate for the pseudo decoder."""
    critic_width: int = Field(default=256, ge=2)
    """Channels of the critic's blocks: 256 as published. A step takes nearly all of its time in
    them, which falls with the square of this number."""

    def build(self, known: Knowledge) -> "Fora":
        return Fora(self, known)


class Fora(Decoding):
    """An attack that trains a substitute, a critic and a pseudo decoder."""

    config: ForaConfig

    def __init__(self, config: ForaConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        cut, image = known.shapes[0], known.image
        with isolate(known.seed, "fora"):
            self.substitute = fora_substitute(cut, image).to(known.device)
            self.critic = critic(cut, image, width=config.critic_width).to(known.device)
            self.decoder = fora_decoder(cut, image).to(known.device)
        self.stack = known.surrogate("fora").stack
        rate = AdamConfig(lr=config.lr_substitute)
        self.add_learner("substitute", {"substitute": self.substitute}, rate)
        self.add_learner("critic", {"critic": self.critic}, AdamConfig(lr=config.lr_critic))
        self.add_learner("decoder", {"decoder": self.decoder}, AdamConfig(lr=config.lr_decoder))

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        del labels
        known, config = self.known, self.config
        images = self.draw_images()
        simulated = self._simulate(images)
        # The gradient penalty interpolates between pairs of rows, so both need the same number.
        rows = min(len(smashed), len(simulated))
        real, fake = smashed[:rows], simulated.detach()[:rows]
        # The critic is low on real features, so the substitute descends its score.
        loss = config.critic_weight * self.critic(simulated).mean()
        loss = loss + config.mmd_weight * mk_mmd(smashed.flatten(1), simulated.flatten(1))
        descend(self.learners["substitute"], loss)
        # Again, as the substitute has just changed; the decoder's loss must not train it.
        with torch.no_grad():
            simulated = self._simulate(images)
        descend(self.learners["decoder"], mse_loss(self.decoder(simulated), images))
        rng = rng_for(known.seed, "fora", self.iteration)
        loss = self.critic(real).mean() - self.critic(fake).mean()
        loss = loss + config.penalty * gradient_penalty(self.critic, real, fake, rng)
        descend(self.learners["critic"], loss)

    def _simulate(self, images: Tensor) -> Tensor:
        """Compute the trunk's input if the substitute sent these images."""
        sent: Tensor = self.substitute(images)
        if not self.config.projected:
            return sent
        step = Step(-1, 0, self.iteration, self.known.seed)
        with inference(self.known.stack.modules):
            # Nothing is packed here, so the server's c3sl does not know which rows only fill up its
            # last group.
            return self.known.stack.lift(self.stack.encode(sent, step), step)[: len(images)]


class ForaReferenceConfig(OnlineConfig):
    """FORA's decoder, trained on the victim's own batches: an upper bound, not an attack."""

    kind: Literal["fora_reference"] = "fora_reference"
    threat: ClassVar[Threat] = Threat(
        (Sees.SMASHED, Sees.INPUTS), (Knows.SHAPE,), when=When.TRAINING
    )
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate for the decoder."""

    def build(self, known: Knowledge) -> "ForaReference":
        return ForaReference(self, known)


class ForaReference(Decoding):
    """An upper bound that trains a decoder on each step's images and smashed data."""

    def __init__(self, config: ForaReferenceConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        with isolate(known.seed, "fora_reference"):
            self.decoder = fora_decoder(known.shapes[0], known.image).to(known.device)
        self.add_learner("decoder", {"decoder": self.decoder}, AdamConfig(lr=config.lr))
        self._private: dict[ClientId, Tensor] = {}

    def show(self, client: ClientId, pixels: Tensor) -> None:
        self._private[client] = pixels

    def observe(self, packet: Packet) -> None:
        """Note the packet's client, whose images `iterate` needs."""
        self._client = packet.client
        super().observe(packet)

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        del labels
        images = 2 * self._private.pop(self._client) - 1
        descend(self.learners["decoder"], mse_loss(self.decoder(smashed), images))


def mk_mmd(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Compute the squared MMD under five Gaussian kernels.

    The kernels' widths are multiples of the mean squared distance over all pairs. Pairs of a sample
    with itself are left out of the means.
    """
    both = torch.cat([x_ND, y_MD])
    square = torch.cdist(both, both, compute_mode="use_mm_for_euclid_dist").square()
    # A constant: the substitute could else lower the loss by making the kernels wider.
    width = square.detach().mean()
    kernel = sum(torch.exp(-square / (2 * 2.0**power * width)) for power in range(-3, 2))
    assert isinstance(kernel, Tensor), "there are five"
    n, m = len(x_ND), len(y_MD)
    within_x = (kernel[:n, :n].sum() - kernel[:n, :n].trace()) / max(1, n * (n - 1))
    within_y = (kernel[n:, n:].sum() - kernel[n:, n:].trace()) / max(1, m * (m - 1))
    return within_x + within_y - 2 * kernel[:n, n:].mean()
