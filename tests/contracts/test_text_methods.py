"""Every method that texts can cross under: in runs of a tiny model, and step by step."""

from typing import Any

import pytest
import torch
from builders import experiment, finished
from comparing import assert_equal
from texts import text_scenario

from simsplit.methods import METHODS
from simsplit.methods.base import TEXTS
from simsplit.packets import Leg, Packet
from simsplit.results import Run

WORDS = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
CASES: dict[str, list[dict[str, Any]]] = {
    "raw": [{}],
    "cast": [{"to": "bf16"}, {"to": "int8"}],
    "quantise": [{"bits": 8}],
    "noise": [{"sigma": 0.1}],
    "mixguard": [
        {"tokens": 3, "warm_up": 1},
        {"sampler": "affine", "messages": 5, "inputs": 4, "tokens": 0, "noise": "fixed"},
        {"calibrate": False, "blind": False, "noise": "none", "inference": "plain"},
        {"gradients": "remixed", "message_noise": 0.1, "tokens": 2, "warm_up": 0},
    ],
    "naive_mix": [{}, {"alpha": 0.2}],
    "snd": [
        {"warm_up": 1, "heads": 2, "layers": 1},
        {"noise": 0.5, "lengths": "element", "clip": None, "denoise": False},
        {"eta": 20.0, "warm_up": 0, "heads": 4, "layers": 2, "inference": False},
    ],
    "dp_forward": [{"sigma": 0.5}, {"epsilon": 8.0, "per": "token"}, {"epsilon": 8.0, "clip": 0.5}],
    "dp_sgd": [{}, {"noise": "laplace"}, {"relative": False, "clip": 0.01}],
}
EVERY = [(kind, fields) for kind, several in CASES.items() for fields in several]
every = pytest.mark.parametrize(
    ("kind", "fields"), EVERY, ids=[f"{k}-{'-'.join(map(str, f.values()))}" for k, f in EVERY]
)


def given(path, kind, fields, **changes):
    data = {"auxiliary": 0.3, "source": {"length": 24}}
    return text_scenario(path, model=WORDS, data=data, method=[{"kind": kind, **fields}], **changes)


def test_every_method_of_texts_has_cases():
    assert CASES.keys() == {kind for kind, each in METHODS.items() if each.suits >= TEXTS}


@pytest.mark.slow
@every
def test_runs_learn_and_are_the_same_twice(kind, fields, tmp_path):
    scenario = given(tmp_path, kind, fields)
    first, second = (finished(scenario, tmp_path / name).path for name in ("one", "two"))
    assert_equal(first, second)
    rounds = Run.load(first).rounds
    trained = rounds[rounds["phase"] == "train"]["train_loss"].tolist()
    assert trained[-1] < trained[0]


@pytest.mark.slow
@every
def test_packets_hold_no_more_than_their_values_and_no_graph(kind, fields, tmp_path):
    seen: list[Packet] = []

    class Tap:
        def observe(self, packet: Packet) -> None:
            seen.append(packet)

    made = experiment(given(tmp_path, kind, fields), tmp_path / "run")
    made.parts.wire.taps.append(Tap())
    made.run(resume=False)
    crossing = [packet for packet in seen if packet.leg is not Leg.HANDOVER]
    for packet in crossing:
        for tensor in packet.tensors:
            assert not tensor.requires_grad
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    counted = Run.load(made.path).wire
    legs = counted[counted["leg"] != "handover"]["bytes"].sum()
    assert legs == sum(t.nbytes for packet in crossing for t in packet.tensors)


@pytest.mark.slow
@every
def test_a_single_text_is_no_trouble(kind, fields, tmp_path):
    scenario = given(tmp_path, kind, fields, train={"batch_size": 1}, clients={"count": 1})
    scenario = scenario.model_copy(update={"schedule": scenario.schedule})
    rounds = Run.load(finished(scenario, tmp_path / "run").path).rounds
    assert rounds["train_loss"].notna().all()


@pytest.mark.slow
@every
def test_global_streams_stay_put(kind, fields, tmp_path):
    made = experiment(given(tmp_path, kind, fields), tmp_path / "run")
    before = torch.get_rng_state()
    made.run(resume=False)
    assert torch.equal(torch.get_rng_state(), before)
