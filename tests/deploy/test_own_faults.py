"""Nobody is expelled for the server's own faults: a plugin that fails, or a learning rate."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from builders import TINY, experiment
from gists import says
from hostile import Stage, Way
from hostile_ways import fill, map_tensors

from simsplit.errors import PluginError, PluginFailedError, RunFailedError, ScenarioError
from simsplit.parties.server_end import ServerEnd
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
PLUGIN = """
from pathlib import Path
from typing import Literal

import torch

from simsplit import CodecConfig, Method


class Config(CodecConfig):
    kind: Literal["scaled"] = "scaled"

    def build(self, site):
        return Scaled(site.side)


class Scaled(Method):
    num_side = 1

    def __init__(self, side):
        self.side = side

    def pack(self, x, step):
        return x / 2, torch.full((1,), 2.0)

    def unpack(self, tensors, step):
        x, scale = tensors
        if scale.item() <= 0:
            raise ValueError("no scale")
        if self.side == "server" and FAILS:
            raise ZeroDivisionError("spoilt")
        return x * scale


METHODS = {"scaled": Config}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("own"), 5)


def with_plugin(folder: Path, fails: str, **changes: Any) -> Scenario:
    """Return a scenario whose method's `unpack` fails at the server under a condition."""
    file = folder / "scaled.py"
    file.write_text(PLUGIN.replace("FAILS", fails))
    own = {"method": [{"kind": "scaled"}], "clients": {"heads": "per_client"}}
    return parse(merge(merge(TINY, own), changes), file)


def spike(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with one value that is large: one input's weights change, and no others."""
    spiked = torch.zeros_like(tensor)
    spiked.flatten()[0] = 1e14
    return spiked


def list_left_out(run: Run) -> list[list[Any]]:
    return run.expelled[["client", "kind"]].to_numpy().tolist() if len(run.expelled) else []


class TestAPlugin:
    def test_that_always_fails_is_named_before_anybody_connects(self, stage, tmp_path):
        given = with_plugin(tmp_path, "True")
        said: list[str] = []
        with pytest.raises(PluginError) as raised:
            stage.run(given, tmp_path, {}, say=said.append)
        fault = raised.value.fault
        assert (fault.file, fault.hook) == (str(tmp_path / "scaled.py"), "unpack")
        assert not said

    @pytest.mark.parametrize("aggregation", ["none", "splitfed_v1"])
    def test_that_fails_in_a_round_expels_nobody_and_can_be_mended(
        self, stage, aggregation, tmp_path
    ):
        """A rehearsal of that round fails too, so the first client is not expelled for it."""
        flag = tmp_path / "spoilt"
        flag.touch()
        fails = f"step.round == 2 and Path({str(flag)!r}).exists()"
        given = with_plugin(tmp_path, fails, aggregation=aggregation)
        with pytest.raises(PluginFailedError) as raised:
            stage.run(given, tmp_path, {})
        fault = raised.value.fault
        assert (fault.file, fault.hook) == (str(tmp_path / "scaled.py"), "unpack")
        run = Run.load(tmp_path / "run")
        assert list_left_out(run) == []
        assert run.summary["status"] == "failed"
        assert len(run.rounds) == 1
        flag.unlink()
        outcome = stage.run(given, tmp_path, {}, resume=True)
        assert [party.end for party in outcome.parties] == ["finished"] * 3
        assert len(outcome.run.rounds) == 2

    def test_that_no_rehearsal_finds_is_found_where_all_clients_fail(self, stage, tmp_path):
        given = with_plugin(tmp_path, "step.training and step.number >= 3")
        with pytest.raises(PluginFailedError) as raised:
            stage.run(given, tmp_path, {})
        assert raised.value.fault.hook == "unpack"
        assert list_left_out(Run.load(tmp_path / "run")) == []

    def test_that_a_hostile_packet_makes_fail_costs_that_client_its_place(self, stage, tmp_path):
        way = Way("no scale", "Begin", map_tensors(torch.neg, 1), leg="smashed", after=1)
        outcome = stage.run(with_plugin(tmp_path, "False"), tmp_path, {1: way})
        assert list_left_out(outcome.run) == [[1, "expelled"]]
        assert [outcome.parties[n].end for n in (0, 2)] == ["finished"] * 2
        assert len(outcome.run.rounds) == 2


def test_a_part_of_the_server_that_fails_for_all_expels_nobody(stage, tmp_path, monkeypatch):
    def fail(*given: object) -> None:
        del given
        raise ZeroDivisionError("spoilt")

    monkeypatch.setattr(ServerEnd, "_note_grads", fail)
    with pytest.raises(RunFailedError) as raised:
        stage.run(parse(TINY), tmp_path, {})
    assert says(str(raised.value), "ZeroDivisionError: spoilt ... test_own_faults.py")
    assert list_left_out(Run.load(tmp_path / "run")) == []


class TestTrainingThatDiverges:
    LR: ClassVar = {side: {"kind": "sgd", "lr": 1e30} for side in ("server", "client")}
    COURSES = (
        {},
        {"clients": {"heads": "per_client"}},
        {"topology": "vanilla"},
        {"aggregation": "splitfed_v1"},
        {"aggregation": "splitfed_v2"},
        {"aggregation": "fused", "schedule": {"kind": "parallel"}},
    )

    @pytest.mark.parametrize("course", COURSES, ids=str)
    @pytest.mark.parametrize("sides", [("server",), ("client",), ("server", "client")], ids=str)
    def test_expels_nobody_and_advises_a_smaller_learning_rate(
        self, stage, course, sides, tmp_path
    ):
        rates = {side: self.LR[side] for side in sides}
        given = parse(merge(merge(TINY, course), {"train": rates}))
        with pytest.raises(RunFailedError) as raised:
            stage.run(given, tmp_path, {})
        assert says(str(raised.value), "round 1: training diverges ... learning rate")
        run = Run.load(tmp_path / "run")
        assert list_left_out(run) == []
        assert run.summary["status"] == "failed"

    @pytest.mark.parametrize("multiplier", [2.0, 3.0])
    def test_by_noise_that_makes_weights_larger_expels_nobody(self, stage, multiplier, tmp_path):
        """The server clips the trunk's gradients, but not those of the heads that are handed on."""
        own = {
            "seed": 4,
            "clients": {"count": 2},
            "model": {"kind": "simplecnn", "learns": ["head", "trunk"]},
            "method": [{"kind": "dp_sgd", "multiplier": multiplier, "relative": False}],
        }
        with pytest.raises(RunFailedError) as raised:
            stage.run(parse(merge(TINY, own)), tmp_path, {})
        assert says(str(raised.value), "training diverges")
        assert list_left_out(Run.load(tmp_path / "run")) == []

    def test_later_than_a_rehearsal_can_see(self, stage, tmp_path, monkeypatch):
        monkeypatch.setattr("simsplit.deploy.fault_judge.diverges", lambda *_, **__: False)
        given = parse(merge(TINY, {"train": self.LR, "clients": {"count": 5}}))
        with pytest.raises(RunFailedError) as raised:
            stage.run(given, tmp_path, {})
        assert says(str(raised.value), "training diverges ... all 5 clients")
        assert list_left_out(Run.load(tmp_path / "run")) == []

    @pytest.mark.parametrize(
        "change",
        [fill(float("nan")), fill(1e14), map_tensors(spike)],
        ids=["nan", "large", "spike"],
    )
    def test_is_not_what_a_minority_makes_it_look_like(self, stage, change, tmp_path):
        """Two of five send numbers that are not finite, or that let the trunk overflow."""
        given = parse(merge(TINY, {"clients": {"count": 5, "heads": "per_client"}}))
        ways = {n: Way("spoils", "Begin", change, leg="smashed", after=1) for n in (0, 3)}
        outcome = stage.run(given, tmp_path, ways)
        assert sorted(list_left_out(outcome.run)) == [[0, "expelled"], [3, "expelled"]]
        assert [outcome.parties[n].end for n in (1, 2, 4)] == ["finished"] * 3


class TestAClientThatCreeps:
    """One of five makes the trunk a little larger in each step; nothing tells that it was this one.

    Its steps enlarge the trunk by hundreds, and those of honest clients then by millions. So the
    round is done again with clipped gradients, and nobody is harmed.
    """

    WAY = Way("larger", "Begin", map_tensors(lambda t: 10 * t), leg="smashed", after=1)

    def make(self, **train: Any) -> Scenario:
        rates = {side: {"kind": "sgd", "lr": 0.1} for side in ("server", "client")}
        clients = {"count": 5, "heads": "per_client"}
        return parse(merge(TINY, {"clients": clients, "train": rates | train}))

    def test_harms_nobody(self, stage, tmp_path):
        outcome = stage.run(self.make(), tmp_path, {0: self.WAY})
        assert [party.end for party in outcome.parties[1:]] == ["finished"] * 4
        assert list_left_out(outcome.run) == []
        deployed = outcome.run.summary["deployed"]
        assert (deployed["trunk_clipped"], deployed["as_simulated"]) == (True, False)

    def test_does_not_stop_a_run_that_clips_gradients(self, stage, tmp_path):
        outcome = stage.run(self.make(clip_norm=1.0), tmp_path, {0: self.WAY})
        assert not outcome.run.summary["deployed"]["trunk_clipped"]
        assert [party.end for party in outcome.parties[1:]] == ["finished"] * 4
        assert list_left_out(outcome.run) == []


class TestAStrategyThatNeedsClients:
    """Krum needs three updates: with fewer the run stops, as a weaker average is not asked for."""

    AGGREGATION: ClassVar = {"kind": "splitfed_v2", "strategy": {"kind": "krum"}}

    def make(self, **clients: Any) -> Scenario:
        return parse(merge(TINY, {"aggregation": self.AGGREGATION, "clients": clients}))

    def test_stops_before_the_round_with_its_name(self, stage, tmp_path):
        given = self.make(count=3)
        way = Way("not a number", "Begin", fill(float("nan")), leg="smashed", after=2)
        with pytest.raises(RunFailedError) as raised:
            stage.run(given, tmp_path, {0: way})
        assert says(
            str(raised.value), "round 2: 2 of 3 clients ... aggregation.strategy: krum needs 3"
        )
        run = Run.load(tmp_path / "run")
        assert list_left_out(run) == [[0, "expelled"]]
        assert (len(run.rounds), run.summary["status"]) == (1, "failed")

    def test_continues_while_there_are_enough(self, stage, tmp_path):
        way = Way("not a number", "Begin", fill(float("nan")), leg="smashed", after=2)
        outcome = stage.run(self.make(count=4), tmp_path, {0: way})
        assert list_left_out(outcome.run) == [[0, "expelled"]]
        assert len(outcome.run.rounds) == 2

    def test_is_resumed_with_a_client_whose_row_the_owner_deletes(self, stage, tmp_path):
        self.test_stops_before_the_round_with_its_name(stage, tmp_path)
        table = tmp_path / "run" / "expelled.csv"
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:1]))
        outcome = stage.run(self.make(count=3), tmp_path, {}, resume=True)
        assert [party.end for party in outcome.parties] == ["finished"] * 3
        assert len(outcome.run.rounds) == 2

    def test_refuses_to_go_on_without_one_that_it_needs(self, stage, tmp_path):
        with pytest.raises(ScenarioError) as refused:
            stage.run(self.make(count=3), tmp_path, {}, without=[2])
        assert refused.value.field == "aggregation.strategy"
        given = self.make(count=3, quorum=1)
        with pytest.raises(RunFailedError, match="client 2"):
            stage.run(given, tmp_path / "away", {}, absent=[2], patience_s=1)


class TestADetectorThatNeedsClients:
    """Fewer clients than a detector can compare would pass unseen, as nobody has approved."""

    def make(self, response: str, **clients: Any) -> Scenario:
        detectors = [{"kind": "krum", "response": response}]
        return parse(merge(TINY, {"detectors": detectors, "clients": clients}))

    WAY = Way("not a number", "Begin", fill(float("nan")), leg="smashed", after=2)

    @pytest.mark.parametrize("response", ["skip", "downweight", "rollback"])
    def test_stops_before_the_round_with_its_name(self, stage, response, tmp_path):
        with pytest.raises(RunFailedError) as raised:
            stage.run(self.make(response, count=3), tmp_path, {0: self.WAY})
        assert says(str(raised.value), "round 2: 2 of 3 clients ... detectors.0: krum needs 3")
        run = Run.load(tmp_path / "run")
        assert list_left_out(run) == [[0, "expelled"]]
        assert (len(run.rounds), run.summary["status"]) == (1, "failed")

    @pytest.mark.parametrize(("response", "count"), [("none", 3), ("skip", 4)])
    def test_continues_where_it_only_measures_or_there_are_enough(
        self, stage, response, count, tmp_path
    ):
        outcome = stage.run(self.make(response, count=count), tmp_path, {0: self.WAY})
        assert list_left_out(outcome.run) == [[0, "expelled"]]
        assert [party.end for party in outcome.parties[1:]] == ["finished"] * (count - 1)
        assert len(outcome.run.rounds) == 2

    def test_refuses_to_go_on_without_one_that_it_needs(self, stage, tmp_path):
        with pytest.raises(ScenarioError) as refused:
            stage.run(self.make("skip", count=3), tmp_path, {}, without=[2])
        assert refused.value.field == "detectors.0"


def test_clients_that_the_detector_has_flagged_do_not_stop_a_run(tmp_path):
    """As in simulations: it has compared them with the others before."""
    flags = {"kind": "krum", "response": "skip"}
    live = experiment(parse(merge(TINY, {"detectors": [flags]})), tmp_path / "run").live
    live.detection.guard.barred.add(0)
    live.refuse_too_few(2)
    live.leave_out([1])
    with pytest.raises(RunFailedError) as raised:
        live.refuse_too_few(2)
    assert says(str(raised.value), "round 2: 2 of 3 clients ... detectors.0: krum needs 3")
