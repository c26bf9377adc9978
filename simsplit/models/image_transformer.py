"""A vision transformer of the transformers library, cut in three exactly.

The head has the embedding of patches, the class token and the positions; the tail has the last
norm, and the classifier, which reads the class token. All tokens attend to each other, and an image
has as many as any other, so there are neither masks nor caches.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from simsplit.errors import ScenarioError, format_list
from simsplit.models.transformer import Cut

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

VITS = ("vit", "deit", "vit_msn")
"""The library's names of the families."""
_CLASS_TOKENS = {"deit": 2}
"""Number of tokens before those of patches, where it is not one: DeiT has one for its teacher."""


class ImageBlocks(nn.Module):
    """Consecutive layers of a vision transformer."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x_BLD: Tensor) -> Tensor:
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        return x_BLD

    def enter(self, passed: int) -> "ImageBlocks":
        """Return the layers behind the first ones: the same modules, not copies."""
        return ImageBlocks(self.layers[passed:])


class ImageTail(nn.Module):
    """The last layers, the norm, and the classifier on the class token."""

    def __init__(self, blocks: ImageBlocks, norm: nn.Module, reader: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm, self.reader = blocks, norm, reader

    def forward(self, x_BLD: Tensor) -> Tensor:
        out: Tensor = self.reader(self.norm(self.blocks(x_BLD))[:, 0])
        return out


def is_vit(config: "PreTrainedConfig") -> bool:
    """Return whether a model is a vision transformer of a known family."""
    return config.model_type in VITS


def refuse_other_families(config: "PreTrainedConfig") -> None:
    """Raise ScenarioError for a model that is not a vision transformer of a known family."""
    if not is_vit(config):
        raise ScenarioError(
            "model.name",
            f"is a {config.model_type}, which cannot be cut; allowed: {format_list(VITS)}",
        )


def measure_images(config: "PreTrainedConfig") -> tuple[tuple[int, int, int], int]:
    """Return the shape of the images that a model takes, and the number of their tokens."""
    (height, width), patch = _as_sides(config.image_size), _as_sides(config.patch_size)
    tokens = (height // patch[0]) * (width // patch[1]) + _CLASS_TOKENS.get(config.model_type, 1)
    return (int(config.num_channels), height, width), tokens


def _as_sides(size: Any) -> tuple[int, int]:  # noqa: ANN401 - a number, or two
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def copy_image_segment(
    model: "PreTrainedModel", owner: str, cut: Cut, reader: nn.Module | None
) -> nn.Module:
    """Copy one segment out of a vision transformer."""
    body: Any = model.base_model
    blocks = ImageBlocks(body.layers[cut.layers_of(owner, len(body.layers))])
    if owner == "head":
        parts = OrderedDict[str, nn.Module](embeddings=body.embeddings, blocks=blocks)
        return copy.deepcopy(nn.Sequential(parts))
    if owner == "trunk":
        return copy.deepcopy(blocks)
    assert reader is not None, "a tail has a classifier"
    return copy.deepcopy(ImageTail(blocks, body.layernorm, reader))


def put_together(
    model: "PreTrainedModel", segments: Sequence[nn.Module], layers: Sequence[Mapping[str, Tensor]]
) -> None:
    """Put trained segments back into a whole vision transformer; `layers` are all their layers'."""
    body: Any = model.base_model
    head, _, tail = cast("Any", segments)
    body.embeddings.load_state_dict(head.embeddings.state_dict())
    for whole, state in zip(body.layers, layers, strict=True):
        whole.load_state_dict(state)
    body.layernorm.load_state_dict(tail.norm.state_dict())
    get_classifier(model).load_state_dict(tail.reader.state_dict())


def get_classifier(model: "PreTrainedModel") -> nn.Module:
    """Return a model's classifier, or raise ScenarioError if it has several, as a taught DeiT."""
    found = getattr(model, "classifier", None)
    if not isinstance(found, nn.Module):
        raise ScenarioError(
            "model.name",
            f"is a {type(model).__name__}, which cannot be cut; choose one with one classifier",
        )
    return found
