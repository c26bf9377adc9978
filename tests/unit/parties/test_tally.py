"""A round's means are over samples, whichever party counted."""

from pathlib import Path

import pytest
import torch
from builders import run_to_end, scenario

from simsplit.parties.calls import ReportRound
from simsplit.parties.tally import Tally
from simsplit.results import Run


def outputs(*guesses: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(guesses), 3).float()


def test_means_are_weighted_by_samples_and_read_once() -> None:
    tally = Tally()
    tally.add(torch.tensor(2.0), outputs(0, 1, 2), torch.tensor([0, 1, 1]))
    tally.add_method_loss(torch.tensor(4.0), 3)
    tally.add_method_loss(None, 3)
    tally.add(torch.tensor(6.0), outputs(0), torch.tensor([0]))
    assert tally.read() == {
        "steps": 2,
        "samples": 4,
        "train_loss": (3 * 2 + 6) / 4,
        "train_accuracy": 3 / 4,
        "method_loss": 3 * 4 / 4,  # the step without a term counts with none
    }
    assert tally.read() == {}


def test_terms_alone_are_read_alone_and_once() -> None:
    tally = Tally()
    tally.add_method_loss(torch.tensor(4.0), 3)
    tally.add_method_loss(torch.tensor(8.0), 1)
    assert tally.read() == {"method_loss": (3 * 4 + 8) / 4}
    assert tally.read() == {}


@pytest.mark.slow
def test_a_vanilla_cut_reports_the_methods_term_as_a_u_shape_does(tmp_path: Path) -> None:
    losses = []
    for topology in ("u_shaped", "vanilla"):
        given = scenario(
            topology=topology,
            data={"train_samples": 60},
            clients={"count": 2},
            method=[{"kind": "wcc", "weight": 0.1}],
            evaluate={"every": 0},
        )
        made = run_to_end(given, tmp_path / topology)
        losses.append(Run.load(made.path).rounds["method_loss"].tolist())
        assert made.parts.pool.ask(0, ReportRound()) == {}, "terms pile up unread"
    assert min(losses[0]) > 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
