"""A run's own transcript has what crossed, to the bit, and changes nothing."""

from pathlib import Path

import pytest
import torch
from builders import StopAt, scenario
from hosted import on_hosts
from texts import text_scenario

from simsplit import run
from simsplit.deploy.call_codecs import REFUSED
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.observers.wire_recorder import TranscriptConfig
from simsplit.packets import Packet
from simsplit.parties.calls import RowsOf
from simsplit.parties.training import Training
from simsplit.progress import RunPlan
from simsplit.scenario import Scenario
from simsplit.wire import Wire
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

ATTACKED = {"attacks": [{"kind": "ridge"}], "targets": {"count": 8}}
KEPT = {"observers": [{"kind": "transcript", "rounds": [2], "clients": [1]}]}


class Tap:
    """Keeps all packets of a run."""

    def __init__(self, made: Experiment) -> None:
        self.packets = []
        self.moment = made.parts.wire.moment
        made.parts.wire.taps.append(self)

    def observe(self, packet):
        if self.moment.is_training:
            tensors = tuple(each.clone() for each in packet.tensors)
            self.packets.append(packet.with_tensors(tensors))


def observe(given: Scenario, path: Path) -> tuple[Experiment, Tap]:
    """Run a scenario with its observers, and with a tap beside them."""
    made = Experiment(given, path, [each.build(path) for each in given.observers])
    tap = Tap(made)
    made.run(resume=False)
    return made, tap


def test_a_transcript_has_what_crossed_and_its_truth(tmp_path: Path, finished) -> None:
    made, tap = observe(scenario(**KEPT), tmp_path / "run")
    plain = finished(scenario())
    for table in ("rounds.csv", "clients.csv", "wire.csv"):
        assert (tmp_path / "run" / table).read_bytes() == (plain / table).read_bytes()
    wire = Transcript.open(tmp_path / "run" / "transcript")
    assert wire.facts.modality == "images"
    assert wire.facts.image is not None
    assert wire.facts.image.size == (28, 28)
    crossings = list(wire.crossings())
    sent = [each for each in tap.packets if (each.round, each.client) == (2, 1)]
    sent = [each for each in sent if each.leg in wire.facts.legs]
    assert len(crossings) == len(sent) > 4
    for crossing, packet in zip(crossings, sent, strict=True):
        kept = crossing.packet
        assert (kept.leg, kept.step) == (packet.leg, packet.step)
        assert all(map(torch.equal, kept.tensors, packet.tensors))
        rows = made.parts.pool.ask(1, RowsOf(packet.step)).tolist()
        assert list(crossing.ids) == rows
    truth = Truth.open(tmp_path / "run" / "transcript")
    assert truth is not None
    ids = truth.ids.tolist()
    assert torch.equal(torch.stack(truth.find_inputs(ids)), made.data.train.inputs[ids])
    assert torch.equal(torch.stack(truth.find_labels(ids)), made.data.train.labels[ids])


def test_a_resumed_run_has_each_packet_once(tmp_path: Path) -> None:
    given = scenario(observers=[{"kind": "transcript"}])
    _, tap = observe(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "run", observers=[StopAt(9)])
    run(given, tmp_path / "run", resume=True)
    wire = Transcript.open(tmp_path / "run" / "transcript")
    sent = [each for each in tap.packets if each.leg in wire.facts.legs]
    packets = list(wire.packets())
    assert len(packets) == len(sent)
    for one, other in zip(packets, sent, strict=True):
        assert (one.leg, one.round, one.step) == (other.leg, other.round, other.step)
        assert all(map(torch.equal, one.tensors, other.tensors))


def test_targets_are_marked(tmp_path: Path) -> None:
    given = scenario(**ATTACKED, data={"auxiliary": 0.2}, observers=[{"kind": "transcript"}])
    made, _ = observe(given, tmp_path / "run")
    wire = Transcript.open(tmp_path / "run" / "transcript")
    (crossing,) = wire.crossings(phase="targets")
    samples, rows = given.aims.choose(made.data)
    truth = Truth.open(tmp_path / "run" / "transcript")
    assert truth is not None
    assert crossing.ids == tuple(rows.tolist())
    assert torch.equal(torch.stack(truth.find_inputs(crossing.ids)), samples.inputs[rows])


def test_a_packet_that_cannot_be_kept_ends_the_transcript_alone(tmp_path: Path) -> None:
    config = TranscriptConfig()
    recorder = config.build(tmp_path)
    wire = Wire([])
    recorder.follow(wire, {"legs": ("smashed",)}, None)
    recorder.begin(RunPlan(tmp_path, "x", 1, 0, 1, 1, "", ""))
    wire.carry(Packet(0, Leg.SMASHED, 1, 0, (torch.zeros(2),)))
    wire.carry(Packet(0, Leg.SMASHED, 1, 1, (torch.zeros(2, dtype=torch.complex64),)))
    wire.carry(Packet(0, Leg.SMASHED, 1, 2, (torch.zeros(2),)))
    recorder.end("finished")
    opened = Transcript.open(tmp_path / "transcript")
    assert [packet.step for packet in opened.packets()] == [0]
    assert "complex64" in opened.facts.ended


def test_a_deployed_client_is_never_asked_for_the_truth() -> None:
    assert RowsOf in REFUSED


@pytest.mark.ray
def test_hosts_send_what_this_process_sends(tmp_path: Path, hosts) -> None:
    given = scenario(observers=[{"kind": "transcript"}])
    observe(given, tmp_path / "inline")
    path = tmp_path / "hosted"
    kept = [each.build(path) for each in given.observers]
    on_hosts(given, path, hosts, *kept).run(resume=False)
    one, other = (
        list(Transcript.open(tmp_path / name / "transcript").crossings())
        for name in ("inline", "hosted")
    )
    assert len(one) == len(other) > 4
    for inline, hosted in zip(one, other, strict=True):
        assert (inline.ids, inline.packet.leg) == (hosted.ids, hosted.packet.leg)
        assert all(map(torch.equal, inline.packet.tensors, hosted.packet.tensors))


@pytest.mark.parametrize("engine", ["ray", "auto"])
def test_hosts_with_trunks_of_their_own_have_no_transcript(engine: str) -> None:
    alone = {**KEPT, "aggregation": "splitfed_v1"}
    assert scenario(**alone).observers
    with pytest.raises(ScenarioError) as refused:
        scenario(**alone, engine={"kind": engine, "hosts": 2})
    assert refused.value.field == "observers.0.kind"


def test_parts_of_a_batch_have_the_ids_of_their_own_samples(tmp_path: Path) -> None:
    true: dict[tuple[int, int], list[int]] = {}

    class Listening(Training):
        def _make(self, legs, pending):  # type: ignore[no-untyped-def]
            key = self.end.number, pending.step.number
            true[key] = pending.given.indices.tolist()
            return super()._make(legs, pending)

    given = scenario(**KEPT, train={"accumulate": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simsplit.parties.client.Training", Listening)
        observe(given, tmp_path / "run")
    crossings = list(Transcript.open(tmp_path / "run" / "transcript").crossings())
    assert crossings
    for each in crossings:
        assert list(each.ids) == true[each.packet.client, each.packet.step]


def test_public_steps_between_private_ones_have_no_ids(tmp_path: Path) -> None:
    given = text_scenario(
        tmp_path,
        data={"auxiliary": 0.3, "source": {"length": 8}},
        method=[{"kind": "mixguard", "tokens": 0, "warm_up": 1}],
        schedule={"rounds": 1},
        observers=[{"kind": "transcript"}],
    )
    observe(given, tmp_path / "run")
    phases = {True: set(), False: set()}
    for each in Transcript.open(tmp_path / "run" / "transcript").crossings(legs=["smashed"]):
        phases[bool(each.ids)].add(each.phase)
    assert phases[True] == {"train"}
    assert "train" not in phases[False]
