"""Networks that a Python call passes: any module, cut by the names of its layers; or three modules.

torch.fx traces only what a cut goes through: the network itself and whatever holds a named layer.
All other layers stay as they are, so their code may do what it likes.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError, near
from simsplit.held import held, hold
from simsplit.models.fresh import InputShape, SegmentRequest, Segments, Shape, SplitConfig, fresh
from simsplit.seeds import rng_for

Place = str | int
FEW = 2


class SplitModel:
    """A network of one's own, cut in three.

    Args:
        modules: The network; or head, trunk and tail.
        cut: Where the network is cut: the name of the head's last layer, and that of the tail's
            first. Of an nn.Sequential also two positions, as in `net[:1]`, `net[1:4]`, `net[4:]`.
        fresh: Whether weights are drawn anew by the scenario's seed; false: as they are.

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
            raise ScenarioError("model", _unclear(modules, cut))
        _refuse_shared(self.segments)

    def measured(self, input_shape: InputShape) -> tuple[Shape, Shape, int]:
        """Cut, features and number of outputs; held exactly against the whole network."""
        x = torch.rand(FEW, *input_shape, generator=rng_for(0, "own model"))
        copies = [copy.deepcopy(segment).cpu().eval() for segment in self.segments]
        crossing, out = [], x
        for name, segment in zip(Segments._fields, copies, strict=True):
            try:
                with torch.enable_grad():
                    out = segment(out.detach().requires_grad_())
            except Exception as error:  # noqa: BLE001 - whatever a user's layers raise
                raise ScenarioError(
                    "model", f"its {name} cannot be applied to samples of {input_shape}: {error}"
                ) from None
            if not isinstance(out, Tensor) or len(out) != FEW:
                raise ScenarioError(
                    "model", f"its {name} must put out one tensor, a row per sample"
                )
            crossing.append(tuple(out.shape[1:]))
        if self.whole is not None:
            with torch.no_grad():
                expected = copy.deepcopy(self.whole).cpu().eval()(x)
            if not torch.equal(out.detach(), expected):
                raise ScenarioError("model", "cut in three it gives other outputs than as a whole")
        if len(crossing[2]) != 1:
            raise ScenarioError("model", f"must put out a score per class, got {crossing[2]}")
        return crossing[0], crossing[1], crossing[2][0]

    def __getstate__(self) -> dict[str, Any]:
        """With the names of frozen weights: between processes weights cross as plain tensors."""
        frozen = [
            [name for name, weight in segment.named_parameters() if not weight.requires_grad]
            for segment in self.segments
        ]
        return {**self.__dict__, "whole": None, "frozen": frozen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Weights again, and no plain tensors."""
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
        """Of layers and weights."""
        hasher = hashlib.blake2b(digest_size=8)
        for segment in self.segments:
            hasher.update(repr(segment).encode())
            hasher.update(getattr(segment, "code", "").encode())
            for name, tensor in segment.state_dict().items():
                hasher.update(name.encode())
                hasher.update(
                    tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
                )
        return hasher.hexdigest()


class GivenModel(SplitConfig):
    """A network passed from Python: `run(scenario, model=...)`. Not to be written by hand."""

    kind: Literal["given"] = "given"
    digest: str = ""
    """Of layers and weights; a resumed run must be passed the same again."""
    fresh: bool = False
    """Whether weights are drawn anew by the seed."""

    @property
    def at_hand(self) -> bool:
        """Whether it was passed in this process."""
        return held(self.digest) is not None

    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """As a pass of the network itself has them."""
        cut, features, _ = _measured(self._model(), input_shape)
        return cut, features

    def make_segment(self, asked: SegmentRequest) -> nn.Module:
        """Copy a segment of the network, with its weights or others."""
        outputs = _measured(self._model(), asked.input_shape)[2]
        if outputs < asked.num_classes:
            raise ScenarioError(
                "model", f"puts out {outputs} scores, and there are {asked.num_classes} classes"
            )
        given: nn.Module = getattr(self._model().segments, asked.owner)
        if self.fresh:
            return fresh(given, asked.owner, asked.seed, asked.scope).train()
        return copy.deepcopy(given).train()

    def _model(self) -> SplitModel:
        model = held(self.digest)
        if model is None:
            raise ScenarioError(
                "model",
                f"was passed from Python (digest {self.digest}); do so again: "
                "run('RUN/scenario.yaml', 'RUN', resume=True, model=...)",
            )
        return cast("SplitModel", model)


def given_model(model: SplitModel | nn.Module | Sequence[nn.Module]) -> GivenModel:
    """The config of a network that was passed; it is held in this process from now on."""
    if isinstance(model, nn.Module):
        model = SplitModel(model)
    elif not isinstance(model, SplitModel):
        model = SplitModel(*model)
    digest = model.digest
    hold({digest: model})
    return GivenModel(digest=digest, fresh=model.fresh)


def _measured(model: SplitModel, input_shape: InputShape) -> tuple[Shape, Shape, int]:
    """As `measured`, once for each shape."""
    known: dict[InputShape, tuple[Shape, Shape, int]] = model.__dict__.setdefault("_known", {})
    if input_shape not in known:
        known[input_shape] = model.measured(input_shape)
    return known[input_shape]


def _unclear(modules: Sequence[nn.Module], cut: object) -> str:
    if len(modules) == 1:
        names = ", ".join(name for name, _ in modules[0].named_children())
        return (
            "say where it is cut: SplitModel(net, cut=(the head's last layer, the tail's first)); "
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
                "model.cut", f"got {cut}; each part of {len(net)} layers must have one at least"
            )
        return Segments(net[:first], net[first:second], net[second:])
    return _traced(net, *map(str, cut))


def _traced(net: nn.Module, last: str, first: str) -> Segments:
    """Three graphs: up to the layer `last`, on to the layer `first`, and from there."""
    from torch import fx
    from torch.fx.passes.split_module import split_module

    graph = _graph(net, last, first)
    nodes = list(graph.nodes)
    ends = {node.target: place for place, node in enumerate(nodes) if node.op == "call_module"}
    if last not in ends or first not in ends or ends[last] >= ends[first]:
        raise ScenarioError("model.cut", f"'{last}' must come before '{first}' in a forward pass")
    places = {node: place for place, node in enumerate(nodes)}

    def part(node: Any) -> int:  # noqa: ANN401 - fx's
        return (places[node] > ends[last]) + (places[node] >= ends[first])

    whole = split_module(fx.GraphModule(net, graph), net, part)
    made = [module for _, module in whole.named_children()]
    if len(made) != 3:
        raise ScenarioError("model.cut", f"nothing is left between '{last}' and '{first}'")
    for name, module in zip(Segments._fields, made, strict=True):
        _refuse_several(name, cast("fx.GraphModule", module))
    return Segments(*made)


def _graph(net: nn.Module, *cuts: str) -> Any:  # noqa: ANN401 - fx's
    """The network's graph, opened as far as the cuts go; each named layer is one node."""
    from torch import fx

    layers = dict(net.named_modules())
    for name in cuts:
        if name not in layers or not name:
            known = [layer for layer in layers if layer]
            children = ", ".join(child for child, _ in net.named_children())
            raise ScenarioError(
                "model.cut", f"has no layer '{name}'{near(name, known)} allowed: {children}"
            )
    holders = {name.rsplit(".", up)[0] for name in cuts for up in range(1, name.count(".") + 1)}

    class Tracer(fx.Tracer):
        """Goes into what holds a cut, and no further."""

        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            del m
            return module_qualified_name in cuts or module_qualified_name not in holders

    try:
        return Tracer().trace(net)
    except Exception as error:  # noqa: BLE001 - what a user's forward does
        raise ScenarioError(
            "model", f"cannot be traced by torch.fx ({error}); pass head, trunk and tail instead"
        ) from None


def _refuse_several(name: str, module: Any) -> None:  # noqa: ANN401 - a GraphModule
    """A segment must take one tensor and give one: that is what crosses the cut."""
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
    """Weights that two parties would both have."""
    owners: dict[int, str] = {}
    for name, segment in zip(Segments._fields, segments, strict=True):
        for weight, parameter in segment.named_parameters():
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise ScenarioError(
                    "model.cut", f"{other} and {name} would share the weights '{weight}'"
                )
