"""A server may be hostile: a client answers what the approved scenario takes, and nothing else."""

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY
from direct import Sites
from texts import text_scenario

from simsplit.deploy.call_codecs import ANSWERS, REFUSED, write_call
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.rules import LEAST_RETURNS
from simsplit.deploy.site import ClientSite
from simsplit.errors import ProtocolError, RunError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties import calls
from simsplit.parties.calls import (
    Assess,
    Begin,
    Call,
    Enter,
    HandOver,
    Hear,
    Note,
    Probe,
    Proceed,
    Receive,
    ReportRound,
)
from simsplit.phases import Phase
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

MOST = 2**28
TRAIN = Phase("train", 2)


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, {"clients": {"count": 2}}), changes))


class Server:
    """What a server could send to a site, in order."""

    def __init__(self, site: ClientSite) -> None:
        self.site, self.number = site, 0

    def ask(self, call: Call[Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        return self.send(*write_call(call))

    def send(
        self, header: dict[str, object], tensors: list[torch.Tensor]
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        self.number += 1
        return read_frame(
            self.site.answer(write_frame({"number": self.number, **header}, tensors)), MOST
        )

    def command(self, **command: int) -> None:
        self.send(dict(command), [])

    def begin_step(self) -> Packet:
        """Return the packet of a step that has begun."""
        _, (payload,) = self.ask(Begin(1))
        return Packet(0, Leg.SMASHED, 1, 0, (payload,))

    def features(self, **other: Any) -> Packet:
        sent = self.begin_step()
        shape = self.site.bounds.packets.get_shapes(0)[1]
        made = sent.answer(Leg.FEATURES, (torch.zeros(len(sent.tensors[0]), *shape),))
        return replace(made, **other)


def start_two(path: Path, given: Scenario) -> list[Server]:
    """Start two sites that know each other, in their first round."""
    made = [Server(site) for site in Sites(given, path).sites]
    for server in made:
        server.ask(Enter(TRAIN, 1.0))
    return made


@pytest.fixture
def server(tmp_path: Path) -> Server:
    made = Server(ClientSite(scenario(), scenario().prepare_data(), 0, tmp_path))
    made.ask(Enter(TRAIN, 1.0))
    return made


def test_every_call_is_either_answered_or_refused():
    defined = [each for each in vars(calls).values() if isinstance(each, type)]
    named = {each for each in defined if issubclass(each, Call) and each.__name__[0] != "_"}
    assert not ANSWERS.keys() & REFUSED
    assert {*ANSWERS, *REFUSED} == named - {Call}, "a new call: may a deployed client answer it?"


@pytest.mark.parametrize("kind", [calls.InputsOf, calls.LabelsOf, calls.OwnTokens])
def test_what_only_attacks_are_scored_by_is_refused(kind):
    assert kind in REFUSED


@pytest.mark.parametrize(
    "name", [*sorted(kind.__name__ for kind in REFUSED), "Call", "feed", "__init__"]
)
def test_no_refused_or_unknown_call_is_answered(server, name):
    with pytest.raises(ProtocolError, match="not answer"):
        server.send({"call": name, "fields": {}}, [])


@pytest.mark.parametrize("kind", sorted(ANSWERS, key=str))
def test_an_answered_call_is_understood(server, kind):
    with pytest.raises(ProtocolError, match="other fields"):
        server.send({"call": kind.__name__, "fields": {"nonsense": 0}}, [])


class TestSteps:
    def test_as_many_as_the_scenario_takes(self, server):
        most = server.site.client.training.steps_per_epoch("private")
        for _ in range(most):
            server.ask(Begin(1))
            server.site.rules._turn = 0  # as if its answers had come
        with pytest.raises(ProtocolError, match=f"allows {most}"):
            server.ask(Begin(1))

    @pytest.mark.parametrize("number", [0, 3, 2**40])
    def test_of_no_other_round(self, server, number):
        with pytest.raises(ProtocolError, match=r"begin .*round"):
            server.ask(Begin(number))

    def test_not_before_the_last_is_over(self, server):
        server.ask(Begin(1))
        with pytest.raises(ProtocolError, match=r"begin .*round"):
            server.ask(Begin(1))

    def test_not_of_the_same_round_again(self, server):
        server.ask(Begin(1))
        server.ask(Enter(TRAIN, 1.0))
        with pytest.raises(ProtocolError, match=r"begin .*round"):
            server.ask(Begin(1))

    def test_not_interleaved(self, server):
        with pytest.raises(ProtocolError, match="interleaved"):
            server.ask(calls.BeginInterleaved(1))

    @pytest.mark.parametrize(
        "phase",
        [
            replace(TRAIN, rounds=3),
            replace(TRAIN, source="public"),
            replace(TRAIN, learns=frozenset({"trunk"})),
            replace(TRAIN, gradients=False),
            replace(TRAIN, task=False),
            replace(TRAIN, name="extra"),
        ],
        ids=["rounds", "source", "learns", "gradients", "task", "name"],
    )
    def test_in_no_other_phase(self, server, phase):
        with pytest.raises(ProtocolError, match="phase"):
            server.ask(Enter(phase, 1.0))

    def test_not_out_of_turn(self, server):
        server.number += 1
        with pytest.raises(ProtocolError, match="out of turn"):
            server.ask(Begin(1))

    def test_no_frame_twice(self, server):
        header, tensors = write_call(Begin(1))
        frame = write_frame({"number": 2, **header}, tensors)
        server.site.answer(frame)
        with pytest.raises(ProtocolError, match="out of turn"):
            server.site.answer(frame)


class TestAnswers:
    def test_as_they_should_be(self, server):
        header, (grad,) = server.ask(Proceed((server.features(),), Leg.FEATURES_GRAD))
        assert header["answer"][0]["leg"] == "features_grad"
        assert len(grad) == 16

    def test_to_nothing(self, server):
        packet = Packet(0, Leg.FEATURES, 1, 0, (torch.zeros(16, 512),))
        with pytest.raises(ProtocolError, match="not begun"):
            server.ask(Proceed((packet,), Leg.FEATURES_GRAD))

    @pytest.mark.parametrize(
        "other",
        [
            {"client": 1},
            {"round": 2},
            {"step": 1},
            {"session": 0},
            {"leg": Leg.SMASHED_GRAD},
            {"tensors": (torch.zeros(16, 513),)},
            {"tensors": (torch.zeros(15, 512),)},
            {"tensors": (torch.zeros(16, 512, dtype=torch.int64),)},
            {"tensors": (torch.full((16, 512), torch.inf),)},
            {"tensors": (torch.zeros(16, 512), torch.zeros(1))},
            {"tensors": ()},
        ],
        ids=lambda value: "-".join(value),
    )
    def test_that_are_none(self, server, other):
        with pytest.raises(ProtocolError):
            server.ask(Proceed((server.features(**other),), Leg.FEATURES_GRAD))

    def test_twice(self, server):
        packet = server.features()
        server.ask(Proceed((packet,), Leg.FEATURES_GRAD))
        with pytest.raises(ProtocolError):
            server.ask(Proceed((packet,), Leg.FEATURES_GRAD))


class TestReports:
    """Of fewer steps than a round has, a report would tell the server about single samples."""

    def test_of_a_round_that_is_over_once(self, server):
        for _ in range(server.site.client.training.steps_per_epoch("private")):
            server.ask(Begin(1))
            server.site.rules._turn = 0  # as if its answers had come
        server.ask(ReportRound())
        with pytest.raises(ProtocolError):
            server.ask(ReportRound())

    def test_of_no_step(self, server):
        with pytest.raises(ProtocolError):
            server.ask(ReportRound())

    def test_of_one_step(self, server):
        server.ask(Begin(1))
        with pytest.raises(ProtocolError):
            server.ask(ReportRound())
        server.number -= 1
        server.site._last_number -= 1
        server.site.rules._turn = 0
        with pytest.raises(ProtocolError):
            server.ask(ReportRound())


class TestScores:
    """Of fewer batches than a split has, scores would tell the server about single samples."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Server:
        given = scenario(evaluate={"batch_size": 15})  # three batches of 40 samples
        made = Server(ClientSite(given, given.prepare_data(), 0, tmp_path))
        made.ask(Enter(TRAIN, 1.0))
        return made

    def evaluate(self, server: Server, number: int) -> None:
        _, (payload,) = server.ask(Probe("test", 1, number))
        features = (torch.zeros(len(payload), *server.site.bounds.packets.get_shapes(0)[1]),)
        last = server.site.scenario.crossings.inference.turns[-1].leg
        server.ask(Note((Packet(0, Leg.FEATURES, 1, number, features),), last))

    def test_of_a_whole_split_once(self, server):
        for number in range(3):
            self.evaluate(server, number)
        server.ask(Assess("test"))
        with pytest.raises(ProtocolError):
            server.ask(Assess("test"))

    @pytest.mark.parametrize("batches", [(), (0,), (1, 2)], ids=str)
    def test_of_no_part(self, server, batches):
        for number in batches:
            self.evaluate(server, number)
        with pytest.raises(ProtocolError):
            server.ask(Assess("test"))

    def test_of_a_batch_that_there_is_not(self, server):
        with pytest.raises(ProtocolError):
            server.ask(Probe("test", 1, 3))


class TestEvaluations:
    def test_as_planned(self, server):
        _, (payload,) = server.ask(Probe("test", 1, 0))
        shape = server.site.bounds.packets.get_shapes(0)[1]
        sent = Packet(0, Leg.FEATURES, 1, 0, (torch.randn(len(payload), *shape),))
        last = server.site.scenario.crossings.inference.turns[-1].leg
        header, none = server.ask(Note((sent,), last))
        assert header["answer"] is None
        assert none == [], "outputs stay"
        header, none = server.ask(calls.Assess("test"))
        assert header["answer"].keys() == {"accuracy", "balanced_accuracy", "loss"}
        assert none == []

    @pytest.mark.parametrize(
        "probe",
        [
            Probe("train", 1, 0),
            Probe("validation", 1, 0),
            Probe("private", 1, 0),
            Probe("test", 3, 0),
            Probe("test", 1, 0, "plain"),
        ],
        ids=str,
    )
    def test_of_nothing_else(self, server, probe):
        with pytest.raises(ProtocolError, match="evaluate"):
            server.ask(probe)

    def test_and_no_texts_that_are_not_scored(self, server):
        with pytest.raises(ProtocolError, match="not score"):
            server.ask(calls.Write("test", 1, 1))

    def test_of_each_batch_once(self, server):
        server.ask(Probe("test", 1, 0))
        with pytest.raises(ProtocolError, match="twice"):
            server.ask(Probe("test", 1, 0))


class TestWhatIsShared:
    @pytest.fixture
    def two(self, tmp_path: Path) -> list[Server]:
        return start_two(tmp_path, scenario())

    def seal_plain(self, two: list[Server]) -> Packet:
        """Return the plain hand-over as the other client seals it."""
        return two[1].site._seal_handover(self.plain(two))

    def plain(self, two: list[Server]) -> Packet:
        names, tensors = two[0].site.bounds.weights.shared.list_travelling(moments=True)
        return Packet(1, Leg.HANDOVER, 1, 0, tuple(t.detach().clone() for t in tensors), names)

    def test_an_untouched_one_is_accepted(self, two):
        two[0].ask(Receive(self.seal_plain(two)))
        header, tensors = two[0].ask(HandOver(1))
        (facts,) = [header["answer"]]
        assert len(facts["names"]) == len(facts["sealed"]) > 0
        assert [tensor.dtype for tensor in tensors] == [torch.uint8]

    def test_never_without_a_seal(self, two, server):
        for leg in (Leg.HANDOVER, Leg.BROADCAST):
            with pytest.raises(ProtocolError, match="not sealed"):
                two[0].ask(Receive(replace(self.plain(two), leg=leg)))
            two[0].number -= 1
            two[0].site._last_number -= 1
        with pytest.raises(RunError, match="no keys"):
            server.ask(HandOver(1))

    def test_of_other_shape_or_name(self, two):
        good = self.plain(two)
        wider = (torch.zeros(3, 3), *good.tensors[1:])
        renamed = ("trunk.weight", *good.names[1:])
        for number, bad in enumerate(
            (
                good.with_tensors(wider),
                replace(good, names=renamed),
                replace(good, names=good.names[1:], tensors=good.tensors[1:]),
                replace(good, names=(good.names[1], *good.names[1:])),
                good.with_tensors((torch.full_like(good.tensors[0], torch.nan), *good.tensors[1:])),
                replace(
                    good,
                    names=(*good.names, "optimizer.99.exp_avg"),
                    tensors=(*good.tensors, torch.zeros(1)),
                ),
            )
        ):
            two[0].number, two[0].site._last_number = number, number
            header, tensors = two[0].ask(Receive(two[1].site._seal_handover(bad)))
            assert header["unusable"] == 1
            assert [len(tensor) for tensor in tensors] == [32], "the key, as proof"

    def test_averages_as_they_are(self, tmp_path):
        server = start_two(tmp_path, scenario(aggregation="splitfed_v2"))[0]
        good = replace(self.plain([server]), client=0, leg=Leg.BROADCAST)
        server.ask(Receive(good))
        with pytest.raises(ProtocolError, match="another shape"):
            server.ask(Receive(good.with_tensors((torch.zeros(3, 3), *good.tensors[1:]))))

    def test_no_averages_within_a_round(self, tmp_path):
        """Weights before and after a batch tell its gradient."""
        server = start_two(tmp_path, scenario(aggregation="splitfed_v2"))[0]
        good = replace(self.plain([server]), client=0, leg=Leg.BROADCAST)
        steps = server.site.client.training.steps_per_epoch("private")
        assert steps > 1
        for _ in range(steps - 1):
            server.ask(Begin(1))
            server.site.rules._turn = 0  # as if its answers had come
            for call in (HandOver(1), Receive(good)):
                with pytest.raises(ProtocolError, match="within a round"):
                    server.ask(call)
        server.ask(Begin(1))
        server.site.rules._turn = 0
        server.ask(HandOver(1))
        server.ask(Receive(good))

    @pytest.mark.parametrize("way", ["enter", "keep", "back"])
    def test_no_averages_after_a_round_that_was_cut_off(self, tmp_path, way):
        """Another command does not end the round: the weights are those of some batches."""
        server = start_two(tmp_path, scenario(aggregation="splitfed_v2"))[0]
        server.ask(Begin(1))
        server.site.rules._turn = 0
        if way != "enter":
            server.command(keep=1)
        if way == "back":
            server.command(back_to=1)
        server.ask(Enter(TRAIN, 1.0))
        with pytest.raises(ProtocolError, match="within a round"):
            server.ask(HandOver(1))
        # a whole round has them again
        server.number = server.site._last_number = 99
        for _ in range(server.site.client.training.steps_per_epoch("private")):
            server.ask(Begin(2))
            server.site.rules._turn = 0
        server.ask(HandOver(2))

    def test_no_averages_for_a_client_with_another_cut(self, tmp_path):
        model = {"kind": "mlp", "widths": [8, 8, 8], "head": 1, "tail": 1}
        cuts = {"aggregation": "splitfed_v2", "model": model, "clients": {"cut": [1, 2]}}
        server, other = start_two(tmp_path, scenario(**cuts))
        own, deeper = (
            Packet(client, Leg.BROADCAST, 1, 0, tuple(named.values()), tuple(named))
            for client, site in enumerate((server.site, other.site))
            for named in [site.bounds.weights.get_named(client)]
        )
        server.ask(Receive(own))
        for wrong, why in ((deeper, "another client"), (replace(deeper, client=0), "no client")):
            server.number = server.site._last_number = 9
            with pytest.raises(ProtocolError, match=why):
                server.ask(Receive(wrong))

    def test_no_heads_of_their_own(self, tmp_path):
        own = scenario(clients={"heads": "per_client"})
        server = Server(ClientSite(own, own.prepare_data(), 0, tmp_path))
        server.ask(Enter(TRAIN, 1.0))
        with pytest.raises(ProtocolError, match="share"):
            server.ask(HandOver(1))

    def test_announcements_of_other_forms(self, server):
        for number, announced in enumerate(([()], [(torch.zeros(3),)])):
            server.number = server.site._last_number = number
            with pytest.raises(ProtocolError):
                server.ask(Hear(announced))

    def test_announcements_once(self, server):
        server.ask(Hear([]))
        with pytest.raises(ProtocolError, match="twice"):
            server.ask(Hear([]))


class TestRoundsThatAreUndone:
    def test_none_where_nothing_rolls_back(self, server):
        with pytest.raises(ProtocolError, match=r"mark round 1.*undo"):
            server.command(mark=1)

    def test_marked_rounds_once_each(self, tmp_path):
        given = scenario(
            clients={"count": 3}, detectors=[{"kind": "cosine_mad", "response": "rollback"}]
        )
        server = Server(ClientSite(given, given.prepare_data(), 0, tmp_path))
        server.ask(Enter(TRAIN, 1.0))
        server.command(mark=1)
        server.command(undo=1)
        with pytest.raises(ProtocolError, match="not marked"):
            server.command(undo=1)


class TestCheckpoints:
    def test_that_are_not_there(self, server):
        with pytest.raises(RunError, match=r"checkpoint .*round 1"):
            server.command(back_to=1)

    def test_of_an_earlier_round_than_the_servers_other_side_kept(self, server):
        """The server may have been killed before its own of that round was written."""
        server.command(keep=1)
        server.command(keep=2)
        server.command(back_to=1)
        assert server.site.rounds_kept == 1
        server.command(keep=2)

    def test_on_a_disk_that_is_full(self, server):
        """The client says so to its owner; with room again, it goes on from where it was."""
        server.command(keep=1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(RunError, match=r"cannot write .*checkpoints"):
                server.command(keep=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        server.command(back_to=1)
        server.command(keep=2)
        assert server.site.rounds_kept == 2

    def test_later_ones_stay_if_the_state_cannot_be_read(self, server, monkeypatch):
        server.command(keep=1)
        server.command(keep=2)
        server.command(back_to=1)
        with monkeypatch.context() as patch:
            patch.setattr(server.site.client.keeping, "state", lambda: {}["gone"])
            with pytest.raises(KeyError):
                server.command(keep=1)
        server.command(back_to=2)
        assert server.site.rounds_kept == 2

    def test_not_as_often_as_a_server_likes(self, server):
        for _ in range(LEAST_RETURNS):
            server.site.rules.return_to(0)
        with pytest.raises(ProtocolError, match=r"returned .*checkpoint"):
            server.command(back_to=0)

    def test_of_texts(self, tmp_path):
        given = text_scenario(tmp_path)
        server = Server(ClientSite(given, given.prepare_data(), 0, tmp_path / "site"))
        server.command(keep=1)
        server.command(back_to=1)
        assert server.site.rounds_kept == 1


def test_an_exceptions_text_stays(server):
    header, tensors = read_frame(server.site.report_failure(ValueError("my canary")), MOST)
    assert header == {"number": 1, "failed": "ValueError"}
    assert tensors == []
