"""A party's trigger goes on what looks like its target class, and on nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from gists import says
from torch import Tensor

from simsplit import Run
from simsplit.data import Samples
from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.poisons import Poison, Scene
from simsplit.poisons.villain import VillainConfig
from simsplit.seeds import rng_for

COUNT = 40
LABELS = torch.arange(COUNT) % 4
EMBEDDINGS = 5 * torch.nn.functional.one_hot(LABELS, 8).float() + 0.1 * torch.randn(
    COUNT, 8, generator=rng_for(0, "embeddings")
)
ROWS = torch.arange(COUNT)


def build(**options: Any) -> Poison:
    samples = Samples(torch.zeros(COUNT, 1), LABELS)
    scene = Scene(samples, 4, (), (), 0, "clients.malicious.poison.0")
    made = VillainConfig(**{"target": 2, "known": 2, "rate": 0.25, **options}).build(scene)
    return made.for_client(0, ROWS)


def send(poison: Poison, embeddings: Tensor = EMBEDDINGS, rows: Tensor = ROWS) -> Tensor:
    poison.on_batch(Batch(torch.zeros(len(rows), 1), torch.full((len(rows),), -100), rows))
    return poison.on_packet(Packet(0, Leg.SMASHED, 1, 0, (embeddings,))).tensors[0]


def test_the_samples_nearest_to_the_known_ones_get_the_trigger() -> None:
    added = send(build()) - EMBEDDINGS
    assert torch.equal(added.abs().sum(1) > 0, LABELS == 2)
    assert torch.allclose(added[LABELS == 2], added[2].expand(10, 8), atol=1e-5)


def test_the_trigger_is_two_pluses_and_two_minuses_on_what_varies_most() -> None:
    added = (send(build(width=0.5, strength=1.0)) - EMBEDDINGS)[2]
    # the four classes' values vary most, by 5 * sqrt(3) / 4 each
    assert added.sign().tolist() == [1, 1, -1, -1, 0, 0, 0, 0]
    assert added.abs()[:4].tolist() == pytest.approx([5 * 3**0.5 / 4] * 4, abs=0.1)


def test_other_legs_and_a_party_that_knows_nobody_yet_change_nothing() -> None:
    others = LABELS != 2
    assert torch.equal(send(build(), EMBEDDINGS[others], ROWS[others]), EMBEDDINGS[others])
    grad = Packet(0, Leg.FEATURES_GRAD, 1, 0, (EMBEDDINGS,))
    assert build().on_packet(grad) is grad
    unused = Packet(0, Leg.SMASHED, 1, 0, (EMBEDDINGS,))
    assert build().mark(unused) is unused


def test_held_out_samples_all_get_it_and_success_is_of_other_classes() -> None:
    poison = build()
    added = (send(poison) - EMBEDDINGS)[2]
    marked = poison.mark(Packet(0, Leg.SMASHED, 1, 0, (EMBEDDINGS,))).tensors[0]
    assert torch.allclose(marked - EMBEDDINGS, added.expand(COUNT, 8), atol=1e-5)
    aim = poison.find_aim(Samples(torch.zeros(COUNT, 1), LABELS))
    assert aim is not None
    assert torch.equal(aim.rows, ROWS[LABELS != 2])
    assert set(aim.wanted.tolist()) == {2}


def test_it_goes_on_where_it_was() -> None:
    first, second = build(), build()
    send(first)
    second.load({name: tensor.clone() for name, tensor in first.state().items()})
    others = LABELS != 2
    sent = (send(each, EMBEDDINGS[others], ROWS[others]) for each in (first, second))
    assert torch.equal(*sent)


PARTIES: dict[str, Any] = {
    "data": {"train_samples": 300, "test_samples": 60, "partition": {"kind": "parts", "parts": 2}},
    "model": {"kind": "mlp", "widths": [32, 16, 16], "head": 2, "tail": 1},
    "topology": "vertical",
}


def malicious(*poison: dict[str, Any]) -> dict[str, Any]:
    ids = {"ids": [0], "poison": list(poison)}
    return {"clients": {"count": 2, "heads": "per_client", "malicious": ids}}


@pytest.mark.slow
def test_in_a_run_a_strong_trigger_takes_hold_and_a_clean_party_has_none(tmp_path: Path) -> None:
    train = {"batch_size": 16, "client": {"lr": 0.05}, "server": {"lr": 0.05}}
    success = {}
    for strength in (10.0, 1e-6):
        own = {"kind": "villain", "target": 3, "strength": strength}
        given = scenario(**PARTIES, **malicious(own), train=train, schedule={"rounds": 8})
        rounds = Run.load(run_to_end(given, tmp_path / str(strength)).path).rounds
        success[strength] = rounds["attack_success"].iloc[-1]
    assert success[10.0] > 0.4
    assert success[1e-6] < 0.2


@pytest.mark.parametrize(
    ("changes", "field", "gist"),
    [
        (malicious({"kind": "villain"}), "clients.malicious.poison.0.kind", "vertical"),
        ({**PARTIES, **malicious({"kind": "badnets"})}, "clients.malicious", "villain"),
    ],
)
def test_it_is_for_parties_and_others_are_not(
    changes: dict[str, Any], field: str, gist: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(**changes)
    assert error.value.field == field
    assert says(error.value.reason, gist), error.value.reason


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ScenarioError) as error:
        build(target=4)
    assert error.value.field == "clients.malicious.poison.0.target"
