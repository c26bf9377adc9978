"""A vision transformer of the transformers library as a model: from a folder, the hub, or random.

Images must have the sizes that the saved model was trained on, and are scaled as the data's source
says; the model's own preprocessing is not read. A classifier that was saved for another number of
classes is drawn anew.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.models.encoders import build_classifier
from simsplit.models.exactness import require_exact_saved
from simsplit.models.fresh import (
    MOST_LAYERS,
    MOST_WIDTH,
    InputShape,
    Owner,
    Place,
    SegmentRequest,
    Shape,
    SplitConfig,
    refuse_without_room,
)
from simsplit.models.image_transformer import (
    ImageBlocks,
    copy_image_segment,
    get_classifier,
    measure_images,
    refuse_other_families,
)
from simsplit.models.shards import WeightReader, find_unsaved, find_weight_files, lay_out_model
from simsplit.models.text_model import Lora, add_adapters, refuse_two_origins
from simsplit.models.transformer import Cut, get_layers
from simsplit.models.vision import build_misfit
from simsplit.models.whole import count_bytes, get_class, load_config, load_model
from simsplit.seeds import isolate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ImageSizes(Config):
    """A vision transformer with random weights; the data say the size of its images."""

    patch: int = Field(default=4, ge=1)
    """Side of a patch, in pixels; it must divide both sides of the image."""
    width: int = Field(default=64, ge=1, le=MOST_WIDTH)
    """Values of a token: ViT-B has 768."""
    layers: int = Field(default=4, ge=1, le=MOST_LAYERS)
    """Number of layers, each of attention and MLP: ViT-B has 12."""
    heads: int = Field(default=4, ge=1)
    """Attention heads per layer, which must divide `width`: ViT-B has 12."""

    @model_validator(mode="after")
    def _refuse_odd_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads: must divide width ({self.width}), got {self.heads}")
        return self


class ImageClassifier(SplitConfig):
    """A vision transformer of the transformers library (ViT, DeiT, ViT-MSN), cut in three."""

    images_only = True
    cut_field = "head"
    kind: Literal["image_classifier"] = "image_classifier"
    name: str | None = None
    """A model on the hub or a folder with one; null: a random model of `sizes`."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: the main branch."""
    sizes: ImageSizes | None = None
    """Sizes of a model with random weights; null: the default ones, unless there is a name."""
    head: int = Field(default=1, ge=0)
    """Number of layers in the clients' head."""
    tail: int = Field(default=0, ge=0)
    """Number of layers in the clients' tail, before its norm and classifier."""
    learns: tuple[Owner, ...] = ("head", "trunk", "tail")
    """Segments that learn; the others keep their pretrained weights."""
    lora: Lora | None = None
    """Low-rank adapters in the segments that learn, next to which the classifier learns as a whole;
    null: all weights of these segments learn."""

    @model_validator(mode="after")
    def _refuse_two_origins(self) -> Self:
        refuse_two_origins(self.name, self.sizes)
        return self

    @property
    def is_pretrained(self) -> bool:
        return self.name is not None

    @property
    def lacks(self) -> str:
        return "" if self.lora is None else self.lora.lacks

    @property
    def is_available_offline(self) -> bool:
        return self.name is None or Path(self.name).is_dir()

    @property
    def is_start_public(self) -> bool:
        return self.name is not None

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        assert isinstance(trunk, ImageBlocks), "this is the trunk of such a model"
        return trunk.enter(self.count_passed(place))

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        tokens, width, layers = self._measure(input_shape)
        if self.head + self.tail >= layers:
            raise ScenarioError(
                "model.head" if self.name else "model.sizes.layers",
                f"must leave at least one layer to the trunk, got head: {self.head}, tail: "
                f"{self.tail} of {layers} layers",
            )
        return (tokens, width), (tokens, width)

    def _measure(self, input_shape: InputShape) -> tuple[int, int, int]:
        """Return the numbers of tokens, values and layers, or raise ScenarioError for misfits."""
        if self.name is None:
            sizes, (height, width) = self.sizes or ImageSizes(), input_shape[1:]
            if height % sizes.patch or width % sizes.patch:
                takes = f"{self.kind} takes sides that model.sizes.patch ({sizes.patch}) divides"
                raise build_misfit(takes, input_shape, f"a multiple of {sizes.patch}")
            tokens = 1 + (height // sizes.patch) * (width // sizes.patch)
            return tokens, sizes.width, sizes.layers
        config = load_config(self.name, self.revision)
        refuse_other_families(config)
        (channels, height, width), tokens = measure_images(config)
        if input_shape != (channels, height, width):
            size = "" if input_shape[1:] == (height, width) else str(height)
            takes = f"{self.name} takes {height}x{width} in {channels} channels"
            raise build_misfit(takes, input_shape, size)
        return tokens, int(config.hidden_size), int(config.num_hidden_layers)

    def make_segment(self, request: SegmentRequest) -> nn.Module:
        """Make a segment; a random model's segments have separate draws."""
        owner, learns = request.owner, request.owner in self.learns
        if (laid_out := self._lay_out(request)) is None:
            made = self._copy_segment(request)
        else:
            reader, segment = laid_out
            made = reader.fill(segment, get_layers(segment)) or self._copy_segment(request)
        made.requires_grad_(learns and self.lora is None)
        if self.lora is not None and learns:
            with isolate(request.seed, "lora", owner, *request.scope):
                add_adapters(made, self.lora.model_dump(), keep=("reader",))
        return made

    def lay_out_segment(self, request: SegmentRequest) -> nn.Module:
        laid_out = self._lay_out(request)
        return self.make_segment(request) if laid_out is None else laid_out[1]

    def _lay_out(self, request: SegmentRequest) -> tuple[WeightReader, nn.Module] | None:
        """Cut a segment out of the model without weights, which the reader fills in; None if no
        files have them.
        """
        if self.name is None or (saved := find_weight_files(self.name, self.revision)) is None:
            return None
        self.compute_shapes(request.input_shape)
        require_exact_saved(self.name, self.revision)
        model = lay_out_model(self.name, self.revision, torch.float32, request.num_classes)
        get_classifier(model)
        reader = None
        if request.owner == "tail":
            unsaved = find_unsaved(model, saved)
            reader = build_classifier(model, unsaved, request.seed, request.scope)
        made = copy_image_segment(model, request.owner, Cut(self.head, self.tail), reader)
        return WeightReader(model, saved, torch.float32), made

    def _copy_segment(self, request: SegmentRequest) -> nn.Module:
        """Copy a segment out of a model that is in memory as a whole."""
        owner, input_shape, num_classes, seed, scope = request
        self.compute_shapes(input_shape)
        with isolate(seed, "model", owner, *scope):
            model, missing = self.make_whole(input_shape, num_classes)
        get_classifier(model)
        reader = build_classifier(model, missing, seed, scope) if owner == "tail" else None
        return copy_image_segment(model, owner, Cut(self.head, self.tail), reader)

    def make_whole(
        self, input_shape: InputShape, classes: int
    ) -> "tuple[PreTrainedModel, frozenset[str]]":
        """Make the whole model, and name its weights that no file has; it may be a shared one."""
        if self.name is not None:
            require_exact_saved(self.name, self.revision)
            return load_model(self.name, self.revision, classes)
        from transformers import AutoConfig

        sizes, (channels, height, width) = self.sizes or ImageSizes(), input_shape
        config = AutoConfig.for_model(
            "vit",
            image_size=height if height == width else (height, width),
            num_channels=channels,
            patch_size=sizes.patch,
            hidden_size=sizes.width,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=4 * sizes.width,
            num_labels=classes,
        )
        refuse_without_room(count_bytes(sizes.width, sizes.layers))
        return get_class(config.model_type, classes).from_config(config), frozenset()
