"""What a hostile client answers is refused before anything is allocated by it, or believed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from builders import TINY
from direct import Sites
from texts import CAUSAL, text_scenario
from torch import Tensor

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.call_codecs import get_answer_codec, read_value, write_value
from simsplit.deploy.figure_bounds import MOST_GAIN
from simsplit.deploy.frames import LARGEST, read_frame, write_frame
from simsplit.errors import OutOfRangeError, ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.calls import (
    Assess,
    Begin,
    Call,
    CountSteps,
    Enter,
    HandOver,
    Probe,
    Proceed,
    ReportRound,
)
from simsplit.phases import Phase
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

MOST = 2**28


@dataclass
class Asked:
    """A client that trains, and the bounds by which its server takes its answers."""

    sites: Sites
    bounds: Bounds
    phase: Phase

    @classmethod
    def of(cls, given: Scenario, path: Path) -> "Asked":
        sites = Sites(given, path)
        pool = sites.pool(lambda _: None, [], torch.device("cpu"))
        phase = pool.bounds.packets.stacks[0].make_training_phase()
        phase = replace(phase, rounds=2, gradients=given.gradients_cross)
        made = cls(sites, pool.bounds, phase)
        made.answer(Enter(phase, 1.0))
        announced = sites.experiment().parts.server.announce(0)
        for site in sites.sites:
            site.client.sharing.hear(announced)
        return made

    def answer(self, call: Call[Any]) -> Any:
        return call.on(self.sites.sites[0].client)

    def check(self, call: Call[Any], answer: Any) -> None:
        """Hold an answer against the bounds, after it has crossed as a frame."""
        codec = get_answer_codec(call)
        value, tensors = write_value(codec, answer)
        header, tensors = read_frame(write_frame({"answer": value}, tensors), MOST)
        self.bounds.check_answer(0, call, read_value(codec, header["answer"], tensors), self.phase)

    def check_begun(self, change: Callable[[Packet], Packet] = lambda packet: packet) -> None:
        """Check the answer to Begin, with its first packet changed."""
        first, *others = self.answer(Begin(1))
        self.check(Begin(1), (change(first), *others))


def images(**changes: Any) -> Scenario:
    own = {"clients": {"count": 2, "heads": "per_client"}}
    return parse(merge(merge(TINY, own), changes))


def with_first(change: Callable[[Tensor], Tensor]) -> Callable[[Packet], Packet]:
    def change_first(packet: Packet) -> Packet:
        first, *others = packet.tensors
        return packet.with_tensors((change(first), *others))

    return change_first


@pytest.fixture
def plain(tmp_path: Path) -> Asked:
    return Asked.of(images(), tmp_path)


class TestPayloads:
    def test_as_they_should_be(self, plain):
        plain.check_begun()

    @pytest.mark.parametrize("form", [list, lambda packets: packets[0], lambda packets: None])
    def test_that_are_no_packets(self, plain, form):
        """The call decides how an answer is judged, and not what has arrived."""
        answer = form(plain.answer(Begin(1)))
        with pytest.raises(ProtocolError):
            plain.bounds.check_answer(0, Begin(1), answer, plain.phase)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
    def test_of_another_type(self, plain, dtype):
        with pytest.raises(ProtocolError):
            plain.check_begun(with_first(lambda z: z.to(dtype)))

    def test_of_the_types_that_autocast_makes(self, tmp_path):
        asked = Asked.of(images(train={"precision": "bf16"}), tmp_path)
        asked.check_begun(with_first(lambda z: z.bfloat16()))
        asked.check_begun(with_first(lambda z: z.float()))
        with pytest.raises(ProtocolError):
            asked.check_begun(with_first(lambda z: z.half()))

    @pytest.mark.parametrize("value", [math.nan, math.inf, 1e20, -3e38])
    def test_out_of_range(self, plain, value):
        with pytest.raises(ProtocolError):
            plain.check_begun(with_first(lambda z: z.fill_(value)))

    def test_as_large_as_they_may_be(self, plain):
        plain.check_begun(with_first(lambda z: z.fill_(LARGEST)))

    @pytest.mark.parametrize(
        "other",
        [
            {"session": 5},
            {"position": 3},
            {"round": 2},
            {"client": 1},
            {"names": ("a",)},
            {"leg": Leg.HANDOVER},
            {"leg": Leg.FEATURES_GRAD},
        ],
        ids=str,
    )
    def test_of_another_step(self, plain, other):
        with pytest.raises(ProtocolError):
            plain.check_begun(lambda packet: replace(packet, **other))

    @pytest.mark.parametrize("number", [0, 2])
    def test_more_or_fewer_packets(self, plain, number):
        with pytest.raises(ProtocolError):
            plain.check(Begin(1), plain.answer(Begin(1)) * number)

    def test_no_answer_to_features(self, plain):
        (packet,) = plain.answer(Begin(1))
        call = Proceed((packet.answer(Leg.FEATURES, (torch.zeros(16, 512),)),), Leg.FEATURES_GRAD)
        plain.check(call, plain.answer(call))
        with pytest.raises(ProtocolError):
            plain.check(call, ())

    def test_of_another_batch_than_the_one_asked_for(self, plain):
        (packet,) = plain.answer(Probe("test", 1, 0))
        plain.check(Probe("test", 1, 0), (packet,))
        with pytest.raises(ProtocolError):
            plain.check(Probe("test", 1, 0), (replace(packet, step=1),))


def turn(shape: Tensor) -> Tensor:
    return shape.flip(0)


CODECS: dict[str, tuple[dict[str, Any], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]] = {
    "lightsplit, other columns": (
        {"kind": "lightsplit", "ratio": 8},
        lambda sent: (sent[0][:, :-1],),
    ),
    "lightsplit, no columns": ({"kind": "lightsplit"}, lambda sent: (sent[0][:, :0],)),
    "quantise, turned": (
        {"kind": "quantise"},
        lambda sent: (sent[0], sent[1], turn(sent[2])),
    ),
    "quantise, flat": (
        {"kind": "quantise"},
        lambda sent: (sent[0], sent[1], torch.tensor([20 * 12, 12, 1], dtype=torch.int32)),
    ),
    "quantise, negative": (
        {"kind": "quantise"},
        lambda sent: (sent[0], sent[1], -sent[2]),
    ),
    "quantise, other numbers": (
        {"kind": "quantise"},
        lambda sent: (sent[0], sent[1][:, :1], sent[2]),
    ),
    "quantise, beyond range once it is unpacked": (
        {"kind": "quantise", "bits": 16},
        lambda sent: (torch.full_like(sent[0], 255), torch.full_like(sent[1], 1e15), sent[2]),
    ),
    "topk, without indices": ({"kind": "topk"}, lambda sent: sent[:1]),
    "topk, with indices beyond": (
        {"kind": "topk"},
        lambda sent: (sent[0], torch.full_like(sent[1], 255)),
    ),
    "topk, more values": (
        {"kind": "topk"},
        lambda sent: (sent[0].repeat(1, 2), sent[1]),
    ),
    "topk, rows without values": (
        {"kind": "topk"},
        lambda _: (torch.zeros(2**30, 0), torch.zeros(2**30, 0, dtype=torch.uint8)),
    ),
    "sparsify, a claimed shape of gigabytes": (
        {"kind": "sparsify"},
        lambda sent: (*sent[:2], torch.tensor([2**15, 2**15, 1], dtype=torch.int32)),
    ),
    "sparsify, rows without values": (
        {"kind": "sparsify"},
        lambda sent: (torch.zeros(2**30, 0), torch.zeros(2**30, 0, dtype=torch.uint8), sent[2]),
    ),
    "cast, not cast": ({"kind": "cast"}, lambda sent: (sent[0].float(),)),
    "cast, other scales": (
        {"kind": "cast", "to": "int8"},
        lambda sent: (sent[0], sent[1][:-1]),
    ),
    "c3sl, more samples than its rows have": (
        {"kind": "c3sl"},
        lambda sent: (sent[0], torch.tensor([10**9], dtype=torch.int32)),
    ),
    "c3sl, other rows": ({"kind": "c3sl"}, lambda sent: (sent[0].repeat(2, 1), sent[1])),
}


@pytest.mark.parametrize("case", CODECS)
def test_a_codecs_packet_of_another_form(case: str, tmp_path: Path) -> None:
    method, change = CODECS[case]
    asked = Asked.of(images(method=[method]), tmp_path)
    asked.check_begun()
    with pytest.raises(ProtocolError):
        asked.check_begun(lambda packet: packet.with_tensors(change(packet.tensors)))


@pytest.mark.parametrize("kind", ["topk", "quantise"])
def test_a_codecs_gradient_of_another_form(kind: str, tmp_path: Path) -> None:
    """The server cannot unpack some without its forward pass, but it knows their form."""
    method = {"kind": kind, "legs": ["features"]}
    asked = Asked.of(images(method=[method]), tmp_path)
    (packet,) = asked.answer(Begin(1))
    server = asked.sites.experiment().parts.server
    turn_ = asked.sites.given.crossings.training.turns[1]
    packets = server.answer({0: (packet,)}, turn_, "train")[0]
    call = Proceed(packets, Leg.FEATURES_GRAD)
    (grad,) = asked.answer(call)
    asked.check(call, (grad,))
    for change in (lambda x: x[:, :-1], lambda x: x[:-1], lambda x: x.double()):
        with pytest.raises(ProtocolError):
            asked.check(call, (with_first(change)(grad),))


class TestLabels:
    @pytest.fixture
    def vanilla(self, tmp_path: Path) -> Asked:
        return Asked.of(images(topology="vanilla"), tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda labels: labels + 10**6,
            lambda labels: labels - 7,
            lambda labels: torch.full_like(labels, -100),
            lambda labels: labels.int(),
            lambda labels: labels[:-1],
            lambda labels: labels[:, None],
            lambda labels: labels.float(),
        ],
        ids=["beyond", "negative", "ignored", "int32", "fewer", "deeper", "floats"],
    )
    def test_that_are_not_the_runs(self, vanilla, change):
        smashed, labels = vanilla.answer(Begin(1))
        vanilla.check(Begin(1), (smashed, labels))
        with pytest.raises(ProtocolError):
            vanilla.check(Begin(1), (smashed, with_first(change)(labels)))


class TestTexts:
    @pytest.fixture
    def texts(self, tmp_path: Path) -> Asked:
        own = {"clients": {"count": 2, "heads": "per_client"}, "topology": "vanilla"}
        return Asked.of(text_scenario(tmp_path, **own), tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda z, real: (z[:, :0], real[:, :0]),
            lambda z, real: (z[:0], real[:0]),
            lambda z, real: (z, *[real] * 10),
            lambda z, real: (z, real[:, 1:]),
            lambda z, real: (z, real.int()),
            lambda z, real: (z, torch.zeros_like(real)),
            lambda z, real: (z.repeat(1, 20, 1), real.repeat(1, 20)),
        ],
        ids=["no tokens", "no texts", "ten masks", "a short mask", "ints", "all hidden", "long"],
    )
    def test_of_another_form(self, texts, change):
        smashed, labels = texts.answer(Begin(1))
        z = smashed.tensors[0]
        real = torch.ones(z.shape[:2], dtype=torch.bool)
        texts.check(Begin(1), (smashed.with_tensors((z,)), labels))
        texts.check(Begin(1), (smashed.with_tensors((z, real)), labels))
        with pytest.raises(ProtocolError):
            texts.check(Begin(1), (smashed.with_tensors(change(z, real)), labels))

    @pytest.mark.parametrize("value", [10**6, -7, -100])
    def test_with_labels_that_are_none(self, texts, value):
        smashed, labels = texts.answer(Begin(1))
        bad = with_first(lambda each: torch.full_like(each, value))(labels)
        with pytest.raises(ProtocolError):
            texts.check(Begin(1), (smashed, bad))


class TestFigures:
    REPORT: ClassVar[dict[str, Any]] = {
        "steps": 2,
        "samples": 30,
        "method_loss": 0.0,
        "train_loss": 2.3,
        "train_accuracy": 0.5,
        "plain_bytes": 100,
    }
    SCORES: ClassVar[dict[str, float]] = {"accuracy": 0.5, "balanced_accuracy": 0.4, "loss": 2.0}

    def test_that_are_true(self, plain):
        plain.check(ReportRound(), self.REPORT)
        plain.check(Assess("test"), self.SCORES)

    @pytest.mark.parametrize("name", ["train_loss", "method_loss", "train_accuracy", "steps"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, 1e308, 10**400, -(10**400)])
    def test_of_a_report_out_of_range(self, plain, name, value):
        with pytest.raises(ProtocolError):
            plain.check(ReportRound(), {**self.REPORT, name: value})

    @pytest.mark.parametrize("sign", [1, -1])
    @pytest.mark.parametrize("name", ["train_loss", "method_loss"])
    def test_a_loss_has_bounds(self, plain, name, sign):
        """A cross-entropy is not negative, and a method's term has either sign."""
        with pytest.raises(OutOfRangeError):
            plain.check(ReportRound(), {**self.REPORT, name: sign * LARGEST})
        with pytest.raises(OutOfRangeError):
            plain.check(Assess("test"), {**self.SCORES, "loss": sign * LARGEST})

    @pytest.mark.parametrize("norm", [1.0, 1e3])
    def test_a_cross_entropy_lies_between_0_and_that_of_the_worst_sane_logits(self, plain, norm):
        """Logits may be MOST_GAIN times as large as the features that the server has sent."""
        logits = norm * torch.tensor([[-MOST_GAIN] + [MOST_GAIN] * 9], dtype=torch.float64)
        worst = torch.nn.functional.cross_entropy(logits, torch.tensor([0])).item()
        for name, call, figures in (
            ("train_loss", ReportRound(), self.REPORT),
            ("loss", Assess("test"), self.SCORES),
        ):
            for value in (0.0, 2.3, 0.999 * worst):
                plain.bounds.figures.note_features(0, norm)
                plain.check(call, {**figures, name: value})
            for value in (-1e-6, 1.001 * worst):
                plain.bounds.figures.note_features(0, norm)
                with pytest.raises(OutOfRangeError):
                    plain.check(call, {**figures, name: value})

    @pytest.mark.parametrize(
        "report",
        [
            {},
            {"samples": 5},
            {**REPORT, "steps": 4},
            {**REPORT, "samples": 1000},
            {**REPORT, "samples": -1},
            {**REPORT, "steps": 1.5},
            {**REPORT, "train_accuracy": 1.1},
            {**REPORT, "malicious": 1},
        ],
        ids=str,
    )
    def test_of_a_report_that_is_none(self, plain, report):
        with pytest.raises(ProtocolError):
            plain.check(ReportRound(), report)

    def test_of_losses_that_the_server_computes(self, tmp_path):
        asked = Asked.of(images(topology="vanilla"), tmp_path)
        asked.check(ReportRound(), {"plain_bytes": 5})
        for name in ("train_loss", "steps", "samples"):
            with pytest.raises(ProtocolError):
                asked.check(ReportRound(), {name: 1})

    @pytest.mark.parametrize(
        "scores",
        [
            {},
            {**SCORES, "accuracy": math.nan},
            {**SCORES, "accuracy": 10**400},
            {**SCORES, "accuracy": 1.5},
            {**SCORES, "loss": math.inf},
            {**SCORES, "loss": -1.0},
            {**SCORES, "round": 3},
        ],
        ids=str,
    )
    def test_of_an_evaluation(self, plain, scores):
        with pytest.raises(ProtocolError):
            plain.check(Assess("test"), scores)

    def test_a_perplexity_may_be_infinite(self, tmp_path):
        own = {"clients": {"count": 2, "heads": "per_client"}, "model": CAUSAL}
        asked = Asked.of(text_scenario(tmp_path, **own), tmp_path)
        scores = dict.fromkeys(asked.sites.given.metrics, 0.5) | {"perplexity": math.inf}
        asked.check(Assess("test"), scores)
        for value in (math.nan, 0.9):
            with pytest.raises(ProtocolError):
                asked.check(Assess("test"), {**scores, "perplexity": value})

    @pytest.mark.parametrize("source", ["private", "public"])
    def test_batches_are_those_of_the_samples(self, tmp_path, source):
        asked = Asked.of(images(data={"auxiliary": 0.3}, train={"batch_size": 7}), tmp_path)
        true = asked.answer(CountSteps(source))
        asked.check(CountSteps(source), true)
        for count in (0, true + 1, 2**50):
            with pytest.raises(ProtocolError):
                asked.check(CountSteps(source), count)


class TestWeights:
    @pytest.fixture
    def handing(self, tmp_path: Path) -> tuple[Asked, Packet]:
        adam = {"kind": "adam", "lr": 1e-3}
        given = images(clients={"heads": "shared"}, train={"client": adam})
        asked = Asked.of(given, tmp_path)
        learner = asked.bounds.weights.shared
        for parameter in learner.parameters:
            parameter.grad = torch.ones_like(parameter)
        learner.step()
        names, tensors = learner.list_travelling(moments=True)
        return asked, Packet(0, Leg.HANDOVER, 1, 1, tensors, names)

    def test_as_they_should_be(self, handing):
        asked, packet = handing
        assert any("exp_avg_sq" in name for name in packet.names)
        asked.bounds.weights.check(packet)

    @pytest.mark.parametrize("lacking", ["optimizer.0.exp_avg_sq", "optimizer.0.step"])
    def test_moments_are_whole(self, handing, lacking):
        asked, packet = handing
        kept = [n for n, name in enumerate(packet.names) if name != lacking]
        names, tensors = ([each[n] for n in kept] for each in (packet.names, packet.tensors))
        with pytest.raises(ProtocolError):
            asked.bounds.weights.check(replace(packet, names=tuple(names), tensors=tuple(tensors)))

    @pytest.mark.parametrize(
        "change",
        [lambda t: -t.abs() - 1, lambda t: t.double(), lambda t: t[None]],
        ids=["negative", "double", "deeper"],
    )
    def test_moments_are_those_of_the_optimizer(self, handing, change):
        asked, packet = handing
        at = packet.names.index("optimizer.0.exp_avg_sq")
        tensors = list(packet.tensors)
        tensors[at] = change(tensors[at])
        with pytest.raises(ProtocolError):
            asked.bounds.weights.check(packet.with_tensors(tuple(tensors)))

    def test_without_names(self, tmp_path):
        asked = Asked.of(images(aggregation="splitfed_v2", clients={"heads": "shared"}), tmp_path)
        packet = asked.answer(HandOver(1))
        asked.check(HandOver(1), packet)
        with pytest.raises(ProtocolError):
            asked.check(HandOver(1), replace(packet, names=()))
        with pytest.raises(ProtocolError):
            asked.check(HandOver(1), packet.with_tensors(tuple(t + 3e38 for t in packet.tensors)))

    def test_changes_of_another_round(self, tmp_path):
        few = {"kind": "splitfed_v2", "bits": 8}
        asked = Asked.of(images(aggregation=few, clients={"heads": "shared"}), tmp_path)
        packet = asked.answer(HandOver(1))
        since = packet.names.index("since")
        for number, fits in ((1, True), (0, False), (2**40, False)):
            tensors = list(packet.tensors)
            tensors[since] = torch.tensor(number)
            changed = packet.with_tensors(tuple(tensors))
            if fits:
                asked.check(HandOver(1), changed)
            else:
                with pytest.raises(ProtocolError):
                    asked.check(HandOver(1), changed)
