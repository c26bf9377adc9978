"""Plugins' parts are guarded here: a hook that fails raises a PluginError, which names the hook.

A hook is a function or property that a base class of simsplit declares and a plugin's class
overrides. A guarded one calls it and checks its result: against the type that the base class
declares, for NaN, and against `CHECKS`. Hooks of a plugin's configs are replaced on the class. What
these build becomes an object of a guarded subclass; a plugin's other classes stay unchanged, and so
do those of simsplit.
"""

import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from traceback import walk_tb
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from simsplit.attacks import Attack
from simsplit.config import Config
from simsplit.detectors import Detector
from simsplit.detectors.detector import RoundView
from simsplit.errors import Fault, PluginError
from simsplit.legs import Leg
from simsplit.methods.method import Method, MethodConfig, Site, Step
from simsplit.models.fresh import Owner as Segment
from simsplit.models.fresh import SegmentRequest, Segments, Shape, SplitConfig
from simsplit.packets import Packet
from simsplit.plugins.checks import AVERAGING, CHECKS, FAIL_INHERITED, Check, Owner, Wrong
from simsplit.plugins.expectations import (
    describe,
    describe_annotation,
    find_nan,
    fits,
    is_finite,
    read_annotation,
)
from simsplit.plugins.parts import METRICS, PARTS
from simsplit.plugins.tracing import FAILURES, PASSED
from simsplit.poisons import Poison
from simsplit.progress import Observer, RoundEnded
from simsplit.schedules.averaging import StrategyConfig

_OWNER, _TAINTED = "_simsplit_owner", "_simsplit_tainted"
"""Attributes of guarded objects: the part that they belong to, and whether a hook was given values
that are not finite, as in a training that diverges. Its NaN are not the plugin's fault then."""
_LEGS = {
    "transform": Leg.SMASHED,
    "stand_in": Leg.SMASHED,
    "decode": Leg.FEATURES,
    "compute_task_loss": Leg.FEATURES_GRAD,
    "read_outputs": Leg.FEATURES,
    "compute_tail_loss": Leg.FEATURES_GRAD,
    "split_gradient": Leg.FEATURES_GRAD,
    "compute_encode_loss": Leg.SMASHED_GRAD,
    "accept": Leg.SMASHED_GRAD,
}
"""The legs of a method's hooks that are the same wherever the method acts."""
_SEGMENT_LEGS: dict[Segment, Leg | None] = {
    "head": Leg.SMASHED,
    "trunk": Leg.FEATURES,
    "tail": None,
}
_STATE = "state"
"""The hook whose tensors are for checkpoints, in which NaN may stand for nothing."""
_configs: WeakKeyDictionary[type, tuple[str, str]] = WeakKeyDictionary()
"""By config class: the plugin that brought it, and the kind of part that it is."""


class _Hook(NamedTuple):
    """A hook of a plugin's class."""

    name: str
    function: Callable[..., Any]
    returns: Any
    """The annotation of its result."""
    check: Check | None = None


def guard_parts(plugin: str, name: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Guard a plugin's parts of one kind, and return them.

    A config class guards all objects that its instances build. Topologies stay as they are.
    """
    if name == METRICS:
        return {
            kind: GuardedMetric(Owner(plugin, "metric", kind), function)
            for kind, function in parts.items()
        }
    if name in PARTS:
        for config in parts.values():
            if config not in _configs:
                _configs[config] = plugin, PARTS[name].word
                for hook, guarded in _guard_hooks(config).items():
                    setattr(config, hook, guarded)
    return dict(parts)


@dataclass(frozen=True)
class GuardedMetric:
    """A plugin's metric; it can be pickled, as the function can."""

    owner: Owner
    function: Callable[[Tensor, Tensor], float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.function.__doc__)  # the catalogue lists it

    def __call__(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the metric of some outputs, after a check."""
        hook = _Hook(getattr(self.function, "__name__", "call"), self.function, float)
        result: float = _call(hook, self.owner, self, outputs, labels)
        return result


def _guard_hooks(cls: type) -> dict[str, Any]:
    """Return guarded functions and properties in place of a class's hooks."""
    guarded = dict[str, Any]()
    for name in dir(cls):
        defining = next((each for each in cls.__mro__ if name in vars(each)), None)
        declaring = next((e for e in reversed(cls.__mro__) if name in vars(e) and _ships(e)), None)
        if name.startswith("_") or defining is None or declaring is None:
            continue
        if _ships(defining) and (declaring, name) not in FAIL_INHERITED:
            continue  # it cannot fail by a plugin
        own, declared = vars(defining)[name], vars(declaring)[name]
        is_property = isinstance(own, property) and isinstance(declared, property)
        function, base = (own.fget, declared.fget) if is_property else (own, declared)
        if not (isinstance(function, FunctionType) and isinstance(base, FunctionType)):
            continue
        if not hasattr(function, "__guarded__"):  # as a config's base class may have it
            check = CHECKS.get((declaring, name))
            run = _guard_function(_Hook(name, function, read_annotation(base), check))
            guarded[name] = property(run, own.fset, own.fdel) if is_property else run
    return guarded


def _ships(cls: type) -> bool:
    """Return whether a class is simsplit's."""
    return cls.__module__.split(".")[0] == "simsplit"


def _guard_function(hook: _Hook) -> Callable[..., Any]:
    @wraps(hook.function)
    def run_guarded(self: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - any hook
        owner = _find_owner(self)
        if owner is None:  # made by the plugin itself, by `type(self)`
            return hook.function(self, *args, **more)
        return _call(hook, owner, self, self, *args, **more)

    vars(run_guarded)["__guarded__"] = True
    return run_guarded


def find_part_name(made: object) -> str | None:
    """Return the name in scenarios of the plugin's part that built an object; None if none did."""
    owner: Owner | None = vars(made).get(_OWNER)
    return owner.name if owner else None


def _find_owner(of: object) -> Owner | None:
    """Return the part that a plugin's config is, or the one that built an object."""
    if isinstance(of, Config):
        kind = next(_configs[each] for each in type(of).__mro__ if each in _configs)
        return Owner(*kind, of.kind_name, of)
    return vars(of).get(_OWNER)


class _Active(threading.local):
    """The objects of which a hook is running in this thread, and whether NaN is accepted."""

    def __init__(self) -> None:
        self.objects: set[int] = set()
        self.accepts_nan = False

    @contextmanager
    def enter(self, of: object) -> Iterator[bool]:
        """Open a context in which a hook of an object runs; tell whether it is the outermost."""
        outermost = id(of) not in self.objects
        self.objects.add(id(of))
        try:
            yield outermost
        finally:
            if outermost:
                self.objects.discard(id(of))


_active = _Active()


@contextmanager
def accept_nan() -> Iterator[None]:
    """Open a context in which NaN is no fault, as samples are blank: 0 / 0 is to be expected."""
    before, _active.accepts_nan = _active.accepts_nan, True
    try:
        yield
    finally:
        _active.accepts_nan = before


def _call(hook: _Hook, owner: Owner, of: object, *args: Any, **more: Any) -> Any:  # noqa: ANN401
    """Call a hook's function, and return its result, checked and guarded.

    What hooks of the same object give each other, as by `super()`, is the plugin's own affair.
    """
    given = tuple(inspect.signature(hook.function).bind(*args, **more).args) if more else args
    given = given[1:] if given and given[0] is of else given
    with _active.enter(of) as outermost:
        try:
            result = hook.function(*args, **more)
        except PASSED:
            raise
        except FAILURES as error:
            if not outermost:
                raise
            raise _blame(hook, owner, given, error) from error
    if not outermost:
        return result
    if isinstance(result, Iterator):
        return _watch(hook, owner, of, given, result)
    _inspect(hook, owner, of, given, result)
    return _guard_result(hook, owner, given, result)


def _watch(
    hook: _Hook, owner: Owner, of: object, given: Sequence[Any], made: Iterator[Any]
) -> Generator[Any, None, Any]:
    """Yield what an iterator yields, and return what it returns; its exceptions are blamed too."""
    members = _Hook(hook.name, hook.function, (*getattr(hook.returns, "__args__", ()), Any)[0])
    while True:
        with _active.enter(of):
            try:
                each = next(made)
            except StopIteration as end:
                if hook.check is not None:
                    hook.check(owner, of, given, None)
                return end.value
            except PASSED:
                raise
            except FAILURES as error:
                raise _blame(members, owner, given, error) from error
        _inspect(members, owner, of, given, each)
        yield each


def _inspect(hook: _Hook, owner: Owner, of: object, given: Sequence[Any], result: object) -> None:
    """Raise PluginError if a result is of another type or shape than expected, or has NaN."""
    if hook.returns in (None, type(None)):
        return  # nobody reads it
    wrong = None
    if not fits(result, hook.returns):
        wrong = Wrong(describe_annotation(hook.returns), describe(result))
    elif hook.name != _STATE and find_nan(result) and _is_own_nan(of, given):
        wrong = Wrong(f"{describe_annotation(hook.returns)} without NaN", describe(result))
    elif isinstance(of, Detector) and not is_finite(result) and _is_own_nan(of, given):
        # Clients are ranked by their distance from the others, which nothing infinite has.
        wrong = Wrong(f"{describe_annotation(hook.returns)} without infinity", describe(result))
    elif hook.check is not None:
        wrong = hook.check(owner, of, given, result)
    if wrong is not None:
        raise PluginError(_make_fault(hook, owner, given, wrong))


def _is_own_nan(of: object, given: Sequence[Any]) -> bool:
    """Return whether NaN in a result come from the hook rather than from what it was given."""
    if _active.accepts_nan:
        return False
    if isinstance(of, GuardedMetric | Config):
        return is_finite(given)
    state = vars(of)
    module = of if isinstance(of, nn.Module) else state.get("module")
    weights = tuple(module.parameters()) if isinstance(module, nn.Module) else ()
    if not (is_finite(given) and is_finite(weights)):
        state[_TAINTED] = True
    return not state.get(_TAINTED, False)


def _blame(hook: _Hook, owner: Owner, given: Sequence[Any], error: BaseException) -> PluginError:
    """Return the error of a hook that raised an exception."""
    wrong = Wrong(describe_annotation(hook.returns), f"{type(error).__name__}: {error}")
    fault = _make_fault(hook, owner, given, wrong)
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == fault.file:
            fault = replace(fault, line=line)
    return PluginError(fault)


def _make_fault(hook: _Hook, owner: Owner, given: Sequence[Any], wrong: Wrong) -> Fault:
    code = getattr(inspect.unwrap(hook.function), "__code__", None)
    fault = Fault(
        plugin=owner.plugin,
        part=owner.part,
        name=owner.name,
        hook=hook.name,
        expected=wrong.expected,
        came=wrong.came,
        file=code.co_filename if code else "",
        line=code.co_firstlineno if code else 0,
        leg=_LEGS.get(hook.name, owner.leg) if owner.part == "method" else owner.leg,
    )
    for each in given:
        if isinstance(each, Step):
            leg = each.leg if hook.name in ("pack", "unpack") else fault.leg
            client = each.client if each.client >= 0 else None  # an attacker's own steps
            return replace(fault, leg=leg, round=each.round, client=client)
        if isinstance(each, Packet):
            return replace(fault, leg=each.leg, round=each.round, client=each.client)
        if isinstance(each, RoundView):
            return replace(fault, round=each.round)
        if isinstance(each, RoundEnded):
            return replace(fault, round=each.number)
    return fault


def _guard_result(hook: _Hook, owner: Owner, given: Sequence[Any], made: Any) -> Any:  # noqa: ANN401
    """Guard the objects that a hook has built, and return its result."""
    if isinstance(made, Method | Attack | Detector | Poison | Observer):
        site = next((each for each in given if isinstance(each, Site)), None)
        _adopt(made, owner if site is None else _place(owner, site))
    elif isinstance(owner.config, SplitConfig):
        if isinstance(made, Segments):
            for segment in _SEGMENT_LEGS:
                _adopt_segment(getattr(made, segment), owner, segment, *given)
        elif isinstance(made, nn.Module) and isinstance(given[0], SegmentRequest):
            request = given[0]
            _adopt_segment(made, owner, request.owner, request.input_shape, request.num_classes)
    elif isinstance(owner.config, StrategyConfig) and hook.name == "make_strategy":
        name, check = AVERAGING
        _adopt(made, owner, _Hook(name, getattr(type(made), name), tuple, check))
    return made


def _place(owner: Owner, site: Site) -> Owner:
    assert isinstance(owner.config, MethodConfig), "only methods have a site"
    sent = owner.config.compute_sent_shape(site.shape, site.where)
    features = None if site.adapters else site.features
    return replace(owner, leg=site.leg, given=site.shape, made=sent, features=features)


def _adopt(made: Any, owner: Owner, *hooks: _Hook) -> None:  # noqa: ANN401 - of a plugin's class
    """Guard an object, as one that belongs to this part: all its hooks, or the given ones."""
    known = vars(made).get(_OWNER, owner)
    # One object for several sites cannot be held to the shapes of one of them.
    if known != owner:
        owner = Owner(owner.plugin, owner.part, owner.name, owner.config)
    vars(made)[_OWNER] = owner
    if not hasattr(type(made), "__guarded__"):
        kind: Any = type(made)
        object.__setattr__(made, "__class__", _derive(kind, hooks))


@cache
def _derive(cls: type, hooks: tuple[_Hook, ...]) -> type:
    """Return a subclass with guarded hooks, which passes for the class."""
    body = {each.name.split(".")[-1]: _guard_function(each) for each in hooks}
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__guarded__": True}
    return type(cls.__name__, (cls,), {**(body or _guard_hooks(cls)), **own})


def _adopt_segment(
    module: nn.Module, owner: Owner, segment: Segment, input_shape: Shape, classes: int
) -> None:
    """Guard the `forward` of a model's segment."""
    assert isinstance(owner.config, SplitConfig), "only models have segments"
    cut, features = owner.config.compute_shapes(input_shape)
    shapes = {"head": (input_shape, cut), "trunk": (cut, features), "tail": (features, (classes,))}
    given, made = shapes[segment]
    owner = replace(owner, leg=_SEGMENT_LEGS[segment], given=given, made=made)
    _adopt(module, owner, _Hook(f"{segment}.forward", type(module).forward, Tensor, _check_segment))


def _check_segment(owner: Owner, _: object, args: Sequence[Any], made: Tensor) -> Wrong | None:
    if not args or tuple(args[0].shape[1:]) != owner.given or owner.made is None:
        return None
    x, last = args[0], owner.leg is None
    if last and made.ndim > 1 and len(made) == len(x) and made.shape[-1] >= owner.made[0]:
        return None  # a tail may have more outputs than there are classes, and one for each token
    wanted = (len(x), *owner.made)
    if tuple(made.shape) == wanted:
        return None
    return Wrong(f"a Tensor of shape {wanted}", describe(made))
