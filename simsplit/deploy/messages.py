"""Calls and answers as messages: each type that may cross is written and read by a rule of its own.

The rules are a closed list. A call that is not in it cannot be asked of a deployed client. Each
call that exists is in one of two lists: `ANSWERS` or `REFUSED` (a test holds that).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from simsplit.deploy.tensors import blank
from simsplit.errors import ProtocolError
from simsplit.packets import Leg, Packet, Packets
from simsplit.parties.calls import (
    Abandon,
    Assess,
    Begin,
    BeginAside,
    Call,
    CloseSession,
    ContinueTexts,
    CountExposures,
    CountSteps,
    Enter,
    Expose,
    ExposeAnswer,
    HandOver,
    Hear,
    InputsOf,
    LabelsOf,
    LoadOwn,
    LoadShared,
    Note,
    OwnState,
    OwnTokens,
    Plan,
    Predict,
    Probe,
    ProbeTexts,
    Proceed,
    Receive,
    ReportRound,
    SharedState,
    Write,
    WriteOn,
)
from simsplit.phases import Aside, Phase

MOST_NUMBER = 2**53
MOST_WORD = 1000
SEGMENTS = frozenset({"head", "trunk", "tail", "method"})
_PACKET = ("client", "leg", "round", "step", "names", "session", "position", "tensors", "sealed")
_FLAGS = ("gradients", "task", "crosses", "returns")
_PHASE = ("name", "rounds", "source", "learns", *_FLAGS, "lr", "aside")
Writing = Callable[[Any, list[Tensor]], object]
Reading = Callable[[object, Iterator[Tensor]], Any]


@dataclass(frozen=True)
class Form:
    """How a type of value crosses."""

    write: Writing
    read: Reading


def told(form: Form, value: object) -> tuple[object, list[Tensor]]:
    """A value as JSON has it, and its tensors."""
    tensors: list[Tensor] = []
    return form.write(value, tensors), tensors


def understood(form: Form, value: object, tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
    """What `told` was given; ProtocolError where it is anything else."""
    left = iter(tensors)
    made = form.read(value, left)
    if next(left, None) is not None:
        raise ProtocolError("a message with tensors that belong to nothing")
    return made


def call_told(call: Call[object]) -> tuple[dict[str, object], list[Tensor]]:
    """A call's name and fields, and its tensors."""
    tensors: list[Tensor] = []
    forms = _form_of(type(call).__name__)
    values = {name: form.write(getattr(call, name), tensors) for name, form in forms.items()}
    return {"call": type(call).__name__, "fields": values}, tensors


def call_understood(header: Mapping[str, Any], tensors: Sequence[Tensor]) -> Call[object]:
    """The call that a message asks for; ProtocolError for one that no deployed client answers."""
    name, values = header.get("call"), header.get("fields")
    forms = _form_of(name)
    if not isinstance(values, dict) or values.keys() != forms.keys():
        raise ProtocolError(f"the call {name} with other fields than it has")
    left = iter(tensors)
    made = {key: form.read(values[key], left) for key, form in forms.items()}
    if next(left, None) is not None:
        raise ProtocolError(f"the call {name} with tensors that belong to nothing")
    call: Call[object] = _CALLS[str(name)](**made)
    return call


def answer_form(call: Call[object]) -> Form:
    """How the answer to a call crosses."""
    return ANSWERS[type(call)]


def _form_of(name: object) -> dict[str, Form]:
    if not isinstance(name, str) or name not in _CALLS:
        raise ProtocolError(f"a deployed client does not answer the call {str(name)[:40]}")
    return _FIELDS[name]


def _checked(value: object, good: bool, what: str) -> Any:  # noqa: ANN401
    if not good:
        raise ProtocolError(f"a message with {str(value)[:40]!r} for {what}")
    return value


def _plain(what: str, good: Callable[[Any], bool]) -> Form:
    return Form(lambda value, _: value, lambda value, _: _checked(value, good(value), what))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_NUMBER


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_WORD


NOTHING = _plain("nothing", lambda value: value is None)
NUMBER = _plain("a number", _is_number)
FACTOR = _plain("a factor", lambda value: type(value) in (int, float) and 0 <= value < MOST_NUMBER)
FLAG = _plain("a yes or no", lambda value: type(value) is bool)
WORD = _plain("a word", _is_word)
FIGURES = _plain(
    "figures",
    lambda value: (
        isinstance(value, dict)
        and len(value) <= MOST_WORD
        and all(_is_word(name) for name in value)
        and all(type(each) in (int, float) for each in value.values())
    ),
)


def _list(value: object) -> list[object]:
    return list(_checked(value, isinstance(value, list) and len(value) <= 2**16, "a list"))


def _object(value: object, names: Sequence[str]) -> dict[str, Any]:
    good = isinstance(value, dict) and value.keys() == set(names)
    return dict(_checked(value, good, "an object"))


def _tensors(count: object, left: Iterator[Tensor]) -> tuple[Tensor, ...]:
    taken = []
    for _ in range(min(NUMBER.read(count, left), 2**16)):
        if (tensor := next(left, None)) is None:
            raise ProtocolError("a message with fewer tensors than it tells")
        taken.append(tensor)
    return tuple(taken)


def _write_tensors(value: Sequence[Tensor], tensors: list[Tensor]) -> int:
    tensors += value
    return len(value)


def _write_leg(leg: Leg, _: list[Tensor]) -> str:
    return str(leg)


def _read_leg(value: object, _: Iterator[Tensor]) -> Leg:
    try:
        return Leg(str(value))
    except ValueError:
        raise ProtocolError("a message on a leg that is none") from None


def _write_packet(packet: Packet, tensors: list[Tensor]) -> object:
    carried = packet.tensors if packet.sealed is None else (packet.sealed,)
    tensors += carried
    told = {name: getattr(packet, name) for name in _PACKET}
    told |= {"leg": str(packet.leg), "names": [*packet.names], "tensors": len(carried)}
    told["sealed"] = None if packet.sealed is None else [*map(_write_form, packet.tensors)]
    return told


def _write_form(tensor: Tensor) -> list[object]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def _read_sealed(
    forms: object, leg: Leg, tensors: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A sealed packet's tensors, by their form, and what is in it."""
    good = len(tensors) == 1 and tensors[0].dtype is torch.uint8 and tensors[0].ndim == 1
    if leg is not Leg.HANDOVER or not good:
        raise ProtocolError(f"a sealed packet on {leg} that is none")
    return tuple(blank(form) for form in _list(forms)), tensors[0]


def _read_packet(value: object, left: Iterator[Tensor]) -> Packet:
    told = _object(value, _PACKET)
    numbers = {n: NUMBER.read(told[n], left) for n in ("client", "round", "step", "position")}
    session = None if told["session"] is None else NUMBER.read(told["session"], left)
    names = tuple(str(WORD.read(name, left)) for name in _list(told["names"]))
    leg, tensors = _read_leg(told["leg"], left), _tensors(told["tensors"], left)
    sealed = None
    if told["sealed"] is not None:
        tensors, sealed = _read_sealed(told["sealed"], leg, tensors)
    if names and len(names) != len(tensors):
        raise ProtocolError("a packet whose tensors are not those that it names")
    return Packet(leg=leg, tensors=tensors, names=names, session=session, sealed=sealed, **numbers)


def _write_phase(phase: Phase, tensors: list[Tensor]) -> object:
    aside = phase.aside
    told = {name: getattr(phase, name) for name in _PHASE}
    told["learns"] = sorted(phase.learns)
    if aside is not None:
        told["aside"] = {"phase": _write_phase(aside.phase, tensors), "every": aside.every}
    return told


def _read_phase(value: object, left: Iterator[Tensor], depth: int = 0) -> Phase:
    told = _object(value, _PHASE)
    learns = [_checked(each, each in SEGMENTS, "a segment") for each in _list(told["learns"])]
    source = _checked(told["source"], told["source"] in ("private", "public"), "a source")
    aside = None
    if told["aside"] is not None:
        inner = _object(told["aside"], ("phase", "every"))
        if depth:
            raise ProtocolError("a phase aside of a phase aside")
        phase = _read_phase(inner["phase"], left, depth + 1)
        aside = Aside(phase, max(1, NUMBER.read(inner["every"], left)))
    name, rounds = WORD.read(told["name"], left), NUMBER.read(told["rounds"], left)
    flags = {flag: bool(FLAG.read(told[flag], left)) for flag in _FLAGS}
    lr = None if told["lr"] is None else float(FACTOR.read(told["lr"], left))
    return Phase(name, rounds, source, frozenset(learns), **flags, lr=lr, aside=aside)


def _write_packets(packets: Packets, tensors: list[Tensor]) -> object:
    return [_write_packet(packet, tensors) for packet in packets]


def _read_packets(value: object, left: Iterator[Tensor]) -> Packets:
    return tuple(_read_packet(each, left) for each in _list(value))


def _write_announced(value: Sequence[Sequence[Tensor]], tensors: list[Tensor]) -> object:
    return [_write_tensors(each, tensors) for each in value]


def _read_announced(value: object, left: Iterator[Tensor]) -> list[tuple[Tensor, ...]]:
    return [_tensors(count, left) for count in _list(value)]


LEG = Form(_write_leg, _read_leg)
PACKET = Form(_write_packet, _read_packet)
PACKETS = Form(_write_packets, _read_packets)
PHASE = Form(_write_phase, lambda value, left: _read_phase(value, left))
ANNOUNCED = Form(_write_announced, _read_announced)

ANSWERS: dict[type[Call[object]], Form] = {
    Enter: NOTHING,
    Begin: PACKETS,
    BeginAside: PACKETS,
    Proceed: PACKETS,
    ReportRound: FIGURES,
    CountSteps: NUMBER,
    Probe: PACKETS,
    Note: NOTHING,
    Assess: FIGURES,
    Write: PACKETS,
    WriteOn: PACKETS,
    Hear: NOTHING,
    HandOver: PACKET,
    Receive: NOTHING,
}
"""The calls that a deployed client answers, and how its answers cross."""
REFUSED: frozenset[type[Call[object]]] = frozenset(
    {
        # samples, labels and outputs, and packets that training does not send
        *(InputsOf, LabelsOf, OwnTokens, Predict, CountExposures, Expose, ExposeAnswer),
        # passes over texts that the server chooses; a deployed client writes by itself
        *(ProbeTexts, ContinueTexts, CloseSession),
        # a client's state, which it keeps in its own checkpoints
        *(OwnState, LoadOwn, SharedState, LoadShared),
        # a server knows the phases from the scenario, and a client that drops out says nothing
        *(Plan, Abandon),
    }
)
"""The calls that a deployed client does not answer: the simulator alone asks them."""
_BY_NAME = {
    "phase": PHASE,
    "lr_factor": FACTOR,
    "round": NUMBER,
    "number": NUMBER,
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
