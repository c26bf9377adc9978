"""Label flipping: samples as they are, under another label."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.poisons.base import BatchPoison, BatchPoisonConfig, Scene


class LabelFlipConfig(BatchPoisonConfig):
    """Wrong labels on unchanged samples; success is measured on clean test samples of `source`."""

    pixels: ClassVar[bool] = False
    kind: Literal["label_flip"] = "label_flip"
    target: int | None = Field(default=None, ge=0)
    """The label that they get; null: the next class, after the last the first."""

    @model_validator(mode="after")
    def _flips_something(self) -> "LabelFlipConfig":
        if self.source is not None and set(self.source) == {self.target}:
            raise ValueError(f"source: must hold a class beside the target, got {self.source}")
        return self

    def build(self, scene: Scene) -> "LabelFlip":
        return LabelFlip(self, scene)


class LabelFlip(BatchPoison):
    """Changes labels, and leaves the images alone."""

    def __init__(self, config: LabelFlipConfig, scene: Scene) -> None:
        super().__init__(config, scene)
        self.target = config.target
        if config.target is not None:
            self.refuse_unknown("target", config.target)

    def candidates(self, samples: Samples) -> Tensor:
        """Mask of the images whose label would change."""
        return super().candidates(samples) & (self.relabelled(samples.labels) != samples.labels)

    def relabelled(self, labels: Tensor) -> Tensor:
        """The target, or the next class."""
        if self.target is None:
            return (labels + 1) % self.scene.num_classes
        return torch.full_like(labels, self.target)
