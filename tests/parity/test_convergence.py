"""Attacks on images that follow training beat the mean image behind a head that has learned.

The head is a real one, of convolutions, normalisation and two residual blocks, and the images are
scikit-learn's digits. Rates are higher than the papers', and the critics smaller, since so few
steps would move nothing else.
"""

import pytest
from builders import run_to_end, scenario
from torch import nn

from simsplit import Run
from simsplit.attacks import fora, fsha

VICTIM = {
    "data": {"auxiliary": 0.5, "normalise": "unit", "train_samples": 1200, "test_samples": 100},
    "model": {"kind": "resnet20", "width": 8, "cut": 1},
    "clients": {"count": 1},
    "schedule": {"kind": "round_robin", "rounds": 8},
    "train": {
        "batch_size": 32,
        "client": {"kind": "adam", "lr": 0.001},
        "server": {"kind": "adam", "lr": 0.001},
    },
    "evaluate": {"every": 8},
    "targets": {"count": 32},
}
ATTACKS = {
    "naive_sda": {"lr_decoder": 0.01},
    "pcat": {"iterations": 200, "lr_decoder": 0.01, "refinement": 0},
    "fora": {"lr_substitute": 0.003, "lr_critic": 0.001, "lr_decoder": 0.01, "penalty": 10.0},
    "fora_reference": {"lr": 0.01},
    "fsha": {"lr_pilot": 0.003, "lr_critic": 0.003, "penalty": 50.0},
}


def _small_critic(cut, image, **how):
    return nn.Sequential(
        nn.Conv2d(cut[0], 16, 3, 2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 3, 2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 4, 1),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_beats_the_mean_image_behind_a_real_head(tmp_path, monkeypatch, kind):
    for module in (fora, fsha):
        monkeypatch.setattr(module, "critic", _small_critic)
    given = scenario(**VICTIM, attacks=[{"kind": kind, **ATTACKS[kind]}])
    made = run_to_end(given, tmp_path / "run")
    means = Run.load(made.path).recovered.groupby("attack").mean(numeric_only=True)
    assert means["mse"][kind] < 0.8 * means["mse"]["mean_image"]
    assert means["correlation"][kind] > means["correlation"]["mean_image"]
