"""Networks that a Python call passes: any module, cut by the names of its layers; or three modules.

torch.fx traces only the modules that a cut goes through: the network itself, and modules that
contain a named layer. All other layers stay unchanged, so their code need not be traceable.
"""

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError, suggest
from simsplit.models.fresh import (
    InputShape,
    SegmentRequest,
    Segments,
    Shape,
    SplitConfig,
    copy_fresh,
)
from simsplit.objects_by_digest import get_held, hold
from simsplit.seeds import rng_for

Place = str | int
_PROBES = 2
"""Number of samples in the batch that measures a network."""


class SplitModel:
    """A user's network, cut in three.

    Args:
        modules: The network; or head, trunk and tail.
        cut: The names of the head's last layer and of the tail's first layer. For an nn.Sequential
            also two positions, as in `net[:1]`, `net[1:4]`, `net[4:]`.
        fresh: Whether weights are drawn by the scenario's seed; false: the network's weights.

    >>> SplitModel(torchvision.models.resnet18(num_classes=10), cut=("layer1", "fc"))
    ... # doctest: +SKIP
    """

    def __init__(
        self,
        *modules: nn.Module,
        cut: tuple[Place, Place] | None = None,
        fresh: bool = False,
    ) -> None:
        self.fresh, self.whole = fresh, None
        if len(modules) == 3 and cut is None:
            self.segments = Segments(*modules)
        elif len(modules) == 1 and cut is not None:
            (self.whole,) = modules
            self.segments = _cut(modules[0], cut)
        else:
            raise ScenarioError("model", _explain_arguments(modules, cut))
        _refuse_shared(self.segments)

    def measure(self, input_shape: InputShape) -> tuple[Shape, Shape, int]:
        """Return cut shape, feature shape and number of outputs, from a forward pass.

        Raise ScenarioError if the three segments do not compute exactly what the network does.
        """
        x = torch.rand(_PROBES, *input_shape, generator=rng_for(0, "own model"))
        copies = [copy.deepcopy(segment).cpu().eval() for segment in self.segments]
        crossing, out = [], x
        for name, segment in zip(Segments._fields, copies, strict=True):
            try:
                with torch.enable_grad():
                    out = segment(out.detach().requires_grad_())
            except Exception as error:  # noqa: BLE001 - whatever a user's layers raise
                raise ScenarioError(
                    "model",
                    f"its {name} cannot be applied to samples of shape {input_shape}: {error}",
                ) from None
            if not isinstance(out, Tensor) or len(out) != _PROBES:
                raise ScenarioError(
                    "model", f"its {name} must return one tensor with a row per sample"
                )
            crossing.append(tuple(out.shape[1:]))
        if self.whole is not None:
            with torch.no_grad():
                expected = copy.deepcopy(self.whole).cpu().eval()(x)
            if not torch.equal(out.detach(), expected):
                raise ScenarioError(
                    "model", "its three segments compute other outputs than the whole network"
                )
        if len(crossing[2]) != 1:
            raise ScenarioError(
                "model", f"must return a score per class, got the shape {crossing[2]} per sample"
            )
        return crossing[0], crossing[1], crossing[2][0]

    def __getstate__(self) -> dict[str, Any]:
        """Add the names of frozen weights: between processes, weights cross as plain tensors."""
        frozen = [
            [name for name, weight in segment.named_parameters() if not weight.requires_grad]
            for segment in self.segments
        ]
        return {**self.__dict__, "whole": None, "frozen": frozen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Turn plain tensors into parameters again."""
        frozen = state.pop("frozen")
        self.__dict__.update(state)
        for segment, names in zip(self.segments, frozen, strict=True):
            for module in segment.modules():
                weights: dict[str, Any] = dict(module._parameters)
                for name, weight in weights.items():
                    if weight is not None and not isinstance(weight, nn.Parameter):
                        module._parameters[name] = nn.Parameter(weight)
            for name, weight in segment.named_parameters():
                weight.requires_grad_(name not in names)

    @property
    def digest(self) -> str:
        """The hash of layers and weights."""
        return self._hash(lambda tensor: tensor.flatten().view(torch.uint8).numpy())

    @property
    def architecture(self) -> str:
        """The hash of layers alone: a fresh network of the same class has the same."""
        return self._hash(lambda tensor: repr((tensor.shape, tensor.dtype)).encode())

    def _hash(self, write: Callable[[Tensor], Any]) -> str:
        """Hash the layers, and what is written of each weight."""
        hasher = hashlib.blake2b(digest_size=8)
        for segment in self.segments:
            hasher.update(repr(segment).encode())
            hasher.update(getattr(segment, "code", "").encode())
            for name, tensor in segment.state_dict().items():
                hasher.update(name.encode())
                hasher.update(write(tensor.detach().cpu().contiguous()))
        return hasher.hexdigest()


class GivenModel(SplitConfig):
    """A network passed from Python: `run(scenario, model=...)`. Scenarios do not set it by hand."""

    kind: Literal["given"] = "given"
    digest: str = ""
    """Hash of layers and weights."""
    architecture: str = ""
    """Hash of layers alone. A resumed run must get such a network again, whatever its weights."""
    fresh: bool = False
    """Whether weights are drawn by the seed; false: the network's weights."""

    @property
    def is_available_offline(self) -> bool:
        return get_held(self.digest) is not None

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        return _measure_once(self._get_model(), input_shape)[:2]

    def make_segment(self, request: SegmentRequest) -> nn.Module:
        outputs = _measure_once(self._get_model(), request.input_shape)[2]
        if outputs < request.num_classes:
            raise ScenarioError(
                "model", f"returns {outputs} scores, but there are {request.num_classes} classes"
            )
        given: nn.Module = getattr(self._get_model().segments, request.owner)
        if self.fresh:
            return copy_fresh(given, request.owner, request.seed, request.scope).train()
        return copy.deepcopy(given).train()

    def _get_model(self) -> SplitModel:
        if (model := get_held(self.digest)) is None:
            raise ScenarioError(
                "model",
                f"was passed from Python (digest {self.digest}); pass it again: "
                "run('RUN/scenario.yaml', 'RUN', resume=True, model=...)",
            )
        return cast("SplitModel", model)


def hold_model(model: SplitModel | nn.Module | Sequence[nn.Module]) -> GivenModel:
    """Keep a network in this process from now on, and return its config."""
    if isinstance(model, nn.Module):
        model = SplitModel(model)
    elif not isinstance(model, SplitModel):
        model = SplitModel(*model)
    digest = model.digest
    hold({digest: model})
    return GivenModel(digest=digest, architecture=model.architecture, fresh=model.fresh)


def hold_model_again(kept: GivenModel, model: SplitModel | nn.Module | Sequence[nn.Module]) -> None:
    """Keep a network, of any weights, in place of the one that a finished run began with.

    Raise ScenarioError if it has other layers.
    """
    config = hold_model(model)
    attribute = "architecture" if kept.architecture else "digest"
    if getattr(kept, attribute) != getattr(config, attribute):
        raise ScenarioError(
            "model", "has other layers than the network that the run was given; pass such a one"
        )
    # The very network of the run, if this process has it, is not replaced by one like it.
    if get_held(kept.digest) is None:
        hold({kept.digest: get_held(config.digest)})


def _measure_once(model: SplitModel, input_shape: InputShape) -> tuple[Shape, Shape, int]:
    """Return the model's measurements, which are taken once per shape."""
    known: dict[InputShape, tuple[Shape, Shape, int]] = model.__dict__.setdefault("_known", {})
    if input_shape not in known:
        known[input_shape] = model.measure(input_shape)
    return known[input_shape]


def _explain_arguments(modules: Sequence[nn.Module], cut: object) -> str:
    """Return what is wrong with the arguments of SplitModel."""
    if len(modules) == 1:
        names = ", ".join(name for name, _ in modules[0].named_children())
        return (
            "needs a cut: SplitModel(net, cut=(the head's last layer, the tail's first)); "
            f"its layers: {names}"
        )
    got = f"{len(modules)} modules" + ("" if cut is None else " and a cut")
    return f"must be one network and a cut, or head, trunk and tail; got {got}"


def _cut(net: nn.Module, cut: tuple[Place, Place]) -> Segments:
    if isinstance(net, nn.Sequential) and all(isinstance(place, int) for place in cut):
        first, second = (cast("int", place) for place in cut)
        first, second = (place + len(net) * (place < 0) for place in (first, second))
        if not 0 < first < second < len(net):
            raise ScenarioError(
                "model.cut",
                f"must leave a layer or more to each segment, got {cut} of {len(net)} layers",
            )
        return Segments(net[:first], net[first:second], net[second:])
    return _cut_by_names(net, *map(str, cut))


def _cut_by_names(net: nn.Module, last: str, first: str) -> Segments:
    """Cut a traced network after the layer `last` and before the layer `first`."""
    from torch import fx
    from torch.fx.passes.split_module import split_module

    graph = _trace(net, last, first)
    nodes = list(graph.nodes)
    ends = {node.target: place for place, node in enumerate(nodes) if node.op == "call_module"}
    if last not in ends or first not in ends or ends[last] >= ends[first]:
        raise ScenarioError("model.cut", f"'{last}' must come before '{first}' in a forward pass")
    places = {node: place for place, node in enumerate(nodes)}

    def number_segment(node: Any) -> int:  # noqa: ANN401 - fx's
        return (places[node] > ends[last]) + (places[node] >= ends[first])

    whole = split_module(fx.GraphModule(net, graph), net, number_segment)
    made = [module for _, module in whole.named_children()]
    if len(made) != 3:
        raise ScenarioError("model.cut", f"leaves no layer between '{last}' and '{first}'")
    for name, module in zip(Segments._fields, made, strict=True):
        _refuse_several(name, cast("fx.GraphModule", module))
    return Segments(*made)


def _trace(net: nn.Module, *cuts: str) -> Any:  # noqa: ANN401 - fx's
    """Trace the network into a graph in which each named layer is one node."""
    from torch import fx

    layers = dict(net.named_modules())
    for name in cuts:
        if name not in layers or not name:
            known = [layer for layer in layers if layer]
            children = ", ".join(child for child, _ in net.named_children())
            raise ScenarioError(
                "model.cut", f"has no layer '{name}'{suggest(name, known)} allowed: {children}"
            )
    holders = {name.rsplit(".", up)[0] for name in cuts for up in range(1, name.count(".") + 1)}

    class Tracer(fx.Tracer):
        """A tracer that enters only modules that contain a cut."""

        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name in cuts or module_qualified_name not in holders

    try:
        return Tracer().trace(net)
    except Exception as error:  # noqa: BLE001 - what a user's forward does
        raise ScenarioError(
            "model", f"cannot be traced by torch.fx ({error}); pass head, trunk and tail instead"
        ) from None


def _refuse_several(name: str, module: Any) -> None:  # noqa: ANN401 - a GraphModule
    """Raise ScenarioError if several tensors would cross the cut at this segment."""
    takes = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    gives = module.graph.output_node().args[0]
    if len(takes) != 1 or isinstance(gives, tuple | list):
        several = takes if len(takes) != 1 else [str(each) for each in gives]
        raise ScenarioError(
            "model.cut",
            f"several tensors would cross at the {name}: {', '.join(several)}; cut where one does, "
            "such as after a whole block",
        )


def _refuse_shared(segments: Segments) -> None:
    """Raise ScenarioError if two segments would share weights."""
    owners: dict[int, str] = {}
    for name, segment in zip(Segments._fields, segments, strict=True):
        for weight, parameter in segment.named_parameters():
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise ScenarioError(
                    "model.cut", f"{other} and {name} would share the weights '{weight}'"
                )
