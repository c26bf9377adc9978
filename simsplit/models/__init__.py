"""Networks cut in three: every model by its `kind` in a scenario."""

from typing import Annotated

from pydantic import Field

from simsplit.config import Config, map_kinds
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.airbench import Airbench
from simsplit.models.attacked import MnistNet, MobileNet, ResNet20
from simsplit.models.image_classifier import ImageClassifier
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.split_model import GivenModel, SplitModel
from simsplit.models.tabular import Mlp
from simsplit.models.vision import MicronNet, ResNet18, SimpleCNN
from simsplit.models.vit import VisionTransformer

Model = Annotated[
    ResNet18
    | SimpleCNN
    | MicronNet
    | ResNet20
    | MobileNet
    | Airbench
    | MnistNet
    | VisionTransformer
    | ImageClassifier
    | Mlp
    | GivenModel
    | CausalLM
    | SequenceClassifier
    | AdaptedClassifier,
    Field(discriminator="kind"),
]
"""The type of a scenario's `model`, chosen by `kind`."""
MODELS: dict[str, type[Config]] = map_kinds(Model)

__all__ = ["MODELS", "Model", "SimpleCNN", "SplitModel"]
