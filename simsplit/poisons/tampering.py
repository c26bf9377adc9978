"""This module tampers with packets: payloads, gradients, and hand-overs of shared segments.

Labels can be flipped too: unchanged samples get another label.
"""

import copy
from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from simsplit.data.samples import Samples
from simsplit.legs import ClientId, Leg
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import Packet
from simsplit.poisons.poison import (
    BatchPoison,
    BatchPoisonConfig,
    Poison,
    PoisonConfig,
    Rows,
    Scene,
)
from simsplit.seeds import rng_for


class TamperConfig(PoisonConfig):
    """Payloads or gradients that are scaled, negated or noised before they are sent."""

    kind: Literal["tamper"] = "tamper"
    leg: Literal["smashed", "features_grad"] = "smashed"
    """Leg whose packets are changed."""
    how: Literal["scale", "sign", "noise"] = "scale"
    """The change: `scale` multiplies by `strength`, `sign` by minus `strength`; `noise` adds
    Gaussian noise of `strength` standard deviations of each tensor."""
    strength: float = Field(default=5.0, gt=0)
    """Factor or noise level of `how`."""

    @property
    def needs(self) -> Needs:
        return (need_leg(Leg(self.leg), "leg"),)

    def build(self, scene: Scene) -> "Tamper":
        return Tamper(self, scene)


class Tamper(Poison):
    """A poison that changes the floating-point tensors of one leg."""

    def __init__(self, config: TamperConfig, scene: Scene) -> None:
        self.config, self.seed, self.leg = config, scene.seed, Leg(config.leg)

    def on_packet(self, packet: Packet) -> Packet:
        if packet.leg is not self.leg:
            return packet
        tensors = tuple(self._change(t, packet, i) for i, t in enumerate(packet.tensors))
        return packet.with_tensors(tensors)

    def _change(self, tensor: Tensor, packet: Packet, index: int) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        strength = self.config.strength
        if self.config.how != "noise":
            return tensor * (strength if self.config.how == "scale" else -strength)
        scope = ("tamper", packet.client, packet.round, packet.step, index)
        return tensor + strength * tensor.std(correction=0) * _draw_noise(tensor, self.seed, *scope)


class ReplaceConfig(PoisonConfig):
    """Replacement of the shared segments that a client hands over by others than it trained."""

    kind: Literal["replace"] = "replace"
    how: Literal["stale", "boost", "sign", "noise"] = "boost"
    """What is handed over: `stale`, the segments that the client received; `boost`, these plus its
    update times `strength`; `sign`, these minus its update times `strength`; `noise`, the trained
    segments plus Gaussian noise of `strength` standard deviations of each tensor."""
    strength: float = Field(default=5.0, gt=0)
    """Factor or noise level of `how`."""

    @property
    def needs(self) -> Needs:
        return (Need(Given.SHARED),)

    def build(self, scene: Scene) -> "Replace":
        return Replace(self, scene)


class Replace(Poison):
    """A poison that keeps the segments it received, and replaces the ones that it hands over."""

    def __init__(self, config: ReplaceConfig, scene: Scene) -> None:
        self.config, self.seed = config, scene.seed
        self._received: dict[str, Tensor] = {}

    def for_client(self, number: ClientId, part: Rows) -> Self:
        mine = copy.copy(self)
        mine._received = {}
        return mine

    def on_receive(self, packet: Packet) -> None:
        """Copy the received segments, because their tensors change in training."""
        pairs = zip(packet.names, packet.tensors, strict=True)
        self._received = {name: tensor.detach().clone() for name, tensor in pairs}

    def on_packet(self, packet: Packet) -> Packet:
        if packet.leg is not Leg.HANDOVER:
            return packet
        pairs = enumerate(zip(packet.names, packet.tensors, strict=True))
        return packet.with_tensors(
            # only parameters: a running variance or a moment must not become negative
            tuple(
                self._change(name, tensor.detach(), packet, i)
                if isinstance(tensor, nn.Parameter)
                else tensor
                for i, (name, tensor) in pairs
            )
        )

    def state(self) -> dict[str, Tensor]:
        """Return the segments that the client received last."""
        return self._received

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._received = dict(state)

    def _change(self, name: str, tensor: Tensor, packet: Packet, index: int) -> Tensor:
        how, strength = self.config.how, self.config.strength
        if how == "noise":
            scope = ("replace", packet.client, packet.round, packet.step, index)
            spread = tensor.std(correction=0)
            return tensor + strength * spread * _draw_noise(tensor, self.seed, *scope)
        given = self._received.get(name, tensor).to(tensor.device)  # resumed, it lies on the CPU
        if how == "stale":
            return given
        return given + (strength if how == "boost" else -strength) * (tensor - given)


def _draw_noise(like: Tensor, seed: int, *scope: str | int) -> Tensor:
    return torch.randn(like.shape, generator=rng_for(seed, *scope)).to(like)


class LabelFlipConfig(BatchPoisonConfig):
    """Wrong labels on unchanged samples; success is measured on clean test samples of `source`."""

    pixels = False
    kind: Literal["label_flip"] = "label_flip"
    target: int | None = Field(default=None, ge=0)
    """Number of the class whose label samples get; null: each label's next class, and the first one
    after the last."""

    @model_validator(mode="after")
    def _check_target(self) -> "LabelFlipConfig":
        if self.source is not None and set(self.source) == {self.target}:
            raise ValueError(f"source: must have a class other than target, got {self.source}")
        return self

    def build(self, scene: Scene) -> "LabelFlip":
        return LabelFlip(self, scene)


class LabelFlip(BatchPoison):
    """A poison that changes labels and leaves inputs unchanged."""

    def __init__(self, config: LabelFlipConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.target = config.target
        if config.target is not None:
            self.refuse_unknown("target", config.target)

    def find_candidates(self, samples: Samples) -> Tensor:
        return super().find_candidates(samples) & (self.relabel(samples.labels) != samples.labels)

    def relabel(self, labels: Tensor) -> Tensor:
        if self.target is None:
            return (labels + 1) % self.scene.num_classes
        return torch.full_like(labels, self.target)
