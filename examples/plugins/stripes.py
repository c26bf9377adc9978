"""A data source: noisy images with one bright stripe, whose place is the class."""

from typing import Literal

import numpy as np
from pydantic import Field

from simsplit.data import DataInfo, DataSet, SourceConfig
from simsplit.data.samples import images_to_samples


class StripesConfig(SourceConfig):
    """Grey 28x28 images; class 0 has its stripe at the top, the last class at the bottom."""

    kind: Literal["stripes"] = "stripes"
    classes: int = Field(default=7, ge=2, le=14)
    """How many places a stripe can have."""
    samples: int = Field(default=700, ge=20)
    """Training images; a fifth as many again are for testing."""

    def describe(self):
        """Describe the data without making them, so that shapes are checked before a run starts."""
        return DataInfo((1, 28, 28), self.classes)

    def load(self):
        """Make the same images for every seed of a run, as the split into test images is fixed."""
        names = tuple(f"stripe {label}" for label in range(self.classes))
        return DataSet(
            "stripes", self._make(self.samples, 0), self._make(self.samples // 5, 1), names
        )

    def _make(self, count, stream):
        rng = np.random.default_rng(stream)
        labels = rng.integers(0, self.classes, count)
        images = rng.integers(0, 120, (count, 28, 28))
        height = 28 // self.classes
        for image, label in zip(images, labels, strict=True):
            image[label * height : (label + 1) * height] += 100
        return images_to_samples(images.astype(np.uint8), labels)


SOURCES = {"stripes": StripesConfig}
