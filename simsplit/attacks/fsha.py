"""FSHA (Pasquini et al., CCS 2021): the server trains clients for its own task.

This is an active attack. A client does not get the task's gradient, but that of a critic, which
distinguishes the client's smashed data from the outputs of the server's pilot network for auxiliary
images. With this gradient the client learns to send what the pilot would send, which the pilot's
decoder can invert. The forged gradient crosses the wire like any other; `splitguard` and
`gradients_scrutinizer` are tests by which a client may notice it.

Networks start as the published ones do in Keras (Glorot), and Adam has Keras's eps: with PyTorch's
first weights the critic's scores would differ 12 to 19 times less between images, at rates of 1e-5.
Strided convolutions are padded on both sides here, in Keras at the far side alone. `critic: as_run`
is the critic that the published code runs, `described` the one that it describes.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from simsplit.attacks.attack import Decoding, OnlineConfig, descend
from simsplit.attacks.knowledge import Knowledge, inference
from simsplit.attacks.networks import (
    critic,
    fsha_decoder,
    fsha_pilot,
    glorot,
    gradient_penalty,
)
from simsplit.attacks.threat import Knows, Threat, When
from simsplit.legs import ClientId, Leg
from simsplit.methods import Step
from simsplit.packets import Packet
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolate, rng_for

EPS = 1e-7
"""Keras's eps of Adam."""


class FshaConfig(OnlineConfig):
    """Hijacking of training: forged gradients make clients send payloads that can be decoded."""

    kind: Literal["fsha"] = "fsha"
    threat: ClassVar[Threat] = Threat(
        knows=(Knows.SHAPE, Knows.PUBLIC),
        acts="forges the clients' gradients, which ruins the training",
        when=When.TRAINING,
    )
    penalty: float = Field(default=500.0, ge=0)
    """Weight of the critic's gradient penalty."""
    lr_pilot: float = Field(default=1e-5, gt=0)
    """Adam's learning rate for the pilot and its decoder."""
    lr_critic: float = Field(default=1e-4, gt=0)
    """Adam's learning rate for the critic."""
    critic: Literal["described", "as_run"] = "described"
    """described: the critic's first layers halve the features, the more the larger they are.
    as_run: its first layer has stride 1 at every cut, since branches of the published code
    overwrite one another; slower at shallow cuts."""
    critic_width: int = Field(default=256, ge=2)
    """Channels of the critic's blocks: 256 as published. A step takes nearly all of its time in
    them, which falls with the square of this number."""
    start: int = Field(default=0, ge=0)
    """Number of training steps in which the server is honest, before the attack begins."""

    def build(self, known: Knowledge) -> "Fsha":
        return Fsha(self, known)


class Fsha(Decoding):
    """An attack that trains a pilot, a decoder and a critic, and forges clients' gradients."""

    config: FshaConfig

    def __init__(self, config: FshaConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        cut, image = known.shapes[0], known.image
        with isolate(known.seed, "fsha"):
            self.pilot = glorot(fsha_pilot(cut, image)).to(known.device)
            self.decoder = glorot(fsha_decoder(cut, image)).to(known.device)
            halves = config.critic == "described"
            judge = critic(cut, image, halves_first=halves, width=config.critic_width)
            self.critic = glorot(judge).to(known.device)
        pair = {"pilot": self.pilot, "decoder": self.decoder}
        self.add_learner("pilot", pair, AdamConfig(lr=config.lr_pilot, eps=EPS))
        judges = {"critic": self.critic}
        self.add_learner("critic", judges, AdamConfig(lr=config.lr_critic, eps=EPS))
        self._packets: dict[ClientId, Packet] = {}

    def observe(self, packet: Packet) -> None:
        if packet.leg is Leg.SMASHED:
            tensors = tuple(tensor.clone() for tensor in packet.tensors)
            self._packets[packet.client] = packet.with_tensors(tensors)
        super().observe(packet)

    def answer(self, packet: Packet) -> Packet:
        if packet.leg is not Leg.SMASHED_GRAD or packet.client not in self._packets:
            return packet
        # Before the test of `start`, so that an honest step's copy does not stay in memory.
        smashed = self._packets.pop(packet.client)
        if self.iteration < self.config.start:
            return packet
        known = self.known
        step = Step(smashed.client, smashed.round, smashed.step, known.seed)
        with torch.enable_grad(), inference(known.stack.modules):
            sent = known.stack.unpack(Leg.SMASHED, smashed.tensors, step).detach().requires_grad_()
            # The critic is low on the pilot's outputs, so a client that descends its score learns
            # to send what the pilot would.
            score = self.critic(known.stack.lift(sent.float(), step)).mean()
            (grad,) = torch.autograd.grad(score, sent)
        # A client that sent several gradient messages expects a reply to each.
        replies = len(known.stack.split_messages(Leg.SMASHED_GRAD, packet.tensors))
        return packet.with_tensors(known.stack.pack(Leg.SMASHED_GRAD, grad, step) * replies)

    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        del labels
        known = self.known
        images = self.draw_images()
        piloted = self.pilot(images)
        descend(self.learners["pilot"], mse_loss(self.decoder(piloted), images))
        # The gradient penalty interpolates between pairs of rows, so both need the same number.
        rows = min(len(smashed), len(piloted))
        public, private = piloted.detach()[:rows], smashed[:rows]
        rng = rng_for(known.seed, "fsha", self.iteration)
        loss = self.critic(public).mean() - self.critic(private).mean()
        penalty = gradient_penalty(self.critic, private, public, rng, over="channel")
        loss = loss + self.config.penalty * penalty
        descend(self.learners["critic"], loss)
