"""The base of all models, and fresh weights for each segment from a separate random stream.

A network's usual constructor draws all weights from one stream, so a client's head would change
with the trunk's depth, and a client's tail with both. Here a model is built once on the meta device
(layers without memory or draws). Each segment is copied from that layout and initialised
separately.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simsplit.config import Config
from simsplit.errors import ScenarioError, format_list
from simsplit.machine import read_free_bytes
from simsplit.models.joins import Join, has_tokens, join_shapes, widen_first
from simsplit.seeds import Scope, isolate
from simsplit.states import unstack_clients

InputShape = tuple[int, ...]
"""The shape of one sample: channels, height and width of an image, or the length of a text."""

Shape = tuple[int, ...]

Owner = Literal["head", "trunk", "tail"]

Place = int | str
"""Where a head ends: the value of the model's field that says so (see `SplitConfig.cut_field`)."""

Start = Literal["torch", "kaiming", "glorot"]
"""The initial weights: torch's defaults; convolutions as in torchvision's ResNets; as in Keras."""
FIELD = "model.weights"
MOST_WIDTH, MOST_LAYERS = 1_000_000, 1000
"""Values of a layer, and layers, at most: a network is laid out before its size is known."""
_SMALL = 2**28
"""Bytes that any machine has, so that its memory need not be asked for."""
_FILE = "model.safetensors"
_BEFORE = (
    *("server/", "holder/", "average/shared/weights.", "average/trunk/weights."),
    "client/0/own.0.",
)
"""Prefixes of the weights' names in a checkpoint; later ones overwrite earlier ones."""


class Segments(NamedTuple):
    """The three segments of a network; in this order they form the whole network."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module


@dataclass
class CutNetwork:
    """The client's head and tail, the server's trunk between them, and the shapes at both cuts."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module
    cut_shape: tuple[int, ...]
    """The shape of the head's output per sample, such as (64, 8, 8)."""
    feature_shape: tuple[int, ...]
    """The shape of the trunk's output per sample, such as (512,)."""

    def loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Return the cross-entropy of the tail's logits, averaged over all labels that are given.

        A share of `smoothing` of each label is spread over all classes.
        """
        flat = outputs.flatten(0, -2), labels.flatten()
        return F.cross_entropy(*flat, label_smoothing=smoothing)


class SegmentRequest(NamedTuple):
    """The arguments of `make_segment`: the segment, its samples and classes, and its draws."""

    owner: Owner
    input_shape: InputShape
    num_classes: int
    seed: int
    scope: tuple[Scope, ...] = ()


class SplitConfig(Config):
    """Base of all models, which compute the shapes at the cuts and make the segments."""

    images_only: ClassVar[bool] = False
    """Whether a sample must have channels, height and width."""
    cut_field: ClassVar[str] = ""
    """The field that says where the head ends; empty if all clients must have one cut."""

    @property
    def is_available_offline(self) -> bool:
        """Whether the shapes are known without fetching anything."""
        return True

    @property
    def is_pretrained(self) -> bool:
        """Whether weights are read from files, which may be large."""
        return False

    def at_seed(self, seed: int) -> Self:
        """Return the model that a scenario with this seed has."""
        return self

    def digest_content(self) -> str | None:
        """Return a digest of weights that come with the package, of all draws that a name means."""
        return None

    def describe_own_weights(self) -> Mapping[str, str | None]:
        """Return the name and the digest of simsplit's own weights; empty for all others."""
        return {}

    def make_ready(self) -> None:
        """Make what runs share and nobody has given: a model that is pretrained on first use."""

    @property
    def lacks(self) -> str:
        """The package that this machine lacks for it, and how to install it; else empty."""
        return ""

    @property
    def is_start_public(self) -> bool:
        """Whether the weights that clients start from are public."""
        return False

    @property
    def learning(self) -> tuple[Owner, ...]:
        """The segments that learn, those in a field `learns` if there is one; others stay as is."""
        learns: tuple[Owner, ...] = getattr(self, "learns", ("head", "trunk", "tail"))
        return learns

    def cut_at(self, place: Place) -> Self:
        """Return the same network with a head that ends elsewhere."""
        return type(self).model_validate({**self.model_dump(), self.cut_field: place})

    def count_passed(self, place: Place) -> int:
        """Count the trunk's layers that a head has if it ends at `place`; negative: before them."""
        return int(place) - int(getattr(self, self.cut_field))

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        """Return the layers of a trunk behind a deeper head: the same modules, not copies.

        Their names are those of the deeper cut's own trunk.
        """
        raise NotImplementedError(f"{self.kind_name} has one cut")

    @abstractmethod
    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """Return cut and feature shape per sample, or raise ScenarioError for unsuitable samples.

        Models compute them by arithmetic. Tracing the layers, even on the meta device, would load
        torch's compiler, which takes a second, and validating a scenario must be quick.
        """

    def join_shapes(self, shapes: Sequence[InputShape], how: Join) -> tuple[Shape, Shape]:
        """Return the shapes of joined outputs and of features; raise ScenarioError if none fit."""
        cuts, features = zip(*map(self.compute_shapes, shapes), strict=True)
        joined = join_shapes(cuts, how)
        if joined != cuts[0] and not has_tokens(joined):
            self.make_wider_trunk(SegmentRequest("trunk", shapes[0], 2, 0), joined[0])
        return joined, features[0]

    def make_wider_trunk(self, request: SegmentRequest, width: int) -> nn.Module:
        """Make a trunk for values or channels of several heads; raise ScenarioError if none is."""
        raise ScenarioError(
            "vertical.join",
            f"got concat, and {self.kind_name} has a trunk for the outputs of one head; use sum or "
            "mean",
        )

    def segment(
        self,
        owner: Owner,
        input_shape: InputShape,
        num_classes: int,
        seed: int,
        scope: tuple[Scope, ...] = (),
    ) -> nn.Module:
        """Make one of the three segments on the CPU; another `scope` gives other draws."""
        return self.make_segment(SegmentRequest(owner, input_shape, num_classes, seed, scope))

    @abstractmethod
    def make_segment(self, request: SegmentRequest) -> nn.Module:
        """Make the requested segment on the CPU."""

    def lay_out_segment(self, request: SegmentRequest) -> nn.Module:
        """Make a segment for a side that does not hold it; it need not have weights."""
        return self.make_segment(request)

    def widen(self) -> Self:
        """Return the model with all weights in float32, as an attacker reads public ones."""
        return self

    def build(
        self,
        input_shape: InputShape,
        num_classes: int,
        seed: int,
        scope: tuple[Scope, ...] = (),
        *,
        with_trunk: bool = True,
        joined: Shape = (),
    ) -> CutNetwork:
        """Make the whole network; another `scope` gives another head and tail, but not trunk.

        Without trunk, that segment need not have weights. `joined` is the shape of several heads'
        outputs, if the trunk takes these together.
        """
        cut_shape, feature_shape = self.compute_shapes(input_shape)
        trunk = SegmentRequest("trunk", input_shape, num_classes, seed)
        make: Callable[[SegmentRequest], nn.Module]
        make = self.make_segment if with_trunk else self.lay_out_segment
        if joined not in ((), cut_shape) and not has_tokens(cut_shape):
            make = partial(self.make_wider_trunk, width=joined[0])
        return CutNetwork(
            head=self.segment("head", input_shape, num_classes, seed, scope),
            trunk=make(trunk),
            tail=self.segment("tail", input_shape, num_classes, seed, scope),
            cut_shape=cut_shape,
            feature_shape=feature_shape,
        )


class LaidOut(SplitConfig):
    """Base of the networks whose layers are built in this package, with fresh weights."""

    start: ClassVar[Start] = "torch"
    """How weights are initialised."""
    name_prefixes: ClassVar[Mapping[Owner, str]] = {}
    """Segment -> the prefix of its weights' names in the whole network, if they have one there."""
    weights: Path | None = None
    """Initial weights: a .safetensors file (such as one with torchvision's names), a folder that
    `simsplit export` wrote, or a run directory. Null: fresh weights, drawn by the seed."""
    learns: tuple[Owner, ...] = ("head", "trunk", "tail")
    """Segments that learn; the others keep the weights that they start with. Attacks that train a
    clone of a segment train it in any case."""

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        return nn.Sequential(*list(trunk.children())[self.count_passed(place) :])

    @abstractmethod
    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        """Build the three segments; their weights do not matter, as on the meta device."""

    def make_wider_trunk(self, request: SegmentRequest, width: int) -> nn.Module:
        trunk = _lay_out(self, request.input_shape, request.num_classes).trunk
        return self._copy_layout(widen_first(trunk, width), request)

    def make_segment(self, request: SegmentRequest) -> nn.Module:
        segments = _lay_out(self, request.input_shape, request.num_classes)
        refuse_without_room(
            sum(
                weight.nbytes * (2 if owner in self.learning else 1)
                for owner, segment in segments._asdict().items()
                for weight in segment.parameters()
            )
        )
        return self._copy_layout(getattr(segments, request.owner), request)

    def _copy_layout(self, layout: nn.Module, request: SegmentRequest) -> nn.Module:
        """Copy a segment's layout, with fresh weights or those of a file."""
        segment = copy_fresh(layout, request.owner, request.seed, request.scope, start=self.start)
        if self.weights is not None:
            before = self.name_prefixes.get(request.owner, "")
            load_weights(segment, request.owner, before, self.weights)
        return segment


def refuse_without_room(nbytes: int) -> None:
    """Raise ScenarioError for a network that this machine's free memory cannot hold."""
    if nbytes > _SMALL and nbytes > (free := read_free_bytes(torch.device("cpu"))):
        raise ScenarioError(
            "model",
            f"its weights and gradients need about {nbytes / 2**30:,.1f} GiB, and this machine has "
            f"{free / 2**30:,.1f} GiB free; use a smaller one",
        )


def copy_fresh(
    layout: nn.Module,
    owner: Owner,
    seed: int,
    scope: tuple[Scope, ...] = (),
    *,
    start: Start = "torch",
) -> nn.Module:
    """Copy `layout` to the CPU, with weights from the stream ("model", owner, *scope)."""
    segment = copy.deepcopy(layout).to_empty(device="cpu")
    with isolate(seed, "model", owner, *scope):
        for module in segment.modules():
            _reset(module, start)
    return segment


def _reset(module: nn.Module, start: Start) -> None:
    """Initialise the weights of `module` itself, without its children's."""
    if start == "kaiming" and isinstance(module, nn.Conv2d):
        assert module.bias is None, "the bias of a kaiming convolution would stay uninitialised"
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif start == "glorot" and isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif any(True for _ in module.parameters(recurse=False)):
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            raise ScenarioError(
                "model",
                f"its layer {type(module).__name__} has weights of its own, and no method "
                "reset_parameters that draws them; write one",
            )
        reset()


@lru_cache(maxsize=64)
def _lay_out(config: LaidOut, input_shape: InputShape, num_classes: int) -> Segments:
    """Build the segments on the meta device. Callers must copy them, since they are cached."""
    # Refuse unsuitable samples with a ScenarioError, before a layer raises something else.
    config.compute_shapes(input_shape)
    with torch.device("meta"):
        return config.make_segments(input_shape, num_classes)


def load_weights(segment: nn.Module, owner: Owner, before: str, path: Path) -> None:
    """Load weights from a file into a segment, in place.

    Weights are found by their names in the whole network, which begin with `before`, or with the
    prefix `head.`, `trunk.` or `tail.`. Head and trunk must be in the file completely; a tail for
    other classes keeps its fresh weights.
    """
    stored, missing = _read(path, _find_file(path).stat().st_mtime), []
    with torch.no_grad():
        for name, tensor in segment.state_dict(keep_vars=True).items():
            weight = stored.get(f"{owner}.{name}", stored.get(f"{before}{name}"))
            if weight is None or weight.shape != tensor.shape:
                got = "nothing" if weight is None else "x".join(map(str, weight.shape))
                missing.append(f"{owner}.{name} ({'x'.join(map(str, tensor.shape))}, got {got})")
            else:
                tensor.copy_(weight)
    if missing and owner != "tail":
        raise ScenarioError(FIELD, f"{path} does not fit the {owner}: {format_list(missing, 3)}")


def _find_file(path: Path) -> Path:
    """Return the file of weights that a path names: itself, or in an export's or run's folder."""
    if path.is_file():
        return path
    files = path.glob("checkpoints/round-*/state.safetensors")
    rounds = {file.parent.name.removeprefix("round-"): file for file in files}
    # By number, and without the folder of a checkpoint that was not completed.
    newest = sorted(filter(str.isdecimal, rounds), key=int, reverse=True)
    for file in (path / _FILE, *(rounds[number] for number in newest)):
        if file.is_file():
            return file
    raise ScenarioError(
        FIELD,
        f"{path} has no weights; allowed: a .safetensors file, a folder that `simsplit export` "
        "wrote, or a run directory",
    )


@lru_cache(maxsize=2)
def _read(path: Path, changed: float) -> dict[str, Tensor]:
    """Read all weights of a file, by name; a checkpoint's other tensors are left out."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    del changed  # a part of the cache's key only: a file that was written again is read again
    try:
        tensors: dict[str, Tensor] = unstack_clients(load_file(_find_file(path)))
    except (OSError, SafetensorError) as error:
        raise ScenarioError(FIELD, f"{path} is not a safetensors file ({error})") from None
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    for prefix in _BEFORE:
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = tensor
    return weights
