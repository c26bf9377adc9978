"""Upper bounds in a run: what they are shown is what the packets were made from."""

import pytest
import torch
from builders import finished, scenario

from simsplit import Run
from simsplit.attacks.fora import ForaReference

SMALL = {
    "data": {"auxiliary": 0.4, "normalise": "unit"},
    "model": {"kind": "resnet20", "width": 2},
    "schedule": {"rounds": 1},
    "train": {"batch_size": 10},
    "targets": {"count": 3},
}


@pytest.mark.parametrize("schedule", ["round_robin", "parallel"])
def test_the_reference_is_shown_the_images_of_the_very_step(tmp_path, monkeypatch, schedule):
    seen = []

    def iterate(self, smashed, labels):
        seen.append((smashed, self._private.pop(self._client), self.known))

    monkeypatch.setattr(ForaReference, "iterate", iterate)
    changes = {"schedule": {"kind": schedule, "rounds": 1}, "clients": {"count": 2}}
    given = scenario(**{**SMALL, **changes}, attacks=[{"kind": "fora_reference"}])
    made = finished(given, tmp_path / "run")
    steps = Run.load(made.path).clients["steps"].sum()
    assert len(seen) == steps > 4
    head = made.parts.pool.crew.clients[0].training.end.head.eval()
    for smashed, pixels, known in seen:
        assert smashed.shape[0] == pixels.shape[0]
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        # the head has moved on since; what it makes of the images is still the nearest to them
        with torch.no_grad():
            ours = head(known.normalised(pixels)).flatten(1)
        apart = torch.corrcoef(torch.cat([ours, smashed.flatten(1)]))
        rows = len(ours)
        assert (apart[:rows, rows:].argmax(1) == torch.arange(rows)).float().mean() > 0.6


@pytest.mark.slow
def test_ridge_and_the_whitebox_read_a_runs_payloads(tmp_path):
    attacks = [{"kind": "ridge"}, {"kind": "whitebox", "iterations": 2}, {"kind": "pcat"}]
    attacks[2] |= {"iterations": 2, "refinement": 2}
    methods = [{"kind": "lightsplit", "ratio": 8}]
    made = finished(scenario(**SMALL, attacks=attacks, method=methods), tmp_path / "run")
    errors = Run.load(made.path).recovered.groupby("attack")["mse"].mean()
    assert errors["whitebox"] <= 1.02 * errors["ridge"]
