"""A trunk that is entered behind a deeper head computes what the trunk of that cut does."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from simsplit.models import Model
from simsplit.models.fresh import SplitConfig

IMAGES: dict[str, tuple[dict[str, Any], Any, tuple[int, ...]]] = {
    "resnet20": ({"width": 2, "cut": 2}, 5, (3, 16, 16)),
    "resnet18": ({"cut": "l1h"}, "l2h", (3, 32, 32)),
    "mobilenet": ({"cut": 1}, 4, (3, 32, 32)),
    "airbench": ({"width": 24, "cut": "l1h"}, "l2h", (3, 32, 32)),
    "vit": ({"width": 16, "heads": 2, "layers": 4, "patch": 4, "head": 1}, 2, (3, 8, 8)),
    "image_classifier": ({"sizes": {"width": 16, "heads": 2, "layers": 4}}, 2, (3, 8, 8)),
    "mnistnet": ({"cut": 2}, 4, (1, 28, 28)),
    "mlp": ({"widths": [8, 7, 6], "dropout": 0.5}, 2, (5,)),
}
FAMILIES = ("llama", "gpt2", "qwen3", "qwen3_moe", "bert", "deberta-v2")


def build(values: dict[str, Any]) -> SplitConfig:
    made: SplitConfig = TypeAdapter(Model).validate_python(values)
    return made


def fill(model: SplitConfig, place: Any, shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Return the entered trunk, and the deeper cut's own with the same weights."""
    deeper = model.cut_at(place)
    whole, other = (each.build(shape, 4, seed=1) for each in (model, deeper))
    entered = model.enter_trunk(whole.trunk, place)
    other.trunk.load_state_dict(entered.state_dict())
    assert {id(p) for p in entered.parameters()} < {id(p) for p in whole.trunk.parameters()}
    assert len(list(other.trunk.modules())) == len(list(entered.modules()))
    return entered.eval(), other.trunk.eval()


@pytest.mark.parametrize("kind", IMAGES)
def test_of_images(kind: str) -> None:
    values, place, shape = IMAGES[kind]
    model = build({"kind": kind, **values})
    entered, own = fill(model, place, shape)
    x = torch.randn(3, *model.cut_at(place).compute_shapes(shape)[0])
    assert torch.equal(entered(x), own(x))


@pytest.mark.parametrize("family", FAMILIES)
def test_of_texts(family: str) -> None:
    sizes = {"family": family, "width": 16, "layers": 4}
    model = build({"kind": "sequence_classifier", "sizes": sizes, "head": 1, "tail": 1})
    entered, own = fill(model, 2, (6,))
    x = torch.randn(2, 6, 16)
    mask: Tensor = torch.tensor([[1] * 6, [1] * 4 + [0] * 2], dtype=torch.bool)
    assert torch.equal(entered(x, mask), own(x, mask))
