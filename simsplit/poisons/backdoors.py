"""This module defines backdoors: some samples get a trigger, and the target's label.

BadNets (Gu et al., 2017) stamps a patch. Blended (Chen et al., 2017) mixes in a pattern.
Semantic (Bagdasaryan et al., 2020) relabels images that have a natural property. Clean-label
(Turner et al., 2019) stamps only images of the target, weakened so that the trigger is easier to
learn than the image. Turner et al. weaken with adversarial noise or a GAN; the noise here is
Gaussian, which needs no model.

Two options are for attackers that expect a detector: colluding clients can divide a patch among
them (DBA, Xie et al., 2020), and payloads of poisoned samples can be clipped to the range of clean
ones (ours).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId, Leg
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import Packet
from simsplit.poisons.disguise import Disguise
from simsplit.poisons.poison import BatchPoison, BatchPoisonConfig, Rows, Scene
from simsplit.seeds import rng_for

Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]


class BackdoorConfig(BatchPoisonConfig):
    """The options of all backdoors."""

    target: int = Field(default=0, ge=0)
    """Number of the class that the model should predict for samples with the trigger."""
    clip: float | None = Field(default=None, gt=0)
    """Number of standard deviations within which each value of a poisoned sample's payload is kept
    around the mean of the client's clean samples of the target, so that it looks like one of
    these; null: payloads are not clipped."""

    @property
    def needs(self) -> Needs:
        """The needs of all poisons of batches; with `clip` also payloads of single samples."""
        if self.clip is None:
            return super().needs
        sent = need_leg(Leg.SMASHED, "clip")
        rows = (Need(what, "clip", Leg.SMASHED) for what in (Given.SAMPLES, Given.FLOATS))
        return (*super().needs, sent, *rows)


class PatchConfig(BackdoorConfig):
    """A backdoor whose trigger is a patch in a corner."""

    size: int = Field(default=3, ge=1)
    """Height and width of the patch, in pixels."""
    corner: Corner = "bottom_right"
    """Corner of the image with the patch."""
    margin: int = Field(default=0, ge=0)
    """Number of pixels between the patch and the image's edges."""
    value: float = Field(default=1.0, ge=0, le=1)
    """Brightness of the patch, from 0 (black) to 1 (white)."""
    spread: bool = False
    """Whether the malicious clients divide the patch among them, so that each stamps only some of
    its pixels; success is measured with the whole patch."""


class Backdoor(BatchPoison):
    """A poison that gives its samples the target's label."""

    keeps_labels: ClassVar[bool] = False
    """Whether it poisons images of the target class, whose labels are kept, alone."""

    def __init__(self, config: BackdoorConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.target, self.clip = config.target, config.clip
        self.refuse_unknown("target", config.target)
        self.disguise: Disguise | None = None

    def for_client(self, number: ClientId, part: Rows) -> Self:
        """Return a copy for one client, with a disguise of its own."""
        mine = super().for_client(number, part)
        if self.clip is not None:
            if len(mine.poisoned_rows) == len(part):
                raise ScenarioError(
                    f"{self.scene.where}.clip",
                    f"needs clean samples, but client {number} poisons all of its {len(part)} "
                    "samples; use a smaller rate",
                )
            mine.disguise = Disguise(self.clip, f"{self.scene.where}.clip")
        return mine

    def on_batch(self, batch: Batch) -> Batch:
        """Poison a batch, and announce to the disguise the samples whose payloads come next."""
        if self.disguise is not None:
            hit = self._find_poisoned(batch)
            self.disguise.expect(hit, ~hit & (batch.labels == self.target))
        return super().on_batch(batch)

    def on_packet(self, packet: Packet) -> Packet:
        return packet if self.disguise is None else self.disguise.on_packet(packet)

    def state(self) -> dict[str, Tensor]:
        return {} if self.disguise is None else self.disguise.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        if self.disguise is not None:
            self.disguise.load(state)

    def find_candidates(self, samples: Samples) -> Tensor:
        if self.keeps_labels:
            return samples.labels == self.target
        return super().find_candidates(samples)

    def find_judged(self, samples: Samples) -> Tensor:
        if self.keeps_labels:  # of the other classes, as far as `source` allows them
            return self._is_of_source(samples.labels)
        return super().find_judged(samples)

    def relabel(self, labels: Tensor) -> Tensor:
        return torch.full_like(labels, self.target)


class BadNetsConfig(PatchConfig):
    """BadNets: a bright patch in a corner, and the target's label."""

    kind: Literal["badnets"] = "badnets"

    def build(self, scene: Scene) -> Backdoor:
        return BadNets(self, scene)


class BadNets(Backdoor):
    """A poison that stamps a patch on images and gives them the target's label."""

    def __init__(self, config: PatchConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        height, width = scene.samples.inputs.shape[2:]
        reach = config.size + config.margin
        if reach > min(height, width):
            raise ScenarioError(
                f"{scene.where}.size",
                f"size and margin must fit into {height}x{width} pixels, got {reach}",
            )
        colluders = len(scene.colluders)
        if config.spread and (colluders == 1 or colluders > config.size**2):
            raise ScenarioError(
                f"{scene.where}.spread",
                f"needs 2 to {config.size**2} malicious clients, one or more pixels each, got "
                f"{colluders}",
            )
        near, far = slice(config.margin, reach), slice(-reach, -config.margin or None)
        rows = near if config.corner.startswith("top") else far
        columns = near if config.corner.endswith("left") else far
        self.patch = torch.zeros(height, width, dtype=torch.bool)
        self.patch[rows, columns] = True
        self.spread, self.own, self.value = config.spread, self.patch, config.value

    def for_client(self, number: ClientId, part: Rows) -> Self:
        """Return a copy for one client, with its part of the patch."""
        mine = super().for_client(number, part)
        if self.spread:
            colluders = self.scene.colluders
            pixels = self.patch.nonzero().tensor_split(len(colluders))
            mine.own = torch.zeros_like(self.patch)
            mine.own[tuple(pixels[colluders.index(number)].T)] = True
        return mine

    def add_trigger(self, inputs: Tensor) -> Tensor:
        return self._stamp(inputs, self.patch)

    def change(self, inputs: Tensor, rows: Rows) -> Tensor:
        return self._stamp(inputs, self.own)

    def _stamp(self, inputs: Tensor, pixels: Tensor) -> Tensor:
        value = self.scene.normalise(self.value, inputs)
        return torch.where(pixels.to(inputs.device), value, inputs)


class BlendedConfig(BackdoorConfig):
    """Blended: a fixed random pattern mixed into the whole image, and the target's label."""

    kind: Literal["blended"] = "blended"
    strength: float = Field(default=0.2, gt=0, le=1)
    """Weight of the pattern in an image with the trigger; the image has the rest."""

    def build(self, scene: Scene) -> Backdoor:
        return Blended(self, scene)


class Blended(Backdoor):
    """A poison that mixes a pattern into images; the pattern is drawn by the run's seed."""

    def __init__(self, config: BlendedConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.strength = config.strength
        shape = scene.samples.inputs.shape[1:]
        self.pattern = torch.rand(shape, generator=rng_for(scene.seed, "poison", "pattern"))

    def add_trigger(self, inputs: Tensor) -> Tensor:
        black, white = self.scene.get_bounds(inputs)
        pattern = black + (white - black) * self.pattern.to(inputs)
        return inputs.lerp(pattern, self.strength)


class SemanticConfig(BackdoorConfig):
    """Semantic: unchanged images with a natural property get the target's label."""

    kind: Literal["semantic"] = "semantic"
    property: Literal["brightness", "contrast", "red", "green", "blue"] = "brightness"
    """The property: mean brightness, its standard deviation, or the share of one colour channel."""
    share: float = Field(default=0.1, gt=0, le=0.5)
    """Share of all training images that count as having the property, the strongest ones."""
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of a malicious client's images with the property that it relabels."""

    def build(self, scene: Scene) -> Backdoor:
        return Semantic(self, scene)


class Semantic(Backdoor):
    """A poison that relabels images with a natural property."""

    def __init__(self, config: SemanticConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.property = config.property
        if config.property in _COLOURS and scene.samples.inputs.shape[1] != len(_COLOURS):
            raise ScenarioError(
                f"{scene.where}.property",
                f"got {config.property}, but the images have no colours; allowed: brightness, "
                "contrast",
            )
        strengths = self._measure(scene.samples)
        rank = round((1 - config.share) * (len(strengths) - 1))
        self.threshold = strengths.sort().values[rank].item()

    def find_candidates(self, samples: Samples) -> Tensor:
        return super().find_candidates(samples) & (self._measure(samples) > self.threshold)

    def _measure(self, samples: Samples) -> Tensor:
        chunks = samples.inputs.split(4096)
        return torch.cat([self._measure_property(chunk.float()) for chunk in chunks])

    def _measure_property(self, images: Tensor) -> Tensor:
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
    """Standard deviation of the noise added to the image, whose pixels are between 0 and 1."""

    def build(self, scene: Scene) -> Backdoor:
        return CleanLabel(self, scene)


class CleanLabel(BadNets):
    """A poison that weakens images of the target class and stamps a patch on them."""

    keeps_labels: ClassVar[bool] = True

    def __init__(self, config: CleanLabelConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.weaken = config.weaken

    def change(self, inputs: Tensor, rows: Rows) -> Tensor:
        black, white = self.scene.get_bounds(inputs)
        # drawn by row, so that an image has the same noise in every epoch and batch
        streams = [rng_for(self.scene.seed, "poison", "weaken", row) for row in rows.tolist()]
        noise = torch.stack([torch.randn(inputs.shape[1:], generator=each) for each in streams])
        noisy = inputs + self.weaken * (white - black) * noise.to(inputs)
        return super().change(noisy.maximum(black).minimum(white), rows)
