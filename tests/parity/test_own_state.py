"""What a method of one's own remembers from step to step is the same after a resume or an undo."""

from pathlib import Path
from typing import Any

import plugins
import pytest
import torch
from builders import TINY, StopAt
from comparing import assert_equal, weights

from simsplit.experiment import Experiment
from simsplit.methods.stack import build_stack
from simsplit.running.live import LiveRun
from simsplit.running.rehearsing import rehearse
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.whole_run import run


def scenario_with(**changes: Any) -> Scenario:
    feedback = {"method": [{"kind": "feedback"}], "schedule": {"rounds": 3}}
    return parse(merge(merge(TINY, feedback), changes), plugins)


COPIES = {
    "schedule": {"kind": "parallel"},
    "aggregation": "splitfed_v1",
    "method": [{"kind": "feedback", "sides": ["server"]}],
}


@pytest.mark.parametrize(("changes", "kept"), [({}, 4), (COPIES, 3)], ids=["one trunk", "copies"])
def test_interrupted_and_resumed(changes: dict[str, Any], kept: int, tmp_path: Path) -> None:
    given = scenario_with(**changes)
    run(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "broken", [StopAt(12)]).run(resume=False)
    run(given, tmp_path / "broken", resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "broken", given)
    # Of each client and the server, or of each client's copy of the trunk.
    assert sum("left_out" in name for name in weights(tmp_path / "whole", given)) == kept


def test_an_undone_round_leaves_no_trace(tmp_path: Path) -> None:
    given = scenario_with()
    cpu = torch.device("cpu")
    live = LiveRun(given, given.prepare_data(), cpu, None, folder=tmp_path)
    stacks = live.parts.server.stack, live.parts.pool.clients[2].training.end.stack
    methods = [stack.get_methods()[0] for stack in stacks]
    for method in methods:
        method.left_out = torch.ones(1, 3)
    mark = live.mark(1)
    for method in methods:
        method.left_out = torch.zeros(1, 3)
    live.undo(mark)
    assert [method.left_out.tolist() for method in methods] == [[[1, 1, 1]]] * 2


def test_clients_with_one_head_remember_apart() -> None:
    stack = build_stack(scenario_with().method, "client", ((3,), (3,)), 0, torch.device("cpu"))
    (method,) = stack.get_methods()
    for client, value in ((0, 1.0), (1, 2.0)):
        stack.turn_to(client)
        assert method.left_out is None
        method.left_out = torch.full((1,), value)
    stack.turn_to(0)
    assert method.left_out.item() == 1.0


class TestARehearsalWarns:
    def warnings(self, **changes: Any) -> list[str]:
        return rehearse(scenario_with(**changes), None, torch.device("cpu"))

    def test_of_what_no_checkpoint_keeps(self) -> None:
        (warning,) = self.warnings(method=[{"kind": "feedback", "keeps": False}])
        assert all(each in warning for each in ("feedback", "left_out", "state", "load"))

    def test_of_nothing_that_one_keeps(self) -> None:
        assert self.warnings() == []

    def test_of_no_weights(self) -> None:
        assert self.warnings(method=[{"kind": "warmup"}]) == []
