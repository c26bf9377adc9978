"""Fresh weights for a cut network, every segment from a stream of its own.

A network's usual constructor draws all its weights in one go, so a client's head would change with
the trunk's depth and a client's tail with both. Here a model is laid out once on the meta device
(layers without memory or draws), and each segment is copied from that layout and initialised alone.
"""

import copy
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simsplit.config import Config
from simsplit.models.warm import warmed
from simsplit.seeds import Scope, isolated

InputShape = tuple[int, ...]
"""One sample: channels, height and width of an image, or the tokens of a text."""

Shape = tuple[int, ...]

Owner = Literal["head", "trunk", "tail"]


Start = Literal["torch", "kaiming", "glorot"]
"""As torch's layers do by themselves; convolutions as in torchvision's ResNets; as in Keras."""


class Segments(NamedTuple):
    """A network cut in three; joined in this order they are the whole network."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module


@dataclass
class CutNetwork:
    """Head and tail (the client's) around a trunk (the server's), and the shapes between them."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module
    cut_shape: tuple[int, ...]
    """Per sample, what the head puts out, e.g. (64, 8, 8)."""
    feature_shape: tuple[int, ...]
    """Per sample, what the trunk puts out, e.g. (512,)."""

    def loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Cross entropy of the tail's logits, averaged over what is to be learned; that share of
        each label is spread over all classes.
        """
        flat = outputs.flatten(0, -2), labels.flatten()
        return F.cross_entropy(*flat, label_smoothing=smoothing)


class SegmentRequest(NamedTuple):
    """Which segment to make, for which samples and classes, and from which draws."""

    owner: Owner
    input_shape: InputShape
    num_classes: int
    seed: int
    scope: tuple[Scope, ...] = ()


class SplitConfig(Config):
    """Base of the models: says what crosses between the segments, and makes each of them."""

    @property
    def at_hand(self) -> bool:
        """Whether nothing must be fetched to know its shapes."""
        return True

    @property
    def start_known(self) -> bool:
        """Whether everybody knows the weights that clients start from."""
        return False

    @property
    def learning(self) -> tuple[Owner, ...]:
        """The segments that learn; the others keep the weights that they start with."""
        return ("head", "trunk", "tail")

    @abstractmethod
    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """Cut and feature shape per sample; ScenarioError if such samples do not fit the network.

        By arithmetic: tracing the layers, even on the meta device, loads a second's worth of
        torch's compiler, and a scenario is to be validated at once.
        """

    def segment(
        self,
        owner: Owner,
        input_shape: InputShape,
        num_classes: int,
        seed: int,
        scope: tuple[Scope, ...] = (),
    ) -> nn.Module:
        """Make one of the three, on the CPU; `scope` picks other draws."""
        return self.make_segment(SegmentRequest(owner, input_shape, num_classes, seed, scope))

    @abstractmethod
    def make_segment(self, asked: SegmentRequest) -> nn.Module:
        """Make the segment that is asked for, on the CPU."""

    def build(
        self,
        input_shape: InputShape,
        num_classes: int,
        seed: int,
        scope: tuple[Scope, ...] = (),
    ) -> CutNetwork:
        """The whole network; `scope` picks another head and tail for the same trunk."""
        cut_shape, feature_shape = self.shapes(input_shape)
        return CutNetwork(
            head=self.segment("head", input_shape, num_classes, seed, scope),
            trunk=self.segment("trunk", input_shape, num_classes, seed),
            tail=self.segment("tail", input_shape, num_classes, seed, scope),
            cut_shape=cut_shape,
            feature_shape=feature_shape,
        )


class LaidOut(SplitConfig):
    """Base of the networks whose layers are laid out here, and whose weights start afresh."""

    start: ClassVar[Start] = "torch"
    """How weights start."""
    images_only: ClassVar[bool] = False
    """Whether a sample must have channels, height and width."""
    weights: Path | None = None
    """Where weights start from: a .safetensors file (of torchvision's names, for one), a folder
    that `simsplit export` wrote, or a run directory. Null: fresh ones, by the seed."""
    learns: tuple[Owner, ...] = ("head", "trunk", "tail")
    """Segments that learn; the others keep the weights that they start with. (Whoever trains a
    clone of a segment, as attacks do, trains it all the same.)"""

    @property
    def learning(self) -> tuple[Owner, ...]:
        return self.learns

    @staticmethod
    def called(owner: Owner) -> tuple[Owner, str]:
        """A segment, and what stands before its weights' names in the network as a whole."""
        return owner, ""

    @abstractmethod
    def segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        """The three segments, their weights of no account; called under the meta device."""

    def make_segment(self, asked: SegmentRequest) -> nn.Module:
        """Copy the layout, with weights from a stream of its own."""
        segments = _layout(self, asked.input_shape, asked.num_classes)
        layout: nn.Module = getattr(segments, asked.owner)
        segment = fresh(layout, asked.owner, asked.seed, asked.scope, start=self.start)
        if self.weights is not None:
            warmed(segment, self.called(asked.owner), self.weights)
        return segment


def fresh(
    layout: nn.Module,
    owner: Owner,
    seed: int,
    scope: tuple[Scope, ...] = (),
    *,
    start: Start = "torch",
) -> nn.Module:
    """A copy of `layout` on the CPU with weights from the stream ("model", owner, *scope)."""
    segment = copy.deepcopy(layout).to_empty(device="cpu")
    with isolated(seed, "model", owner, *scope):
        for module in segment.modules():
            _reset(module, start)
    return segment


def _reset(module: nn.Module, start: Start) -> None:
    """Initialise what `module` itself owns, its children excepted."""
    if start == "kaiming" and isinstance(module, nn.Conv2d):
        assert module.bias is None, "a kaiming convolution's bias would stay unset memory"
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif start == "glorot" and isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif any(True for _ in module.parameters(recurse=False)):
        reset = getattr(module, "reset_parameters", None)
        assert reset is not None, f"{type(module).__name__} cannot be initialised"
        reset()


@lru_cache(maxsize=64)
def _layout(config: LaidOut, input_shape: InputShape, num_classes: int) -> Segments:
    """The segments on the meta device; builds copy from them, so they are never handed out."""
    config.shapes(input_shape)  # refuses what does not fit, before the layers do
    with torch.device("meta"):
        return config.segments(input_shape, num_classes)
