"""Every method that texts can cross under: in runs of a tiny model, and step by step."""

from typing import Any

import pytest
import torch
from builders import experiment, run_to_end
from comparing import assert_equal
from texts import text_scenario

from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import TEXTS
from simsplit.packets import Packet
from simsplit.results import Run

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
CASES: dict[str, list[dict[str, Any]]] = {
    "raw": [{}],
    "cast": [{"to": "bf16"}, {"to": "int8"}],
    "quantise": [{"bits": 8}],
    "noise": [{"sigma": 0.1}, {"sigma": 0.5, "unit": "batch_rms"}],
    "sparsify": [{}, {"sparsity": 0.5}, {"sparsity": 0.5, "per": "token"}],
    "mixguard": [
        {"tokens": 3, "warm_up": 1},
        {"sampler": "affine", "messages": 5, "inputs": 4, "tokens": 0, "noise": "fixed"},
        {"calibrate": False, "blind": False, "noise": "none", "inference": "plain"},
        {"gradients": "remixed", "message_noise": 0.1, "tokens": 2, "warm_up": 0},
        {"gradients": "remixed", "secrets": "sample", "tokens": 2, "warm_up": 0},
    ],
    "cover": [{}, {"messages": 2, "fixed": False}],
    "naive_mix": [{}, {"alpha": 0.2}],
    "snd": [
        {"warm_up": 1, "heads": 2, "layers": 1},
        {"noise": 0.5, "lengths": "element", "clip": None, "denoise": False},
        {"eta": 20.0, "warm_up": 0, "heads": 4, "layers": 2, "inference": False},
    ],
    "dp_forward": [{"sigma": 0.5}, {"epsilon": 8.0, "per": "token"}, {"epsilon": 8.0, "clip": 0.5}],
    "mid": [{}, {"weight": 0.01, "inference": "sample"}],
    "santext": [{}, {"epsilon": 4.0, "sensitive": 1.0, "fixed": False}],
    "custext": [{"group": 4}, {"epsilon": 3.0, "group": 20, "fixed": False}],
    "rantext": [{}, {"epsilon": 1.0, "fixed": False}],
    "admi": [
        {"warm_up": 1, "heads": 2},
        {"warm_up": 0, "adapter": False, "inference": "sample"},
        {"warm_up": 1, "bottleneck": False, "adaptive": False, "beta": 1.0},
    ],
    "dualguard": [{"warm_up": 1}, {"warm_up": 2, "distance": 1.0, "inverter_rounds": 1}],
    "text_obfuscator": [{}, {"epsilon": 20.0, "clusters": 5}],
    "max_norm": [{}],
    "private_backprop": [{}, {"messages": 3, "noise": "gaussian", "variance": 0.01}],
    "randomised_response": [{"epsilon": 3.0}],
    "distance_correlation": [{"alpha": 0.1}],
    "pslf": [{"epsilon": 3.0, "pseudo_classes": 4}],
    "marvell": [{"sum_kl": 4.0}],
    "cae": [{"steps": 200}],
    "discrete_sgd": [{}, {"bins": 4, "clip": True}],
    "grad_perturb": [{"epsilon": 20.0}],
    "p3eft": [{"alpha": 0.1}],
    "dp_sgd": [{}, {"noise": "laplace"}, {"relative": False, "clip": 0.01}],
}
EVERY = [(kind, fields) for kind, several in CASES.items() for fields in several]
every = pytest.mark.parametrize(
    ("kind", "fields"), EVERY, ids=[f"{k}-{'-'.join(map(str, f.values()))}" for k, f in EVERY]
)


ON_LABELS = (
    *("randomised_response", "distance_correlation", "pslf", "marvell", "p3eft"),
    *("cae", "grad_perturb"),
)
"""Of texts with a class each; all others write texts."""
OF_KNOWN_TAILS = ("admi", "dualguard")
"""For models whose start everybody knows."""


def make_scenario(path, kind, fields, **changes):
    model = {} if kind in ON_LABELS else WORDS
    if kind in OF_KNOWN_TAILS:
        model = {**model, "sizes": {**model["sizes"], "public": True}}
    if kind == "private_backprop":
        model = {**model, "learns": ["head", "tail"]}
    common = {"model": model, "data": {"auxiliary": 0.3, "source": {"length": 24}}}
    return text_scenario(path, method=[{"kind": kind, **fields}], **{**common, **changes})


def test_every_method_of_texts_has_cases():
    assert CASES.keys() == {kind for kind, each in METHODS.items() if each.modalities >= TEXTS}


class Tap:
    """What crosses, unless it is handed on; and whether it carries more than its values."""

    def __init__(self) -> None:
        self.crossed, self.wrong = 0, []

    def observe(self, packet: Packet) -> None:
        if packet.leg is Leg.HANDOVER:
            return
        for tensor in packet.tensors:
            self.crossed += tensor.nbytes
            if tensor.requires_grad or tensor.untyped_storage().nbytes() != tensor.nbytes:
                self.wrong.append(packet)


@pytest.mark.slow
@every
def test_runs_learn_and_are_the_same_twice(kind, fields, tmp_path):
    """Packets hold their values alone and no graph, all their bytes are counted, and torch's own
    stream of random numbers stays put.
    """
    scenario = make_scenario(tmp_path, kind, fields)
    made, tap = experiment(scenario, tmp_path / "one"), Tap()
    made.parts.wire.taps.append(tap)
    before = torch.get_rng_state()
    made.run(resume=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert tap.wrong == []
    first = Run.load(tmp_path / "one")
    assert first.wire[first.wire["leg"] != "handover"]["bytes"].sum() == tap.crossed
    trained = first.rounds[first.rounds["phase"] == "train"]["train_loss"].tolist()
    assert trained[-1] < trained[0]
    assert_equal(tmp_path / "one", run_to_end(scenario, tmp_path / "two").path)


@pytest.mark.slow
@every
def test_a_single_text_is_no_trouble(kind, fields, tmp_path):
    few = {"train_samples": 12, "test_samples": 4, "auxiliary": 0.3, "source": {"length": 24}}
    changes = {"train": {"batch_size": 1}, "clients": {"count": 1}}
    scenario = make_scenario(tmp_path, kind, fields, data=few, **changes)
    rounds = Run.load(run_to_end(scenario, tmp_path / "run").path).rounds
    assert rounds["train_loss"].notna().all()
