"""A vision transformer (Dosovitskiy et al., 2021), cut between its blocks.

Blocks, starting values and names of weights are torchvision's, so a file of its weights fits
(`model.weights`). The head has the patches' embedding and the first blocks, the trunk all others,
the tail the last norm and the classifier, which reads the class token. Positions are learned for
images of one size, which may be any multiple of a patch.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from simsplit.models.fresh import (
    MOST_LAYERS,
    MOST_WIDTH,
    InputShape,
    LaidOut,
    Owner,
    Place,
    Segments,
    Shape,
)
from simsplit.models.vision import build_misfit

if TYPE_CHECKING:
    from torchvision.models.vision_transformer import EncoderBlock

EPS = 1e-6
"""The norms' epsilon in torchvision."""


class VisionTransformer(LaidOut):
    """torchvision's vision transformer for images of any size, with blocks as many as wanted."""

    images_only = True
    cut_field = "head"
    # Blocks have torchvision's names; those of head and tail are the whole network's.
    name_prefixes: ClassVar[Mapping[Owner, str]] = {"trunk": "encoder.layers."}
    kind: Literal["vit"] = "vit"
    patch: int = Field(default=4, ge=1)
    """Side of a patch, in pixels; it must divide both sides of the image."""
    width: int = Field(default=64, ge=1, le=MOST_WIDTH)
    """Values of a token: ViT-B has 768."""
    layers: int = Field(default=4, ge=2, le=MOST_LAYERS)
    """Number of blocks: ViT-B has 12."""
    heads: int = Field(default=4, ge=1)
    """Heads of each block's attention, which must divide `width`: ViT-B has 12."""
    hidden: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Width of the layer between a block's two linear ones; null: four times `width`."""
    head: int = Field(default=1, ge=0)
    """Number of blocks at the client; at least one is left to the trunk."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads: must divide width ({self.width}), got {self.heads}")
        if self.head >= self.layers:
            raise ValueError(f"head: must be less than layers ({self.layers}), got {self.head}")
        return self

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        # Blocks have torchvision's names, which count from the network's first one.
        return nn.Sequential(OrderedDict([*trunk.named_children()][self.count_passed(place) :]))

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        sides = input_shape[1:]
        if any(side % self.patch for side in sides):
            takes = f"{self.kind} takes sides that model.patch ({self.patch}) divides"
            raise build_misfit(takes, input_shape, f"a multiple of {self.patch}")
        tokens = 1 + (sides[0] // self.patch) * (sides[1] // self.patch)
        return (tokens, self.width), (tokens, self.width)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        (tokens, _), _ = self.compute_shapes(input_shape)
        blocks = [(f"encoder_layer_{number}", self._build_block()) for number in range(self.layers)]
        first, others = OrderedDict(blocks[: self.head]), OrderedDict(blocks[self.head :])
        patches = _Patches(input_shape[0], self.width, self.patch, stride=self.patch)
        head = _Head(patches, _Encoder(tokens, self.width, first))
        return Segments(head, nn.Sequential(others), _Tail(self.width, num_classes))

    def _build_block(self) -> "EncoderBlock":
        from torchvision.models.vision_transformer import EncoderBlock

        hidden = self.hidden or 4 * self.width
        block = EncoderBlock(self.heads, self.width, hidden, 0.0, 0.0)
        block.self_attention = _Attention(self.width, self.heads)
        block.mlp[0], block.mlp[3] = _Linear(self.width, hidden), _Linear(hidden, self.width)
        return block


class _Patches(nn.Conv2d):
    """The embedding of patches: a convolution whose stride is its size."""

    def reset_parameters(self) -> None:
        patch = self.in_channels * self.kernel_size[0] * self.kernel_size[1]
        nn.init.trunc_normal_(self.weight, std=patch**-0.5)
        assert self.bias is not None, "a convolution has one by default"
        nn.init.zeros_(self.bias)


class _Encoder(nn.Module):
    """Positions, and the client's blocks."""

    def __init__(self, tokens: int, width: int, blocks: "OrderedDict[str, EncoderBlock]") -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width))
        self.layers = nn.Sequential(blocks)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.pos_embedding, std=0.02)

    def forward(self, tokens_BLD: Tensor) -> Tensor:
        out: Tensor = self.layers(tokens_BLD + self.pos_embedding)
        return out


class _Head(nn.Module):
    """The client's first segment: patches of images become tokens, after that of the class."""

    def __init__(self, patches: _Patches, encoder: _Encoder) -> None:
        super().__init__()
        self.conv_proj, self.encoder = patches, encoder
        self.class_token = nn.Parameter(torch.empty(1, 1, patches.out_channels))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.class_token)

    def forward(self, images: Tensor) -> Tensor:
        patches_BLD = self.conv_proj(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(images), -1, -1)
        out: Tensor = self.encoder(torch.cat([first, patches_BLD], dim=1))
        return out


class _Tail(nn.Module):
    """The last norm, and the classifier on the class token."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"ln": nn.LayerNorm(width, eps=EPS)})
        self.heads = nn.ModuleDict({"head": _Classifier(width, num_classes)})

    def forward(self, tokens_BLD: Tensor) -> Tensor:
        out: Tensor = self.heads["head"](self.encoder["ln"](tokens_BLD)[:, 0])
        return out


class _Classifier(nn.Linear):
    """A linear layer that begins with zeros, as torchvision's."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class _Linear(nn.Linear):
    """A linear layer of a block, which begins as torchvision's."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.normal_(self.bias, std=1e-6)


class _Output(NonDynamicallyQuantizableLinear):
    """The last layer of an attention, which begins as torch's."""

    def reset_parameters(self) -> None:
        """Begin as any linear layer, without bias."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)


class _Attention(nn.MultiheadAttention):
    """torch's attention without its fast path for inference, whose operations are not counted."""

    def __init__(self, width: int, heads: int) -> None:
        # torch takes that path only where the batch comes first.
        super().__init__(width, heads, batch_first=False)
        # torch clears the bias after the layer began; here each layer begins by itself.
        self.out_proj = _Output(width, width)

    def reset_parameters(self) -> None:
        self._reset_parameters()

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool
    ) -> tuple[Tensor, None]:
        del key, value, need_weights  # a block asks with its tokens alone
        tokens_LBD = query.transpose(0, 1)
        out, _ = super().forward(tokens_LBD, tokens_LBD, tokens_LBD, need_weights=False)
        return out.transpose(0, 1), None
