"""Networks cut in three: every model by its `kind` in a scenario, and what a build gives."""

from typing import Annotated

from pydantic import Field

from simsplit.config import Config
from simsplit.models.attacked import MnistNet, MobileNet, ResNet20
from simsplit.models.fresh import shapes
from simsplit.models.split import SplitModel
from simsplit.models.vision import MicronNet, ResNet18, SimpleCNN

MODELS: dict[str, type[Config]] = {
    "resnet18": ResNet18,
    "simplecnn": SimpleCNN,
    "micronnet": MicronNet,
    "resnet20": ResNet20,
    "mobilenet": MobileNet,
    "mnistnet": MnistNet,
}

Model = Annotated[
    ResNet18 | SimpleCNN | MicronNet | ResNet20 | MobileNet | MnistNet,
    Field(discriminator="kind"),
]
"""A scenario's `model`: the entries of MODELS, told apart by `kind`."""

__all__ = [
    "MODELS",
    "MicronNet",
    "MnistNet",
    "MobileNet",
    "Model",
    "ResNet18",
    "ResNet20",
    "SimpleCNN",
    "SplitModel",
    "shapes",
]
