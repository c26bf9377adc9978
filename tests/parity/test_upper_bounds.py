"""Upper bounds in a run: what they are shown is what the packets were made from."""

import pytest
import torch
from builders import run_to_end, scenario

from simsplit import Run
from simsplit.attacks.fora import ForaReference

SMALL = {
    "data": {"auxiliary": 0.4, "normalise": "unit"},
    "model": {"kind": "resnet20", "width": 2},
    "schedule": {"rounds": 1},
    "train": {"batch_size": 10},
    "targets": {"count": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "heads"), [("round_robin", "shared"), ("parallel", "per_client")]
)
def test_the_reference_is_shown_the_images_of_the_very_step(tmp_path, monkeypatch, schedule, heads):
    seen = []

    def iterate(self, smashed, labels):
        seen.append((smashed, self._private.pop(self._client), self.known))

    monkeypatch.setattr(ForaReference, "iterate", iterate)
    still = {"client": {"kind": "sgd", "lr": 1e-12}, "batch_size": 10}
    changes = {
        "train": still,
        "schedule": {"kind": schedule, "rounds": 1},
        "clients": {"count": 2, "heads": heads},
    }
    given = scenario(**{**SMALL, **changes}, attacks=[{"kind": "fora_reference"}])
    made = run_to_end(given, tmp_path / "run")
    clients = Run.load(made.path).clients
    watched = clients if heads == "shared" else clients[clients["client"] == 0]
    assert len(seen) == watched["steps"].sum() > 2
    head = made.parts.pool.clients[0].training.end.head.train()
    for smashed, pixels, known in seen:
        with torch.no_grad():
            ours = head(known.normalise(pixels))
        torch.testing.assert_close(ours, smashed, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_ridge_and_the_whitebox_read_a_runs_payloads(tmp_path):
    attacks = [{"kind": "ridge"}, {"kind": "whitebox", "iterations": 2}, {"kind": "pcat"}]
    attacks[2] |= {"iterations": 2, "refinement": 2}
    methods = [{"kind": "lightsplit", "ratio": 8}]
    made = run_to_end(scenario(**SMALL, attacks=attacks, method=methods), tmp_path / "run")
    errors = Run.load(made.path).recovered.groupby("attack")["mse"].mean()
    assert errors["whitebox"] <= 1.02 * errors["ridge"]
