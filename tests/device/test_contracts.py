"""Every shipped method, and attacks, on the pretended accelerator, which refuses to mix devices.

With SIMSPLIT_GOLDEN=all all methods of texts run, else one. Attacks on sessions run there as golden
cases alone (`test_runs.py`).
"""

import os
from pathlib import Path
from typing import Any

import pretend
import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import build_setting, recover_targets
from contracts.method_cases import BATCH, CASES, COMPOSITIONS
from contracts.method_exchange import activation, exchange, pair
from contracts.test_attacks import EVERY, brief, shrink_judges
from contracts.test_text_attacks import EVERY as OF_TEXTS
from contracts.test_text_methods import CASES as TEXT_CASES
from contracts.test_text_methods import make_scenario
from texts import text_scenario

from simsplit.attacks import ATTACKS
from simsplit.attacks.threat import Role
from simsplit.methods import METHODS
from simsplit.methods.method import IMAGES

pytestmark = pytest.mark.slow

OF_IMAGES = [*(case for cases in CASES.values() for case in cases), *COMPOSITIONS]
OF_TEXTS_ALONE = [
    (kind, fields)
    for kind, (fields, *_) in TEXT_CASES.items()
    if not METHODS[kind].modalities >= IMAGES
    and (os.environ.get("SIMSPLIT_GOLDEN") == "all" or kind == "naive_mix")
]
TELLING: list[dict[str, Any]] = [
    {"kind": "sip", "name": "strangest", "picks": "strangest", "iterations": 2, "hidden": 8},
    {"kind": "span_search", "name": "twice", "looks": 2, "inverter": "gaussian", "starts": 4},
]
"""Ways to tell which reading is the private text."""
ON_LABELS = [
    kind
    for kind, each in ATTACKS.items()
    if each.recovers == "labels" and Role.SERVER in each.threat.roles
]
FEW: dict[str, Any] = {"iterations": 2, "hidden": 8, "unmixing": 2, "permutations": 2, "starts": 4}


@pytest.mark.parametrize("number", range(len(OF_IMAGES)), ids=lambda n: str(OF_IMAGES[n]))
def test_a_method_sends_what_it_sends_on_the_cpu(number: int) -> None:
    configs, device = OF_IMAGES[number].configs, torch.device(pretend.NAME, 0)
    here = exchange(pair(configs), activation(BATCH).requires_grad_())
    there = exchange(pair(configs, device=device), activation(BATCH).to(device).requires_grad_())
    assert here.packed.keys() == there.packed.keys()
    for leg, tensors in here.packed.items():
        for own, other in zip(tensors, there.packed[leg], strict=True):
            assert torch.equal(own, other.cpu()), leg


@pytest.mark.parametrize(("kind", "fields"), OF_TEXTS_ALONE, ids=str)
def test_a_method_of_texts_keeps_to_the_device(
    kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    few = {"train_samples": 24, "test_samples": 6, "auxiliary": 0.5, "source": {"length": 24}}
    given = make_scenario(
        tmp_path,
        kind,
        fields,
        data=few,
        device="auto",
        clients={"count": 1},
        schedule={"rounds": 1},
    )
    with pretend.counting() as made:
        run_to_end(given, tmp_path / "run")
    assert made


@pytest.mark.parametrize(("kind", "fields"), EVERY, ids=str)
def test_an_attack_on_images_recovers_what_it_does_on_the_cpu(
    kind: str, fields: dict[str, Any]
) -> None:
    config = ATTACKS[kind](**brief(fields))
    steps = 2 if config.threat.follows_training else 0
    with pytest.MonkeyPatch.context() as patch:
        shrink_judges(patch)
        here, there = (
            recover_targets(config, build_setting(device=device), steps=steps, noise=False)
            for device in (torch.device("cpu"), torch.device(pretend.NAME, 0))
        )
    assert torch.equal(here, there.cpu())


def test_attacks_on_texts_keep_to_the_device(tmp_path: Path) -> None:
    attacks = [{name: FEW.get(name, value) for name, value in each.items()} for each in OF_TEXTS]
    attacks += TELLING
    given = text_scenario(
        tmp_path,
        data={"auxiliary": 0.5, "train_samples": 24, "test_samples": 6},
        model={
            "kind": "causal_lm",
            "sizes": {"width": 16, "layers": 3, "public": True},
            "head": 1,
            "tail": 1,
        },
        device="auto",
        clients={"count": 1},
        schedule={"rounds": 1},
        attacks=attacks,
        targets={"count": 2},
    )
    run_to_end(given, tmp_path / "run")


def test_attacks_on_labels_keep_to_the_device(tmp_path: Path) -> None:
    given = scenario(
        device="auto",
        data={"source": {"kind": "sklearn", "name": "breast_cancer"}},
        model={"kind": "mlp", "widths": [8, 8, 8]},
        schedule={"rounds": 1},
        targets={"count": 16, "per_class": 8},
        attacks=[{"kind": kind} for kind in ON_LABELS if not ATTACKS[kind].threat.follows_training],
    )
    run_to_end(given, tmp_path / "run")
