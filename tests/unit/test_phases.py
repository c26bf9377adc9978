"""A method that asks for a phase on public data before training proper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from builders import TINY, StopAt, experiment, run_to_end
from by_hand import list_changed
from pace import quick
from texts import text_scenario
from torch import Tensor, nn

from simsplit.assembly.state import collect_state
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.methods.method import Method, MethodConfig, Site, Step
from simsplit.phases import Phase
from simsplit.results import Run, checkpoints
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.seeds import isolate


class Warmup(Method):
    """A learned correction of the features, which first trains alone."""

    def __init__(self, site: Site) -> None:
        with isolate(site.seed, "warmup"):
            self.module: nn.Module = nn.Linear(512, 512)

    def decode(self, u: Tensor, step: Step) -> Tensor:
        return u + self.module(u)

    def plan_phases(self, rounds: int) -> Sequence[Phase]:
        alone: frozenset[Any] = frozenset({"method"})
        return [Phase("warmup", 1, source="public", learns=alone, gradients=False)]


class WarmupConfig(MethodConfig):
    """As a plugin would define it."""

    kind: Literal["warmup"] = "warmup"

    def build(self, site: Site) -> Method:
        return Warmup(site) if site.side == "client" else Method()


def make_warmed(**changes: Any) -> Scenario:
    own = {
        "method": [{"kind": "warmup"}],
        "clients": {"heads": "per_client"},
        "data": {"auxiliary": 0.2},
        "model": {"cut": "l2h"},  # whose BatchNorm must not count the phase's batches
    }
    return parse(merge(merge(TINY, own), changes), {"METHODS": {"warmup": WarmupConfig}})


def weights(made: Experiment) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in collect_state(made.parts).items()}


@pytest.mark.slow
def test_the_tables_tell_the_phases_apart(tmp_path: Path) -> None:
    run_to_end(make_warmed(), tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.rounds["phase"].tolist() == ["warmup", "train", "train"]
    # 18 of 90 samples are public, and every client walks through all of them
    assert run.rounds["samples"].tolist() == [3 * 18, 72, 72]
    wire = run.wire.groupby("phase")["leg"].unique().apply(set)
    assert wire["warmup"] == {"smashed", "features"}
    assert wire["train"] == {"smashed", "features", "features_grad", "smashed_grad"}
    assert set(run.wire.loc[run.wire["phase"] == "warmup", "round"]) == {1}


def test_only_the_method_learns_in_its_phase(tmp_path: Path) -> None:
    made = experiment(make_warmed(), tmp_path / "run")
    made.ledger.writer.start("", {})
    before = weights(made)
    made.round(1)
    moved = {name for name in list_changed(before, weights(made)) if "taken." not in name}
    assert moved
    assert all(".method." in name or ".optimizer." in name for name in moved)
    assert "client/0/own.0.head.4.num_batches_tracked" in before
    before = weights(made)
    made.round(2)
    moved = list_changed(before, weights(made))
    assert {"server/trunk.0.weight", "client/2/own.0.head.0.weight"} <= moved


def calibrate(path: Path, client_lr: float, **fields: Any) -> tuple[Run, dict[str, Tensor]]:
    """Run MixGuard's calibration for a round; return the run and the weights that it learned."""
    method = {"kind": "mixguard", "tokens": 0, "warm_up": 1, "dropout": 0.0, **fields}
    changes = {
        "method": [method],
        "data": {"auxiliary": 0.3},
        "train": {"client": {"kind": "sgd", "lr": client_lr}},
    }
    made = experiment(text_scenario(path, **changes), path / "run")
    made.ledger.writer.start("", {})
    made.round(1)
    stack = made.parts.pool.clients[0].training.end.stack
    return Run.load(path / "run"), stack.modules.state_dict()


@pytest.mark.slow
def test_calibration_has_a_rate_and_batches_of_its_own(tmp_path: Path) -> None:
    slow, one = calibrate(tmp_path / "slow", 1e-6)
    fast, other = calibrate(tmp_path / "fast", 10.0)
    assert one
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    assert any(weight.abs().max() > 1e-3 for n, weight in one.items() if n.endswith("up.weight"))
    more, faster = calibrate(tmp_path / "more", 1e-6, calibration_lr=0.01, calibration_batch_size=3)
    assert any(not torch.equal(weight, faster[name]) for name, weight in one.items())
    # half of the 18 public texts for each of two clients, in batches of 8 as in training, or of 3
    assert slow.rounds["steps"].tolist() == fast.rounds["steps"].tolist() == [2 * 2]
    assert more.rounds["steps"].tolist() == [2 * 3]


def test_without_public_data_the_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: warmup.*public data"):
        experiment(make_warmed(data={"auxiliary": 0.0}), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("after", quick([3, 6, 9], 6))
def test_resumed_in_and_between_the_phases(after: int, tmp_path: Path) -> None:
    """The phase is two steps for each of three clients; training proper as many a round."""
    given = make_warmed(clients={"heads": "shared"})
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "broken", [StopAt(after)]).run(resume=False)
    experiment(given, tmp_path / "broken").run(resume=True)
    for table in ("rounds", "clients", "wire"):
        one, other = (tmp_path / run / f"{table}.csv" for run in ("whole", "broken"))
        assert one.read_text() == other.read_text()
    digest = checkpoints.compute_digest(given.identity())
    states = [
        checkpoints.load(tmp_path / run / "checkpoints", digest) for run in ("whole", "broken")
    ]
    ours, theirs = (state[0] for state in states if state is not None)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
