"""Codecs write calls and answers as messages, and check what they read; nothing is unpickled.

The list of codecs is closed: a deployed client cannot be asked any other call. Each existing call
is in one of two lists, `ANSWERS` or `REFUSED` (a test checks this).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from simsplit.deploy.frames import MOST_COUNT, make_blank
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties import calls
from simsplit.parties.calls import Call
from simsplit.phases import Interleaved, Phase

MOST_WORD = 1000
"""Most characters of a string, and most entries of a mapping."""
SEGMENTS = frozenset({"head", "trunk", "tail", "method"})
_PACKET = ("client", "leg", "round", "step", "names", "session", "position", "tensors", "sealed")
_FLAGS = ("gradients", "task", "crosses", "returns")
_PHASE = ("name", "rounds", "source", "learns", *_FLAGS, "lr", "interleaved")


@dataclass(frozen=True)
class Codec:
    """The way in which one type of value is written and read."""

    write: Callable[[Any, list[Tensor]], object]
    """Appends the value's tensors to a list."""
    read: Callable[[object, Iterator[Tensor]], Any]
    """Takes tensors from an iterator; raises ProtocolError for a value that is not valid."""


def write_value(codec: Codec, value: object) -> tuple[object, list[Tensor]]:
    """Write a value as JSON and tensors."""
    tensors: list[Tensor] = []
    return codec.write(value, tensors), tensors


def read_value(codec: Codec, value: object, tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
    """Read a value that `write_value` wrote; raise ProtocolError for anything else."""
    left = iter(tensors)
    made = codec.read(value, left)
    if next(left, None) is not None:
        raise ProtocolError("a message with more tensors than it names")
    return made


def write_call(call: Call[object]) -> tuple[dict[str, object], list[Tensor]]:
    """Write a call as a header, with its name and fields, and tensors."""
    tensors: list[Tensor] = []
    codecs = _get_field_codecs(type(call).__name__)
    values = {name: codec.write(getattr(call, name), tensors) for name, codec in codecs.items()}
    return {"call": type(call).__name__, "fields": values}, tensors


def read_call(header: Mapping[str, Any], tensors: Sequence[Tensor]) -> Call[object]:
    """Read a call; raise ProtocolError for one that no deployed client answers."""
    name, values = header.get("call"), header.get("fields")
    codecs = _get_field_codecs(name)
    if not isinstance(values, dict) or values.keys() != codecs.keys():
        raise ProtocolError(f"the call {name} with other fields than {sorted(codecs)}")
    left = iter(tensors)
    made = {key: codec.read(values[key], left) for key, codec in codecs.items()}
    if next(left, None) is not None:
        raise ProtocolError(f"the call {name} with more tensors than it names")
    call: Call[object] = _CALLS[str(name)](**made)
    return call


def get_answer_codec(call: Call[object]) -> Codec:
    """Return the codec of a call's answer."""
    return ANSWERS[type(call)]


def _get_field_codecs(name: object) -> dict[str, Codec]:
    """Return the codecs of a call's fields; raise ProtocolError for a call that is refused."""
    if not isinstance(name, str) or name not in _CALLS:
        raise ProtocolError(f"a deployed client does not answer the call {str(name)[:40]}")
    return _FIELDS[name]


def _require(value: object, good: bool, what: str) -> Any:  # noqa: ANN401
    """Return a received value; raise ProtocolError unless it is good."""
    if not good:
        raise ProtocolError(f"a message with {str(value)[:40]!r} for {what}")
    return value


def _make_plain_codec(what: str, good: Callable[[Any], bool]) -> Codec:
    """Return the codec of values that JSON holds as they are, if they are good."""
    return Codec(lambda value, _: value, lambda value, _: _require(value, good(value), what))


def _is_number(value: object) -> bool:
    # Not isinstance, as JSON's true is an int too.
    return type(value) is int and 0 <= value < MOST_COUNT


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_WORD


NOTHING = _make_plain_codec("nothing", lambda value: value is None)
NUMBER = _make_plain_codec("a number", _is_number)
OPTIONAL_NUMBER = Codec(
    NUMBER.write, lambda value, left: None if value is None else NUMBER.read(value, left)
)
FACTOR = _make_plain_codec(
    "a factor", lambda value: type(value) in (int, float) and 0 <= value < MOST_COUNT
)
FLAG = _make_plain_codec("a yes or no", lambda value: type(value) is bool)
WORD = _make_plain_codec("a word", _is_short_text)
FIGURES = _make_plain_codec(
    "figures",
    lambda value: (
        isinstance(value, dict)
        and len(value) <= MOST_WORD
        and all(_is_short_text(name) for name in value)
        and all(type(each) in (int, float) for each in value.values())
    ),
)


def _read_list(value: object) -> list[object]:
    return list(_require(value, isinstance(value, list) and len(value) <= 2**16, "a list"))


def _read_object(value: object, names: Sequence[str]) -> dict[str, Any]:
    good = isinstance(value, dict) and value.keys() == set(names)
    return dict(_require(value, good, "an object"))


def _take_tensors(count: object, left: Iterator[Tensor]) -> tuple[Tensor, ...]:
    """Take `count` tensors; raise ProtocolError if fewer are left."""
    most = min(NUMBER.read(count, left), 2**16)
    taken = tuple(islice(left, most))  # a claimed count costs no more than what is there
    if len(taken) < most:
        raise ProtocolError("a message with fewer tensors than it names")
    return taken


def _write_tensors(value: Sequence[Tensor], tensors: list[Tensor]) -> int:
    tensors += value
    return len(value)


def _read_leg(value: object, _: Iterator[Tensor]) -> Leg:
    try:
        return Leg(str(value))
    except ValueError:
        raise ProtocolError(f"a message on an unknown leg, {str(value)[:40]!r}") from None


def _write_packet(packet: Packet, tensors: list[Tensor]) -> object:
    carried = packet.tensors if packet.sealed is None else (packet.sealed,)
    tensors += carried
    # sealed weights show their types and shapes only, which the server checks
    header = {name: getattr(packet, name) for name in _PACKET}
    header |= {"leg": str(packet.leg), "names": [*packet.names], "tensors": len(carried)}
    forms = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in packet.tensors]
    header["sealed"] = None if packet.sealed is None else forms
    return header


def _read_sealed(
    forms: object, leg: Leg, tensors: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return blank tensors of the forms that a sealed packet names, and the seal itself."""
    good = len(tensors) == 1 and tensors[0].dtype is torch.uint8 and tensors[0].ndim == 1
    if leg is not Leg.HANDOVER or not good:
        raise ProtocolError(f"a sealed packet on {leg} that is not a sealed hand-over")
    return tuple(make_blank(form) for form in _read_list(forms)), tensors[0]


def _read_packet(value: object, left: Iterator[Tensor]) -> Packet:
    header = _read_object(value, _PACKET)
    numbers = {n: NUMBER.read(header[n], left) for n in ("client", "round", "step", "position")}
    session = OPTIONAL_NUMBER.read(header["session"], left)
    names = tuple(str(WORD.read(name, left)) for name in _read_list(header["names"]))
    leg, tensors = _read_leg(header["leg"], left), _take_tensors(header["tensors"], left)
    sealed = None
    if header["sealed"] is not None:
        tensors, sealed = _read_sealed(header["sealed"], leg, tensors)
    # Without names, tensors are a step's; with them, they are weights.
    if names and len(names) != len(tensors):
        raise ProtocolError(f"a packet with {len(tensors)} tensors and {len(names)} names")
    return Packet(leg=leg, tensors=tensors, names=names, session=session, sealed=sealed, **numbers)


def _write_phase(phase: Phase, tensors: list[Tensor]) -> object:
    header = {name: getattr(phase, name) for name in _PHASE} | {"learns": sorted(phase.learns)}
    if (between := phase.interleaved) is not None:
        inner = _write_phase(between.phase, tensors)
        header["interleaved"] = {"phase": inner, "every": between.every}
    return header


def _read_phase(value: object, left: Iterator[Tensor], depth: int = 0) -> Phase:
    header = _read_object(value, _PHASE)
    learns = [
        _require(each, each in SEGMENTS, "a segment") for each in _read_list(header["learns"])
    ]
    source = _require(header["source"], header["source"] in ("private", "public"), "a source")
    interleaved = None
    if header["interleaved"] is not None:
        inner = _read_object(header["interleaved"], ("phase", "every"))
        if depth:  # a hostile nesting must not exhaust the stack
            raise ProtocolError("an interleaved phase within an interleaved phase")
        phase = _read_phase(inner["phase"], left, depth + 1)
        # Steps are counted modulo `every`, so 0 would crash the client.
        interleaved = Interleaved(phase, max(1, NUMBER.read(inner["every"], left)))
    name, rounds = WORD.read(header["name"], left), NUMBER.read(header["rounds"], left)
    flags = {flag: bool(FLAG.read(header[flag], left)) for flag in _FLAGS}
    lr = None if header["lr"] is None else float(FACTOR.read(header["lr"], left))
    return Phase(name, rounds, source, frozenset(learns), **flags, lr=lr, interleaved=interleaved)


def _make_list_codec(item: Codec, kind: Callable[[Iterable[Any]], Any]) -> Codec:
    """Return the codec of lists, or tuples, whose items have a codec."""
    return Codec(
        lambda value, tensors: [item.write(each, tensors) for each in value],
        lambda value, left: kind(item.read(each, left) for each in _read_list(value)),
    )


LEG = Codec(lambda leg, _: str(leg), _read_leg)
PACKET = Codec(_write_packet, _read_packet)
PACKETS = _make_list_codec(PACKET, tuple)
PHASE = Codec(_write_phase, _read_phase)
ANNOUNCED = _make_list_codec(Codec(_write_tensors, _take_tensors), list)

ANSWERS: dict[type[Call[object]], Codec] = {
    calls.Enter: NOTHING,
    calls.Begin: PACKETS,
    calls.BeginInterleaved: PACKETS,
    calls.Proceed: PACKETS,
    calls.ReportRound: FIGURES,
    calls.CountSteps: NUMBER,
    calls.Probe: PACKETS,
    calls.Note: NOTHING,
    calls.Assess: FIGURES,
    calls.Write: PACKETS,
    calls.WriteOn: PACKETS,
    calls.Hear: NOTHING,
    calls.HandOver: PACKET,
    calls.Receive: NOTHING,
}
"""The calls that a deployed client answers, with the codecs of their answers."""
REFUSED: frozenset[type[Call[object]]] = frozenset(
    {
        # these return samples, labels or outputs, or packets that training does not send
        *(calls.InputsOf, calls.LabelsOf, calls.OwnTokens, calls.Predict, calls.CountExposures),
        *(calls.Expose, calls.ExposeAnswer, calls.HeadWeights, calls.RowsOf),
        # the server would choose the texts; a deployed client generates by itself
        *(calls.ProbeTexts, calls.ContinueTexts, calls.CloseSession),
        # a client keeps its state in its own checkpoints
        *(calls.OwnState, calls.LoadOwn, calls.SharedState, calls.LoadShared),
        # the server knows the phases from the scenario; a client that drops out sends nothing
        *(calls.Plan, calls.Abandon),
    }
)
"""The calls that a deployed client refuses: only the simulator asks them."""
_BY_NAME = {
    "phase": PHASE,
    "lr_factor": FACTOR,
    "round": NUMBER,
    "number": NUMBER,
    "batch": OPTIONAL_NUMBER,
    "packet": PACKET,
    "packets": PACKETS,
    "making": LEG,
    "source": WORD,
    "session": NUMBER,
    "split": WORD,
    "reading": WORD,
    "announced": ANNOUNCED,
}
_CALLS: dict[str, Any] = {kind.__name__: kind for kind in ANSWERS}
_FIELDS = {
    name: {each.name: _BY_NAME[each.name] for each in fields(kind)} for name, kind in _CALLS.items()
}
