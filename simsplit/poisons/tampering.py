"""Tampering with what is sent: payloads and gradients, and under a shared head the hand-over."""

import copy
from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg, Packet
from simsplit.poisons.base import Poison, PoisonConfig, Rows, Scene
from simsplit.seeds import rng_for


class TamperConfig(PoisonConfig):
    """Changes payloads or gradients before they are sent: scaled, negated or noised."""

    kind: Literal["tamper"] = "tamper"
    leg: Literal["smashed", "features_grad"] = "smashed"
    """The leg whose packets are changed."""
    how: Literal["scale", "sign", "noise"] = "scale"
    """scale: times `strength`; sign: negated, times `strength`; noise: plus Gaussian noise of
    `strength` standard deviations."""
    strength: float = Field(default=5.0, gt=0)
    """The factor or noise level of `how`."""

    @property
    def needs(self) -> Needs:
        """The leg that it changes."""
        return (needs_leg(Leg(self.leg), "leg"),)

    def build(self, scene: Scene) -> "Tamper":
        return Tamper(self, scene)


class Tamper(Poison):
    """Changes the floating-point tensors of one leg."""

    def __init__(self, config: TamperConfig, scene: Scene) -> None:
        self.config, self.seed, self.leg = config, scene.seed, Leg(config.leg)

    def on_packet(self, packet: Packet) -> Packet:
        """Change the packet's floating-point tensors, if it is of that leg."""
        if packet.leg is not self.leg:
            return packet
        tensors = tuple(self._changed(t, packet, i) for i, t in enumerate(packet.tensors))
        return packet.with_tensors(tensors)

    def _changed(self, tensor: Tensor, packet: Packet, index: int) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        strength = self.config.strength
        if self.config.how != "noise":
            return tensor * (strength if self.config.how == "scale" else -strength)
        scope = ("tamper", packet.client, packet.round, packet.step, index)
        return tensor + strength * tensor.std(correction=0) * _noise(tensor, self.seed, *scope)


class ReplaceConfig(PoisonConfig):
    """Hands on other shared segments than the ones that it trained."""

    kind: Literal["replace"] = "replace"
    how: Literal["stale", "boost", "sign", "noise"] = "boost"
    """stale: what it was given; boost: its change times `strength`; sign: the change negated, times
    `strength`; noise: plus Gaussian noise of `strength` standard deviations of each tensor."""
    strength: float = Field(default=5.0, gt=0)
    """The factor or noise level of `how`."""

    @property
    def needs(self) -> Needs:
        """Segments that clients share."""
        return (Need(Given.SHARED),)

    def build(self, scene: Scene) -> "Replace":
        return Replace(self, scene)


class Replace(Poison):
    """Keeps the segments that it was given, and hands on a replacement for its own."""

    def __init__(self, config: ReplaceConfig, scene: Scene) -> None:
        self.config, self.seed = config, scene.seed
        self._given: dict[str, Tensor] = {}

    def client(self, number: ClientId, part: Rows) -> Self:
        """A copy for this client."""
        del number, part
        mine = copy.copy(self)
        mine._given = {}
        return mine

    def on_receive(self, packet: Packet) -> None:
        """Copy what arrives, because its tensors may change."""
        pairs = zip(packet.names, packet.tensors, strict=True)
        self._given = {name: tensor.detach().clone() for name, tensor in pairs}

    def on_packet(self, packet: Packet) -> Packet:
        """Replace a hand-over's tensors."""
        if packet.leg is not Leg.HANDOVER:
            return packet
        pairs = enumerate(zip(packet.names, packet.tensors, strict=True))
        return packet.with_tensors(
            # running variances and moments must not become negative: they are left as they are
            tuple(
                self._changed(name, tensor.detach(), packet, i)
                if isinstance(tensor, nn.Parameter)
                else tensor
                for i, (name, tensor) in pairs
            )
        )

    def state(self) -> dict[str, Tensor]:
        """The segments that it was given last."""
        return self._given

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._given = dict(state)

    def _changed(self, name: str, tensor: Tensor, packet: Packet, index: int) -> Tensor:
        how, strength = self.config.how, self.config.strength
        if how == "noise":
            scope = ("replace", packet.client, packet.round, packet.step, index)
            spread = tensor.std(correction=0)
            return tensor + strength * spread * _noise(tensor, self.seed, *scope)
        given = self._given.get(name, tensor)
        if how == "stale":
            return given
        return given + (strength if how == "boost" else -strength) * (tensor - given)


def _noise(like: Tensor, seed: int, *scope: str | int) -> Tensor:
    return torch.randn(like.shape, generator=rng_for(seed, *scope)).to(like)
