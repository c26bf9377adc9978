"""A run of zero rounds: the model is evaluated and attacked untrained, and shown like any other."""

import pytest
import torch
from builders import experiment, run_to_end, scenario
from texts import text_scenario

from simsplit import Run
from simsplit.assembly.state import collect_state
from simsplit.attacking.finished import attack
from simsplit.errors import RunError
from simsplit.report.comparison import compare
from simsplit.report.run_tables import show, write_heading

NONE = {"kind": "round_robin", "rounds": 0}
WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3, "public": True}}


def test_nothing_is_trained_and_nothing_is_sent_for_it(tmp_path):
    given = scenario(schedule=NONE, data={"validation": 0.2}, method=[{"kind": "noise"}])
    made = experiment(given, tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in collect_state(made.parts).items()}
    made.run(resume=False)
    after = collect_state(made.parts)
    assert before
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    run = Run.load(made.path)
    assert run.rounds["round"].tolist() == [0]
    assert run.summary["last"]["round"] == 0
    assert run.summary["bytes"]["total"] == 0
    assert set(run.wire["phase"]) == {"evaluate"}
    assert write_heading(run).endswith("finished, 0 of 0 rounds")
    assert "test accuracy" in [row[0] for table in show(run) for row in table.rows]
    assert compare([run]).rows


def test_of_two_untrained_runs_no_bytes_are_compared(tmp_path):
    runs = [
        Run.load(run_to_end(scenario(schedule=NONE, method=m), tmp_path / str(n)).path)
        for n, m in enumerate(([], [{"kind": "noise"}]))
    ]
    comparison = compare(runs)
    assert "of Raw" not in comparison.columns


def test_it_is_attacked_untrained_and_again_afterwards(tmp_path):
    given = text_scenario(
        tmp_path,
        data={"auxiliary": 0.5},
        model={**WORDS, "head": 1, "tail": 1},
        schedule=NONE,
        attacks=[{"kind": "sip", "inverter": "gaussian"}],
        targets={"count": 3},
    )
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    assert set(run.recovered["round"]) == {0}
    again = attack(run.path, "sip", {"name": "again", "inverter": "gaussian"})
    figures = again.attacks.set_index("attack")["token_accuracy"]
    assert figures["again"] == figures["sip"]


def test_a_run_that_stopped_there_cannot_go_on_in_training(tmp_path):
    made = run_to_end(scenario(schedule=NONE), tmp_path / "run")
    experiment(scenario(schedule=NONE), made.path).run(resume=True)
    assert len(Run.load(made.path).rounds) == 1
    with pytest.raises(RunError, match="not trained"):
        experiment(scenario(schedule={**NONE, "rounds": 1}), made.path).run(resume=True)
