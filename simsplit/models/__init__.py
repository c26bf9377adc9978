"""Networks cut in three: every model by its `kind` in a scenario."""

from typing import Annotated

from pydantic import Field

from simsplit.config import Config
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.airbench import Airbench
from simsplit.models.attacked import MnistNet, MobileNet, ResNet20
from simsplit.models.fresh import CutNetwork
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.split_model import GivenModel, SplitModel
from simsplit.models.tabular import Mlp
from simsplit.models.vision import MicronNet, ResNet18, SimpleCNN

MODELS: dict[str, type[Config]] = {
    "resnet18": ResNet18,
    "simplecnn": SimpleCNN,
    "micronnet": MicronNet,
    "resnet20": ResNet20,
    "mobilenet": MobileNet,
    "airbench": Airbench,
    "mnistnet": MnistNet,
    "mlp": Mlp,
    "given": GivenModel,
    "causal_lm": CausalLM,
    "sequence_classifier": SequenceClassifier,
    "adapted_classifier": AdaptedClassifier,
}

Model = Annotated[
    ResNet18
    | SimpleCNN
    | MicronNet
    | ResNet20
    | MobileNet
    | MnistNet
    | Airbench
    | Mlp
    | GivenModel
    | CausalLM
    | SequenceClassifier
    | AdaptedClassifier,
    Field(discriminator="kind"),
]
"""The type of a scenario's `model`: one of the entries of MODELS, chosen by `kind`."""

__all__ = [
    "MODELS",
    "AdaptedClassifier",
    "Airbench",
    "CausalLM",
    "CutNetwork",
    "GivenModel",
    "MicronNet",
    "Mlp",
    "MnistNet",
    "MobileNet",
    "Model",
    "ResNet18",
    "ResNet20",
    "SequenceClassifier",
    "SimpleCNN",
    "SplitModel",
]
