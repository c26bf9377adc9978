"""Networks cut in three: every model by its `kind` in a scenario, and what a build gives."""

from typing import Annotated

from pydantic import Field

from simsplit.config import Config
from simsplit.models.fresh import shapes
from simsplit.models.split import SplitModel
from simsplit.models.vision import MicronNet, ResNet18, SimpleCNN

MODELS: dict[str, type[Config]] = {
    "resnet18": ResNet18,
    "simplecnn": SimpleCNN,
    "micronnet": MicronNet,
}

Model = Annotated[ResNet18 | SimpleCNN | MicronNet, Field(discriminator="kind")]
"""A scenario's `model`: the entries of MODELS, told apart by `kind`."""

__all__ = ["MODELS", "MicronNet", "Model", "ResNet18", "SimpleCNN", "SplitModel", "shapes"]
