"""What a hook's result must agree with beyond its type: the input's rows, and declared shapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from simsplit.attacks import Attack
from simsplit.attacks.attack import payloads
from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.dealing import Dealing
from simsplit.data.samples import DataInfo, DataSet
from simsplit.data.source_config import SourceConfig
from simsplit.detectors.detector import Detector, SignalDetector
from simsplit.legs import Leg
from simsplit.methods.method import Method, MethodConfig, Share, Trait
from simsplit.methods.stack import has_form
from simsplit.models.fresh import Shape
from simsplit.packets import Packet, TensorForm
from simsplit.plugins.expectations import describe, find_nan, is_finite
from simsplit.poisons import Poison
from simsplit.poisons.poison import BatchPoison
from simsplit.schedules.averaging import StrategyConfig


@dataclass(frozen=True)
class Owner:
    """The part of a plugin to which an object belongs."""

    plugin: str
    part: str
    name: str
    config: Config | None = None
    leg: Leg | None = None
    """The leg on which the object acts; None: several, or none."""
    given: Shape | None = None
    """Shape of a sample that the object is given; None: unknown."""
    made: Shape | None = None
    """Shape of a sample that it makes of it."""
    features: Shape | None = None
    """Shape of a sample of features that a method's `decode` returns as well."""


class Wrong(NamedTuple):
    """What is wrong with a hook's result."""

    expected: str
    came: str


Check = Callable[[Owner, Any, Sequence[Any], Any], Wrong | None]
"""Takes the owner, the object, the hook's arguments and its result."""
ROWS = "_simsplit_rows"
"""Attribute of an attack whose work is done: the number of targets, if each has a row."""
_PACKED = WeakIdKeyDictionary()
"""By payload on the wire: the shapes before `pack`, by method. Other processes have none."""

_DESCRIBED = WeakIdKeyDictionary()
"""By source: what its `describe` returned."""


def _compare(made: Tensor, shape: Sequence[int]) -> Wrong | None:
    if tuple(made.shape) == tuple(shape):
        return None
    return Wrong(f"a Tensor of shape {tuple(shape)}", describe(made))


def _keep_rows(configs: Sequence[Config | None]) -> bool:
    """Return whether each row is one sample after these methods."""
    return not any(
        isinstance(c, MethodConfig) and Trait.SAMPLES in c.get_ended_traits() for c in configs
    )


def _check_encoded(
    owner: Owner, _: Method, args: Sequence[Any], made: Tensor, *, back: bool = False
) -> Wrong | None:
    before, after = (owner.made, owner.given) if back else (owner.given, owner.made)
    x: Tensor = args[0]
    if before is None or after is None or tuple(x.shape[1:]) != before:
        return None  # texts are shorter than the longest one
    rows = len(x) if _keep_rows([owner.config]) or not made.ndim else len(made)
    return _compare(made, (rows, *after))


def _check_decoded(owner: Owner, _: Method, args: Sequence[Any], made: Tensor) -> Wrong | None:
    same = tuple(args[0].shape[1:]) == owner.features and _keep_rows([owner.config])
    return _compare(made, args[0].shape) if same else None


def _check_packed(
    owner: Owner, method: Method, args: Sequence[Any], made: Sequence[Tensor]
) -> Wrong | None:
    x, step = args
    if step.leg is not None:
        forms = tuple(method.pack_form(TensorForm.of(x), step.leg))
        if len(made) != len(forms):
            return Wrong(f"{len(forms)} tensors (pack_form or num_side)", describe(made))
        if has_form(method) and (came := tuple(map(TensorForm.of, made))) != forms:
            return Wrong(f"{_describe_forms(forms)} (pack_form)", _describe_forms(came))
    _PACKED.setdefault(made[0], {})[owner.name, owner.leg] = x.shape
    return None


def _describe_forms(forms: Sequence[TensorForm]) -> str:
    return " and ".join(f"a Tensor of {form.dtype} of shape {form.shape}" for form in forms)


def _check_unpacked(owner: Owner, _: Method, args: Sequence[Any], made: Tensor) -> Wrong | None:
    shape = _PACKED.get(args[0][0], {}).get((owner.name, owner.leg))
    return None if shape is None else _compare(made, shape)


def _check_loss(_: Owner, __: Method, ___: Sequence[Any], made: Tensor | None) -> Wrong | None:
    if made is None or made.numel() == 1:
        return None
    return Wrong("a Tensor with one value", describe(made))


def _check_shares(
    _: Owner, method: Method, args: Sequence[Any], made: Sequence[Share]
) -> Wrong | None:
    if not isinstance(made, tuple | list):
        return None
    if len(made) != method.num_messages:
        return Wrong(f"{method.num_messages} Shares (num_messages)", f"{len(made)} Shares")
    wrong = (_compare(share.grad, args[0].shape) for share in made)
    return next(filter(None, wrong), None)


def _check_transformed(owner: Owner, _: Method, __: Sequence[Any], made: Batch) -> Wrong | None:
    if len(made.inputs) == len(made.labels) or not _keep_rows([owner.config]):
        return None
    return Wrong(f"{len(made.inputs)} labels, one of each input", describe(made.labels))


def _check_batch(_: Owner, __: Poison, args: Sequence[Any], made: Batch) -> Wrong | None:
    given: Batch = args[0]
    names = ("inputs", "labels", "indices")
    wrong = (_compare(getattr(made, name), getattr(given, name).shape) for name in names)
    return next(filter(None, wrong), None)


def _check_packet(_: Owner, __: object, args: Sequence[Any], made: Packet) -> Wrong | None:
    given: Packet = args[0]
    forms = [[tuple(tensor.shape) for tensor in packet.tensors] for packet in (given, made)]
    if forms[0] == forms[1]:
        return None
    return Wrong(f"tensors of shapes {forms[0]}", f"tensors of shapes {forms[1]}")


def _check_alike(_: Owner, __: object, args: Sequence[Any], made: Tensor) -> Wrong | None:
    return _compare(made, args[0].shape)


def _check_scores(
    _: Owner, detector: Detector, __: object, made: Mapping[Any, float]
) -> Wrong | None:
    if not all(isinstance(client, Integral) for client in made):
        return Wrong("scores by the numbers of clients", describe(made))
    if not detector.averages and any(isinstance(score, bool) for score in made.values()):
        return Wrong("numbers, not yes and no", describe(made))
    return None


def _check_compared(_: Owner, __: object, args: Sequence[Any], made: Tensor) -> Wrong | None:
    if made.dtype is torch.bool:  # distances between scores are subtracted
        return Wrong("a Tensor of numbers, not of yes and no", f"{describe(made)} of {made.dtype}")
    return _compare(made, (len(args[0]),))


def _check_one_each(_: Owner, __: object, args: Sequence[Any], made: Tensor) -> Wrong | None:
    return _compare(made, (len(args[0]),))


def _count_targets(owner: Owner, attack: Attack, args: Sequence[Any], _: object) -> None:
    """Note how many rows an attack whose work is done must have recovered."""
    known = getattr(attack, "known", None)
    if known is not None and _keep_rows(known.methods):
        rows = sum(len(packet.tensors[0]) for packet in payloads(args[0]))
        vars(attack)[ROWS] = rows // getattr(owner.config, "num_epochs", 1)


def _check_recovered(owner: Owner, attack: Attack, _: Sequence[Any], made: Tensor) -> Wrong | None:
    known, rows = getattr(attack, "known", None), vars(attack).get(ROWS)
    recovers = getattr(owner.config, "recovers", None)
    if known is None or not rows or recovers != "inputs" or len(known.image) != 3:
        return None
    return _compare(made, (rows, *known.image))


def _note_description(_: Owner, source: SourceConfig, __: Sequence[Any], made: object) -> None:
    """Note what a source says of its data. `load` cannot ask, as `describe` may load the data."""
    _DESCRIBED[source] = made


def _check_loaded(_: Owner, source: SourceConfig, __: Sequence[Any], made: DataSet) -> Wrong | None:
    for name, samples in (("training", made.train), ("test", made.test)):
        highest = len(made.class_names) - 1
        if samples.texts is None and len(samples) and samples.labels.max() > highest:
            return Wrong(
                f"{name} labels from 0 to {highest}, a class name for each",
                f"labels up to {int(samples.labels.max())}",
            )
    info: DataInfo | None = _DESCRIBED.get(source)
    if info is None or (info.shape, info.classes) == (made.info.shape, made.info.classes):
        return None
    return Wrong(
        f"samples of shape {info.shape} and {info.classes} classes, as `describe` says",
        f"samples of shape {made.info.shape} and {made.info.classes} classes",
    )


def _check_strategy(_: Owner, __: object, ___: Sequence[Any], made: Any) -> Wrong | None:  # noqa: ANN401
    if callable(getattr(made, AVERAGING[0], None)) and not isinstance(made, type):
        return None
    came = f"the class {made.__name__}" if isinstance(made, type) else describe(made)
    return Wrong(f"a strategy of Flower, with {AVERAGING[0]}", came)


def _check_averaged(_: Owner, __: object, args: Sequence[Any], made: Sequence[Any]) -> Wrong | None:
    """Compare averaged weights with those of the first reply, by name and shape."""
    replies: Sequence[Any] = args[1]
    given = [each.content["arrays"].to_torch_state_dict() for each in replies]
    wanted = "a pair of an ArrayRecord with the replies' weights, and of metrics or None"
    if len(made) != 2 or not hasattr(made[0], "to_torch_state_dict"):
        return Wrong(wanted, describe(made))
    averaged = made[0].to_torch_state_dict()
    for name, tensor in given[0].items():
        if name not in averaged:
            return Wrong(f"weights '{name}'", "no weights of this name")
        if wrong := _compare(averaged[name], tensor.shape):
            return wrong
    if find_nan(averaged) and is_finite(given):
        return Wrong(f"{wanted}, without NaN", "weights with NaN")
    return None


def _check_parts(_: Owner, __: object, args: Sequence[Any], made: Sequence[Any]) -> Wrong | None:
    count = args[1]
    return None if len(made) == count else Wrong(f"{count} arrays of rows", f"{len(made)} arrays")


CHECKS: dict[tuple[type, str], Check] = {
    (Method, "encode"): _check_encoded,
    (Method, "lift"): partial(_check_encoded, back=True),
    (Method, "decode"): _check_decoded,
    (Method, "pack"): _check_packed,
    (Method, "unpack"): _check_unpacked,
    (Method, "compute_encode_loss"): _check_loss,
    (Method, "compute_task_loss"): _check_loss,
    (Method, "compute_tail_loss"): _check_loss,
    (Method, "read_outputs"): _check_alike,
    (Method, "split_gradient"): _check_shares,
    (Method, "transform"): _check_transformed,
    (Poison, "on_batch"): _check_batch,
    (Poison, "on_packet"): _check_packet,
    (BatchPoison, "relabel"): _check_alike,
    (BatchPoison, "change"): _check_alike,
    (BatchPoison, "add_trigger"): _check_alike,
    (BatchPoison, "find_candidates"): _check_one_each,
    (BatchPoison, "find_judged"): _check_one_each,
    (Detector, "score"): _check_scores,
    (SignalDetector, "compare"): _check_compared,
    (Attack, "answer"): _check_packet,
    (Attack, "work"): _count_targets,
    (Attack, "recovered"): _check_recovered,
    (SourceConfig, "describe"): _note_description,
    (SourceConfig, "load"): _check_loaded,
    (Dealing, "draw"): _check_parts,
    (StrategyConfig, "make_strategy"): _check_strategy,
}
"""The checks, by the class that declares a hook and the hook."""
FAIL_INHERITED = frozenset({(StrategyConfig, "make_strategy")})
"""Hooks that ship and fail by what a plugin's class declares, such as options of Flower's."""
AVERAGING: tuple[str, Check] = ("aggregate_train", _check_averaged)
"""The hook of Flower's strategies that simsplit calls."""
