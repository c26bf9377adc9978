"""Cover costs no accuracy: clients learn what they would learn without it."""

import pytest
import torch
from builders import run_to_end
from texts import text_scenario

from simsplit.assembly.state import collect_state
from simsplit.results import Run

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_training_among_covers_is_training_without_them(fixed, tmp_path):
    made = {}
    for name, method in (("plain", []), ("covered", [{"kind": "cover", "fixed": fixed}])):
        given = text_scenario(
            tmp_path,
            data={"auxiliary": 0.3, "source": {"length": 8, "learns": "all"}},
            model=WORDS,
            method=method,
        )
        made[name] = run_to_end(given, tmp_path / name)
    losses = [Run.load(run.path).rounds["train_loss"].tolist() for run in made.values()]
    # up to rounding: a larger batch may take other kernels
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    plain, covered = (collect_state(run.parts) for run in made.values())
    assert plain.keys() == covered.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(covered[name], tensor, msg=name)
