"""This module defines label flipping: unchanged samples get another label."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.poisons.poison import BatchPoison, BatchPoisonConfig, Scene


class LabelFlipConfig(BatchPoisonConfig):
    """Wrong labels on unchanged samples; success is measured on clean test samples of `source`."""

    pixels: ClassVar[bool] = False
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
        """Return a mask of the samples whose label would change."""
        return super().find_candidates(samples) & (self.relabel(samples.labels) != samples.labels)

    def relabel(self, labels: Tensor) -> Tensor:
        """Return the target's label, or the next class of each label."""
        if self.target is None:
            return (labels + 1) % self.scene.num_classes
        return torch.full_like(labels, self.target)
