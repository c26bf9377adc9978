"""When two runs are the same: every table to the letter, every weight to the bit."""

from pathlib import Path

import torch

from simsplit.results.checkpoints import compute_digest, load
from simsplit.scenario import Scenario, load_scenario

TABLES = ("rounds", "clients", "wire", "detections", "recovered", "privacy")


def assert_equal(first: Path, second: Path, given: Scenario | None = None) -> None:
    """Assert that runs are equal.

    `given` is their scenario, where a plugin's methods keep its file from being read.
    """
    for table in TABLES:
        one, other = ((path / f"{table}.csv") for path in (first, second))
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_text() == other.read_text(), table
    ours, theirs = weights(first, given), weights(second, given)
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not differing


def weights(path: Path, given: Scenario | None = None) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint."""
    scenario = given or load_scenario(path / "scenario.yaml")
    result = load(path / "checkpoints", compute_digest(scenario.identity()))
    assert result is not None
    return result[0]
