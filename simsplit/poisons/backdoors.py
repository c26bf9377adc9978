"""Backdoors: a share of the samples is given the target's label, or already has it, and a trigger.

BadNets (Gu et al. 2017) stamps a patch; blended (Chen et al. 2017) mixes in a whole pattern;
semantic (Bagdasaryan et al. 2020) relabels images that have a property by themselves; clean-label
(Turner et al. 2019) stamps images of the target alone, weakened so that the trigger is easier to
learn than they are. Turner et al. weaken by adversarial noise or a GAN; noise here is plain, which
needs no model.

Two options are for attackers who know that they are watched: colluding clients can share a patch
out (DBA, Xie et al. 2020), and what a client sends of poisoned samples can be clipped to look like
what it sends of clean ones (ours).
"""

from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg, Packet
from simsplit.poisons.base import BatchPoison, BatchPoisonConfig, Rows, Scene
from simsplit.poisons.disguise import Disguise
from simsplit.seeds import rng_for

Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]


class BackdoorConfig(BatchPoisonConfig):
    """Options that all backdoors have."""

    target: int = Field(default=0, ge=0)
    """The class that triggered samples should be classified as."""
    clip: float | None = Field(default=None, gt=0)
    """Within how many standard deviations of the client's clean samples of the target, value by
    value, payloads of poisoned samples are kept, to be taken for such; null: they are not."""

    @property
    def needs(self) -> Needs:
        """Whoever clips needs single samples' payloads."""
        if self.clip is None:
            return super().needs
        sent = needs_leg(Leg.SMASHED, "clip")
        rows = (Need(what, "clip", Leg.SMASHED) for what in (Given.SAMPLES, Given.FLOATS))
        return (*super().needs, sent, *rows)


class PatchConfig(BackdoorConfig):
    """A backdoor whose trigger is a patch in a corner."""

    size: int = Field(default=3, ge=1)
    """The patch's height and width in pixels."""
    corner: Corner = "bottom_right"
    """Where the patch is."""
    margin: int = Field(default=0, ge=0)
    """Pixels between the patch and the image's edges."""
    value: float = Field(default=1.0, ge=0, le=1)
    """The patch's brightness: 0 is black, 1 white."""
    spread: bool = False
    """Whether malicious clients share the patch out, and each stamps its own pixels alone; success
    is measured with the whole patch."""


class Backdoor(BatchPoison):
    """Relabels what it poisons as its target."""

    def __init__(self, config: BackdoorConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.target, self.clip = config.target, config.clip
        self.refuse_unknown("target", config.target)
        self.disguise: Disguise | None = None

    def client(self, number: ClientId, part: Rows) -> Self:
        """A copy for this client, with a disguise of its own."""
        mine = super().client(number, part)
        if self.clip is not None:
            if len(mine.chosen) == len(part):
                raise ScenarioError(
                    f"{self.scene.where}.clip",
                    f"client {number} poisons all of its {len(part)} samples, and has no clean "
                    "ones to take for a measure; lower rate",
                )
            mine.disguise = Disguise(self.clip, f"{self.scene.where}.clip")
        return mine

    def on_batch(self, batch: Batch) -> Batch:
        """Poison a batch, and tell the disguise which samples' payloads come next."""
        if self.disguise is not None:
            hit = self._hit(batch)
            self.disguise.expect(hit, ~hit & (batch.labels == self.target))
        return super().on_batch(batch)

    def on_packet(self, packet: Packet) -> Packet:
        """Disguise the payloads of the batch's poisoned samples."""
        return packet if self.disguise is None else self.disguise.on_packet(packet)

    def state(self) -> dict[str, Tensor]:
        """What the disguise has seen of clean samples."""
        return {} if self.disguise is None else self.disguise.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        if self.disguise is not None:
            self.disguise.load(state)

    def relabelled(self, labels: Tensor) -> Tensor:
        return torch.full_like(labels, self.target)


class BadNetsConfig(PatchConfig):
    """BadNets: a bright patch in a corner, and the target's label."""

    kind: Literal["badnets"] = "badnets"

    def build(self, scene: Scene) -> Backdoor:
        return BadNets(self, scene)


class BadNets(Backdoor):
    """Stamps a patch on images, and gives them the target's label."""

    def __init__(self, config: PatchConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        height, width = scene.samples.inputs.shape[2:]
        reach = config.size + config.margin
        if reach > min(height, width):
            raise ScenarioError(
                f"{scene.where}.size",
                f"size and margin must fit into {height}x{width} pixels, got {reach}",
            )
        self._refuse_spread(config)
        near, far = slice(config.margin, reach), slice(-reach, -config.margin or None)
        rows = near if config.corner.startswith("top") else far
        columns = near if config.corner.endswith("left") else far
        self.patch = torch.zeros(height, width, dtype=torch.bool)
        self.patch[rows, columns] = True
        self.spread, self.own, self.value = config.spread, self.patch, config.value

    def client(self, number: ClientId, part: Rows) -> Self:
        """A copy for this client, with its part of the patch."""
        mine = super().client(number, part)
        if self.spread:
            colluders = self.scene.colluders
            pixels = self.patch.nonzero().tensor_split(len(colluders))
            mine.own = torch.zeros_like(self.patch)
            mine.own[tuple(pixels[colluders.index(number)].T)] = True
        return mine

    def shown(self, inputs: Tensor) -> Tensor:
        """The images with the patch."""
        return self._stamped(inputs, self.patch)

    def changed(self, inputs: Tensor, rows: Rows) -> Tensor:
        """The images with this client's part of the patch."""
        del rows
        return self._stamped(inputs, self.own)

    def _stamped(self, inputs: Tensor, pixels: Tensor) -> Tensor:
        return torch.where(pixels.to(inputs.device), self.scene.scaled(self.value, inputs), inputs)

    def _refuse_spread(self, config: PatchConfig) -> None:
        colluders = len(self.scene.colluders)
        if config.spread and (colluders == 1 or colluders > config.size**2):
            raise ScenarioError(
                f"{self.scene.where}.spread",
                f"needs two to {config.size**2} malicious clients, a pixel each, got {colluders}",
            )


class BlendedConfig(BackdoorConfig):
    """Blended: a fixed random pattern mixed into the whole image, and the target's label."""

    kind: Literal["blended"] = "blended"
    strength: float = Field(default=0.2, gt=0, le=1)
    """The pattern's share of a triggered image."""

    def build(self, scene: Scene) -> Backdoor:
        return Blended(self, scene)


class Blended(Backdoor):
    """Mixes in a pattern, drawn from the run's seed."""

    def __init__(self, config: BlendedConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.strength = config.strength
        shape = scene.samples.inputs.shape[1:]
        self.pattern = torch.rand(shape, generator=rng_for(scene.seed, "poison", "pattern"))

    def shown(self, inputs: Tensor) -> Tensor:
        """The images with the pattern blended in."""
        black, white = self.scene.bounds(inputs)
        pattern = black + (white - black) * self.pattern.to(inputs)
        return inputs.lerp(pattern, self.strength)


class SemanticConfig(BackdoorConfig):
    """Semantic: unchanged images with a natural property get the target's label."""

    kind: Literal["semantic"] = "semantic"
    property: Literal["brightness", "contrast", "red", "green", "blue"] = "brightness"
    """The property: mean, standard deviation, or one channel's share of colour."""
    share: float = Field(default=0.1, gt=0, le=0.5)
    """Share of all training images that has the property: those where it is strongest."""
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of a malicious client's images with the property that it relabels."""

    def build(self, scene: Scene) -> Backdoor:
        return Semantic(self, scene)


class Semantic(Backdoor):
    """Relabels images that have a natural property."""

    def __init__(self, config: SemanticConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.property = config.property
        if config.property in _COLOURS and scene.samples.inputs.shape[1] != len(_COLOURS):
            raise ScenarioError(
                f"{scene.where}.property",
                f"got {config.property}, but the images have no colours; allowed: brightness, "
                "contrast",
            )
        found = self._strength(scene.samples)
        self.threshold = found.sort().values[round((1 - config.share) * (len(found) - 1))].item()

    def candidates(self, samples: Samples) -> Tensor:
        """Mask of the images that have the property."""
        return super().candidates(samples) & (self._strength(samples) > self.threshold)

    def _strength(self, samples: Samples) -> Tensor:
        return torch.cat([self._of(chunk.float()) for chunk in samples.inputs.split(4096)])

    def _of(self, images: Tensor) -> Tensor:
        if self.property == "brightness":
            return images.mean((1, 2, 3))
        if self.property == "contrast":
            return images.flatten(1).std(1)
        colours = images.mean((2, 3))
        return colours[:, _COLOURS.index(self.property)] / colours.sum(1).clamp_min(1)


_COLOURS = ("red", "green", "blue")


class CleanLabelConfig(PatchConfig):
    """Clean-label: a patch on images of the target class, whose labels are kept."""

    kind: Literal["clean_label"] = "clean_label"
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of a malicious client's images of the target class that it poisons."""
    weaken: float = Field(default=0.3, ge=0)
    """Standard deviation of the noise on the rest of the image; pixels are between 0 and 1."""

    def build(self, scene: Scene) -> Backdoor:
        return CleanLabel(self, scene)


class CleanLabel(BadNets):
    """Stamps and weakens images of the target class."""

    def __init__(self, config: CleanLabelConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.weaken = config.weaken

    def candidates(self, samples: Samples) -> Tensor:
        """Mask of the images of the target class."""
        return samples.labels == self.target

    def judged(self, samples: Samples) -> Tensor:
        """Mask of the images of all other classes."""
        return self._of_source(samples.labels)

    def changed(self, inputs: Tensor, rows: Rows) -> Tensor:
        """The images with noise and patch; an image's noise is the same in every epoch."""
        black, white = self.scene.bounds(inputs)
        noise = torch.stack(
            [
                torch.randn(
                    inputs.shape[1:], generator=rng_for(self.scene.seed, "poison", "weaken", r)
                )
                for r in rows.tolist()
            ]
        )
        noisy = inputs + self.weaken * (white - black) * noise.to(inputs)
        return super().changed(noisy.maximum(black).minimum(white), rows)
