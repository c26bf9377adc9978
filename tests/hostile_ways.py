"""What hostile clients answer: changes of an answer, and lists of ways for each kind of answer.

`list_ways` has all those by which a client of a scenario can lose its place, `list_sly_ways` those
that have the form of an honest answer.
"""

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import torch
from hostile import MOST, Answer, Change, Way
from torch import Tensor

from simsplit.deploy.frames import LARGEST as LARGEST_ALLOWED
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.handovers import Handovers
from simsplit.deploy.seals import (
    _COMPLAINT,
    _DOMAIN,
    _HASH,
    _LENGTHS,
    UnopenedSeal,
    _hash_parts,
)
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.scenario import Scenario
from simsplit.states import measure_norm

GRADIENT = "features_grad"
INTERLEAVING = ("mixguard",)
"""The methods that take other steps between those of training."""
NAN, HUGE, LARGEST = float("nan"), 1e20, 3e38

# changes


def set_answer(value: object) -> Change:
    """Answer with a value, and no tensors."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        tensors.clear()
        answer["answer"] = value

    return change


def set_fields(**values: object) -> Change:
    """Change fields of the first packet."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        packets = answer["answer"]
        (packets[0] if isinstance(packets, list) else packets).update(values)

    return change


def set_figures(**values: object) -> Change:
    """Replace figures of a report by others."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        answer["answer"].update(values)

    return change


def set_every_figure(value: object) -> Change:
    """Give every figure the same value."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        answer["answer"] = dict.fromkeys(answer["answer"], value)

    return change


def map_tensors(function: Callable[[Tensor], Tensor], first: int = 0) -> Change:
    """Change each tensor, from the `first` on."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        tensors[first:] = [function(tensor) for tensor in tensors[first:]]

    return change


def fill(value: float) -> Change:
    """Fill floating tensors with a number, or the largest that their type has."""

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.full_like(tensor, min(value, torch.finfo(tensor.dtype).max))

    return map_tensors(change)


def set_tensors(*made: Tensor) -> Change:
    """Send other tensors in the first packet."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        tensors[:] = made
        packets = answer["answer"]
        (packets[0] if isinstance(packets, list) else packets)["tensors"] = len(made)

    return change


def take_turns(*changes: Change) -> Change:
    """Take one change after another, and then the first again."""
    turns = itertools.cycle(changes)
    return lambda answer, tensors: next(turns)(answer, tensors)


def grow_each_time(times: float) -> Change:
    """Make floating tensors larger each time, by this factor more than the time before."""
    factors = (times**number for number in itertools.count())

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        factor = next(factors)
        tensors[:] = [t * factor if t.is_floating_point() else t for t in tensors]

    return change


def set_header(**values: object) -> Change:
    """Change fields of the answer's header."""

    def change(answer: Answer, tensors: list[Tensor]) -> None:
        answer.update(values)

    return change


def fail(answer: Answer, tensors: list[Tensor]) -> bytes:
    """Say that the call could not be answered."""
    return write_frame({"number": answer["number"], "failed": "\x1b[31mMemoryError"})


def blame(answer: Answer, tensors: list[Tensor]) -> bytes:
    """Blame another client, with a key that cannot even be read."""
    return write_frame({"number": answer["number"], "unusable": 1}, [torch.ones(3).bfloat16()])


def send(frame: bytes) -> Change:
    """Send a frame of one's own."""
    return lambda answer, tensors: frame


def nest(answer: Answer, tensors: list[Tensor]) -> bytes:
    """Send a header that is nested deeply."""
    text = b'{"number":%d,"answer":%s,"tensors":[]}' % (answer["number"], b"[" * 10**5)
    return b"SSP1" + len(text).to_bytes(4, "big") + text


def send_number(digits: int) -> Change:
    """Answer with an integer of many digits, in place of each figure."""

    def change(answer: Answer, tensors: list[Tensor]) -> bytes:
        text = json.dumps({**answer, "tensors": []})
        if isinstance(answer["answer"], dict):
            figures = ",".join(f'"{name}":1{"0" * digits}' for name in answer["answer"])
            text = f'{{"number":{answer["number"]},"answer":{{{figures}}},"tensors":[]}}'
        return b"SSP1" + len(text).to_bytes(4, "big") + text.encode()

    return change


def stay(answer: Answer, tensors: list[Tensor]) -> None:
    """Leave an answer alone, as what it seals is changed already."""


def seal_otherwise(change: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> Any:
    """Seal something else, validly."""

    def tamper(handovers: Handovers) -> None:
        seal = handovers.seals.seal
        handovers.seals.seal = lambda about, content: seal(*change(about, content))  # type: ignore[method-assign]

    return tamper


def replay(handovers: Handovers) -> None:
    """Send the first seal again, whenever another is due."""
    seal, sent = handovers.seals.seal, []

    def again(about: dict[str, Any], content: bytes) -> bytes:
        sent.append(sent[0] if sent else seal(about, content))
        return sent[0]

    handovers.seals.seal = again  # type: ignore[method-assign]


def seal_for_nobody(handovers: Handovers) -> None:
    """Seal without a key for any receiver."""
    handovers.seals.roster = {}


def close_otherwise(handovers: Handovers) -> None:
    """Sign a seal whose content its own key does not open."""
    seals, seal = handovers.seals, handovers.seals.seal

    def spoil(about: dict[str, Any], content: bytes) -> bytes:
        blob = seal(about, content)
        length, signed = _LENGTHS.unpack_from(blob)
        head = blob[_LENGTHS.size : _LENGTHS.size + length]
        closed = blob[_LENGTHS.size + length + signed :]
        closed = bytes([closed[0] ^ 1]) + closed[1:]
        signature = seals._signs.sign(_DOMAIN + _hash_parts(head, closed), _HASH)
        return _LENGTHS.pack(length, len(signature)) + head + signature + closed

    seals.seal = spoil  # type: ignore[method-assign]


def wrap_garbage(receiver: int, *, discloses: bytes | None = None) -> Any:
    """Sign a seal whose key for one receiver is garbage; disclose other bytes than its secret."""

    def tamper(handovers: Handovers) -> None:
        seals, seal = handovers.seals, handovers.seals.seal

        def spoil(about: dict[str, Any], content: bytes) -> bytes:
            blob = seal(about, content)
            length, signed = _LENGTHS.unpack_from(blob)
            head = json.loads(blob[_LENGTHS.size : _LENGTHS.size + length])
            if str(receiver) in head["keys"]:
                head["keys"][str(receiver)] = "00" * 48
            text, closed = json.dumps(head).encode(), blob[_LENGTHS.size + length + signed :]
            signature = seals._signs.sign(_DOMAIN + _hash_parts(text, closed), _HASH)
            return _LENGTHS.pack(len(text), len(signature)) + text + signature + closed

        seals.seal = spoil  # type: ignore[method-assign]
        if discloses is not None:
            seals.disclose = lambda *_: discloses  # type: ignore[method-assign]

    return tamper


def hand_on(change: Callable[[str, Tensor], Tensor], *, claims: bool = True) -> Any:
    """Seal other weights, by their names; `claims`: the seal names their true size."""

    def tamper(handovers: Handovers) -> None:
        seal = handovers.seal

        def spoil(packet: Any, steps: int, power: int) -> Any:
            pairs = zip(packet.names, packet.tensors, strict=True)
            changed = packet.with_tensors(tuple(change(name, each) for name, each in pairs))
            if claims:
                power = math.ceil(math.log2(1.01 * measure_norm(changed.tensors)))
            return seal(changed, steps, power)

        handovers.seal = spoil  # type: ignore[method-assign]

    return tamper


def grow(times: float) -> Callable[[str, Tensor], Tensor]:
    """Make weights, but not moments, this many times as large."""
    return lambda name, each: (
        each * times if each.is_floating_point() and not name.startswith("optimizer.") else each
    )


def set_all(value: float) -> Callable[[str, Tensor], Tensor]:
    """Give all weights, but not moments, one value."""
    return lambda name, each: (
        torch.full_like(each, value)
        if each.is_floating_point() and not name.startswith("optimizer.")
        else each
    )


def set_slot(slot: str, value: float) -> Callable[[str, Tensor], Tensor]:
    """Give all moments of one kind one value."""
    return lambda name, each: torch.full_like(each, value) if name.endswith(f".{slot}") else each


def complain_falsely(handovers: Handovers) -> None:
    """Complain of a seal that has a key for this client."""
    seals = handovers.seals

    def complain(blob: bytes, sender: int) -> Any:
        complaint = seals._signs.sign(_COMPLAINT + _hash_parts(blob, b""), _HASH)
        raise UnopenedSeal(sender, complaint)

    seals.open = complain  # type: ignore[method-assign]


def _flip_byte(seal: Tensor, place: int) -> Tensor:
    seal = seal.clone()
    seal[place] ^= 1
    return seal


def _refill(content: bytes, value: float) -> bytes:
    header, tensors = read_frame(content, MOST)
    fill(value)(header, tensors)
    return write_frame(header, tensors)


def _rename(content: bytes, names: list[Any]) -> bytes:
    _, tensors = read_frame(content, MOST)
    return write_frame({"names": names}, tensors)


# lists of ways


def of_packets(call: str, leg: str, **more: Any) -> list[Way]:
    """List ways to send a packet that is not the one that is due."""
    at = {"leg": leg, **more}
    return [
        Way("not a number", call, fill(NAN), **at),
        Way("huge", call, fill(HUGE), **at),
        Way("largest", call, fill(LARGEST), **at),
        Way("float64", call, map_tensors(torch.Tensor.double), **at),
        Way("float16", call, map_tensors(torch.Tensor.half), **at),
        Way("bfloat16", call, map_tensors(torch.Tensor.bfloat16), **at),
        Way("integers", call, map_tensors(torch.Tensor.long), **at),
        Way("fewer columns", call, map_tensors(lambda t: t[..., :-1].contiguous()), **at),
        Way("another dimension", call, map_tensors(lambda t: t[None]), **at),
        Way("without rows", call, map_tensors(lambda t: t[:0]), **at),
        Way("too many rows", call, map_tensors(lambda t: torch.cat([t] * 99)), **at),
        Way("without tensors", call, set_tensors(), **at),
        Way("ten masks", call, _repeat_last, **at),
        Way("of another client", call, set_fields(client=9), **at),
        Way("of another round", call, set_fields(round=7), **at),
        Way("on no leg", call, set_fields(leg="backdoor"), **at),
        Way("as a hand-over", call, set_fields(leg="handover"), **at),
        Way("as a broadcast", call, set_fields(leg="broadcast"), **at),
        Way("in a session", call, set_fields(session=5), **at),
        Way("with names", call, set_fields(names=["a", "b", "c"]), **at),
        Way("twice", call, _send_twice, **at),
        Way("none at all", call, set_answer(None), **at),
    ]


def _repeat_last(answer: Answer, tensors: list[Tensor]) -> None:
    tensors += [tensors[-1]] * 10
    answer["answer"][0]["tensors"] = len(tensors)


def _send_twice(answer: Answer, tensors: list[Tensor]) -> None:
    answer["answer"] *= 2
    tensors += tensors


def of_figures(call: str) -> list[Way]:
    """List ways to report figures that are none."""
    return [
        Way("not a number", call, set_every_figure(NAN)),
        Way("infinite", call, set_every_figure(float("inf"))),
        Way("1e308", call, set_every_figure(1e308)),
        Way("of 400 digits", call, send_number(400)),
        Way("of 5000 digits", call, send_number(5000)),
        Way("words", call, set_every_figure("much")),
        Way("negative", call, set_every_figure(-1e9)),
        Way("others", call, set_figures(simulated_s=1.0, round=7)),
        Way("a list", call, set_answer([1.0])),
    ]


NOTHING = [
    *(Way("a number", call, set_answer(1)) for call in ("Hear", "Enter", "keep")),
    Way("a number", "back_to", set_answer(1)),
    Way("fields", "Enter", set_header(more=1)),
]
UNDOING = [
    *(Way("a number", call, set_answer(1)) for call in ("mark", "undo")),
    *(Way("not at all", call, fail) for call in ("mark", "undo")),
]
COUNTS = [
    *(Way(str(n), "CountSteps", set_answer(n)) for n in (-1, "7", None, True, 1.5, 2**50, 2**60)),
    Way("with tensors", "CountSteps", lambda answer, tensors: tensors.append(torch.ones(3))),
]
FRAMES = [
    Way("garbage", "Begin", send(b"garbage" * 30)),
    Way("empty", "Begin", send(b"")),
    Way("nested", "Begin", nest),
    Way("another number", "Begin", set_header(number=99)),
    Way("fails again and again", "Begin", fail, after=1),
    Way("too large", "Begin", send(b"x" * 2**25)),
    Way("blames nobody", "Receive", blame),
    Way("blames nobody", "Enter", blame),
]
LABELS = [
    Way("10^6", "Begin", map_tensors(lambda t: torch.full_like(t, 10**6), 1), leg="smashed"),
    Way("-7", "Begin", map_tensors(lambda t: torch.full_like(t, -7), 1), leg="smashed"),
    Way("of floats", "Begin", map_tensors(torch.Tensor.float, 1), leg="smashed"),
    Way("in four bytes", "Begin", map_tensors(torch.Tensor.int, 1), leg="smashed"),
    Way("fewer", "Begin", map_tensors(lambda t: t[:-1], 1), leg="smashed"),
    Way("of two dimensions", "Begin", map_tensors(lambda t: t[:, None], 1), leg="smashed"),
]
SEALED = [
    Way("garbage", "HandOver", set_tensors(torch.arange(256, dtype=torch.uint8))),
    Way("empty", "HandOver", set_tensors(torch.zeros(0, dtype=torch.uint8))),
    Way("of one changed byte", "HandOver", map_tensors(lambda t: _flip_byte(t, -1))),
    Way("of another signature", "HandOver", map_tensors(lambda t: _flip_byte(t, 10))),
    Way("cut", "HandOver", map_tensors(lambda t: t[: len(t) // 2])),
    Way("of floats", "HandOver", map_tensors(torch.Tensor.float)),
    Way("of two dimensions", "HandOver", map_tensors(lambda t: t[None])),
    Way("of two parts", "HandOver", lambda a, t: _repeat_last(a, t)),
    Way("none at all", "HandOver", set_fields(sealed=None)),
    Way("around nothing", "HandOver", set_fields(sealed=[], names=[])),
    Way("around other shapes", "HandOver", set_fields(sealed=[["float32", [2]]], names=["a"])),
    Way("around 2^60 values", "HandOver", set_fields(sealed=[["float32", [2**60]]], names=["a"])),
    Way("of another client", "HandOver", set_fields(client=9)),
    Way("of another round", "HandOver", set_fields(round=7)),
    Way("of another step", "HandOver", set_fields(step=7)),
    Way("on another leg", "HandOver", set_fields(leg="smashed")),
    Way("sent before", "HandOver", stay, after=1, tamper=replay),
    *(
        Way(f"around {name}", "HandOver", stay, tamper=seal_otherwise(change))
        for name, change in {
            "no frame": lambda about, content: (about, b"garbage"),
            "nothing at all": lambda about, content: (about, b""),
            "no weights": lambda about, content: (about, write_frame({"names": []})),
            "NaN": lambda about, content: (about, _refill(content, NAN)),
            "the largest": lambda about, content: (about, _refill(content, LARGEST)),
            "weights without names": lambda about, content: (about, _rename(content, [])),
            "weights of numbers": lambda about, content: (about, _rename(content, [1])),
            "a nest": lambda about, content: (about, nest({"number": 1}, [])),
            "those of another run": lambda about, content: ({**about, "terms": "x"}, content),
            "those of round 7": lambda about, content: ({**about, "round": 7}, content),
            "steps of nobody": lambda about, content: ({**about, "made": {"9": ["", 1]}}, content),
            "steps in words": lambda about, content: ({**about, "made": "all"}, content),
        }.items()
    ),
    Way("for nobody else", "HandOver", stay, tamper=seal_for_nobody),
    Way("of another key", "HandOver", stay, tamper=close_otherwise),
]
"""Ways to seal weights that are handed on."""
WEIGHTS = [
    Way("largest", "HandOver", fill(LARGEST)),
    Way("huge", "HandOver", fill(HUGE)),
    Way("not a number", "HandOver", fill(NAN)),
    Way("float64", "HandOver", map_tensors(torch.Tensor.double)),
    Way("another shape", "HandOver", map_tensors(lambda t: t[None])),
    Way("without names", "HandOver", set_fields(names=[])),
    Way("without tensors", "HandOver", set_tensors()),
    Way("of another client", "HandOver", set_fields(client=9)),
    Way("on another leg", "HandOver", set_fields(leg="smashed")),
]


TOKENS = [
    Way("negative", "Begin", map_tensors(lambda t: t - 9), leg="inputs"),
    Way("unknown", "Begin", map_tensors(lambda t: t + 10**6), leg="inputs"),
    Way("in eight bytes", "Begin", map_tensors(torch.Tensor.long), leg="inputs"),
    Way("without a mask", "Begin", lambda a, t: _drop(a, t, 1), leg="inputs"),
    Way("too long", "Begin", map_tensors(lambda t: torch.cat([t] * 99, 1)), leg="inputs"),
    Way("none", "Begin", lambda a, t: _drop(a, t, 2), leg="inputs"),
]
ADAPTERS = [
    Way("not a number", "Begin", lambda a, t: _change_last(t, t[-1] * NAN), leg="inputs"),
    Way("largest", "Begin", lambda a, t: _change_last(t, t[-1] * 0 + LARGEST), leg="inputs"),
    Way("float64", "Begin", lambda a, t: _change_last(t, t[-1].double()), leg="inputs"),
    Way("of one less", "Begin", lambda a, t: _change_last(t, t[-1][:-1]), leg="inputs"),
]


def _drop(answer: Answer, tensors: list[Tensor], count: int) -> None:
    """Leave out the first tensors of the first packet."""
    del tensors[:count]
    answer["answer"][0]["tensors"] -= count


def _change_last(tensors: list[Tensor], tensor: Tensor) -> None:
    tensors[-1] = tensor


def list_ways(given: Scenario) -> list[Way]:
    """List the ways by which a client of a scenario loses its place."""
    topology = given.crossings
    turns = [turn for turn in topology.training.turns if turn.by_client and turn.sends]
    contents = {topology.contents.get(leg) for leg in turns[0].sends}
    ways = of_packets("Begin", turns[0].sends[0])
    ways += [way for turn in turns[1:] for way in of_packets("Proceed", turn.sends[0])]
    ways += LABELS if "labels" in contents else []
    ways += [*TOKENS, *ADAPTERS] if "inputs" in contents else []
    if given.shares:
        ways += SEALED if given.aggregation.kind == "none" else WEIGHTS
    if topology.tail_with_client:
        ways += [*of_figures("ReportRound"), *of_figures("Assess")]
    probed = topology.inference.turns[0].sends[0]
    ways += of_packets("Probe", probed)[::4]
    if any(name in GENERATION_METRICS for name in given.metrics):
        ways += [*of_packets("Write", probed)[::4], *of_packets("WriteOn", probed)[1::4]]
    if any(method.kind_name in INTERLEAVING for method in given.method):
        ways += of_packets("BeginInterleaved", turns[0].sends[0])[::4]
    # float16 is what a cast sends, and then it is honest
    casts = any(method.kind_name == "cast" for method in given.method)
    return [way for way in ways if not (casts and way.name == "float16")]


def list_sly_ways(given: Scenario) -> list[Way]:
    """List ways to answer in the form of an honest answer, and with no honest content."""
    turns = [turn for turn in given.crossings.training.turns if turn.by_client and turn.sends]
    return [
        Way(name, call, map_tensors(change), leg=turn.sends[0], sly=True)
        for call, turn in zip(("Begin", "Proceed"), turns, strict=False)
        for name, change in {
            "zeros": torch.zeros_like,
            "ones": torch.ones_like,
            "the largest that may cross": _fill_all,
            "of the other sign": lambda t: -t if t.is_floating_point() else t.flip(0),
            "in another order": lambda t: t.flip(0),
            "too small for most": lambda t: t * 1e-40 if t.is_floating_point() else t,
            "all alike": lambda t: t[:1].expand_as(t).contiguous(),
        }.items()
    ]


def _fill_all(tensor: Tensor) -> Tensor:
    """Fill a tensor with the largest value that may cross."""
    if tensor.dtype == torch.bool:
        return torch.ones_like(tensor)
    if tensor.is_floating_point():
        return torch.full_like(tensor, min(LARGEST_ALLOWED, torch.finfo(tensor.dtype).max))
    return torch.full_like(tensor, torch.iinfo(tensor.dtype).max)
