"""Attacks on images that follow training beat the mean image behind a head that has learned.

The head is a real one, of convolutions, normalisation and a residual block, and the images are
scikit-learn's digits. Rates are higher than the papers', and critics narrower, since so few steps
would move nothing else. The server has the labels: under a U shape a simulated client may learn
features that are not the victim's in so few steps.
"""

from typing import Any

import pytest
from builders import run_to_end, scenario

from simsplit import Run

VICTIM: dict[str, Any] = {
    "data": {"auxiliary": 0.5, "normalise": "unit", "train_samples": 1200, "test_samples": 100},
    "topology": "vanilla",
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
ATTACKS: dict[str, dict[str, Any]] = {
    "fora": {
        "lr_substitute": 0.003,
        "lr_critic": 0.001,
        "lr_decoder": 0.01,
        "penalty": 10.0,
        "critic_width": 16,
    },
    "fsha": {"lr_pilot": 0.001, "lr_critic": 0.001, "penalty": 10.0, "critic_width": 16},
}
LONG = {"schedule": {"kind": "round_robin", "rounds": 24}, "evaluate": {"every": 24}}


@pytest.mark.slow
def test_fora_beats_the_mean_image_behind_a_real_head(tmp_path):
    """Measured: correlations of .82 to .94 with the truth; the mean image's is .76.

    That is over six seeds, and on this one with AVX-512, AVX2 and SSE (.94, .91, .82): rounding
    grows in training. PCAT's spread over seeds allows no bound on digits; that it reads MNIST is
    measured by scenarios/papers/lightsplit/small/convergence.yaml.
    """
    correlation = recover(tmp_path, "fora")["correlation"]
    assert correlation["fora"] > correlation["mean_image"] + 0.03


@pytest.mark.slow
def test_a_hijacked_client_sends_what_its_images_look_like(tmp_path):
    """Measured: .91 with AVX-512, AVX2 and SSE; the mean image's is .76."""
    correlation = recover(tmp_path, "fsha", **LONG)["correlation"]
    assert correlation["fsha"] > correlation["mean_image"] + 0.1


def recover(tmp_path, kind, **changes):
    """Return the mean figures of an attack and of the floors."""
    given = scenario(**{**VICTIM, **changes}, attacks=[{"kind": kind, **ATTACKS[kind]}])
    made = run_to_end(given, tmp_path / "run")
    return Run.load(made.path).recovered.groupby("attack").mean(numeric_only=True)
