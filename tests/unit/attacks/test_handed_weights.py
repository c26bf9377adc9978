"""A shared head tells the client that gets it which samples have moved it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import build_setting
from gists import says
from torch import Tensor, nn

from simsplit import Run
from simsplit.attacking.input_scorer import NEAREST, find_nearest, find_nearest_others
from simsplit.attacks.attack import Guesses
from simsplit.attacks.handed_weights import HandedWeights, HandedWeightsConfig
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet

MLP = {"kind": "mlp", "widths": [32, 16], "head": 1, "tail": 1}


def attack() -> HandedWeights:
    return HandedWeightsConfig().build(build_setting().known.move_to(1))


def pack(layer: nn.Linear, client: int, leg: Leg = Leg.HANDOVER) -> Packet:
    """Return the live weights, as clients hand them over."""
    return Packet(client, leg, 1, 0, (layer.weight, layer.bias), ("head.1.weight", "head.1.bias"))


def step(layer: nn.Linear, rows: Tensor) -> None:
    """Take a step of plain SGD on a loss with other gradients for each neuron."""
    layer.zero_grad()
    (torch.relu(layer(rows)) * torch.arange(1.0, 9.0)).sum().backward()
    with torch.no_grad():
        for weight in layer.parameters():
            weight -= 0.1 * weight.grad


def test_one_sample_between_two_hand_overs_is_read_whole() -> None:
    torch.manual_seed(0)  # noqa: TID251 - a test's own
    here, layer = attack(), nn.Linear(64, 8)
    x = torch.rand(1, 64)
    here.observe(pack(layer, client=1))
    step(layer, x)
    here.observe(pack(layer, client=0))
    read = here.recovered.flatten(1)
    assert 1 <= len(read) <= 8
    assert torch.allclose(read, x.expand_as(read), atol=1e-4)


def test_what_a_client_does_itself_and_an_unchanged_head_tell_nothing() -> None:
    here, layer = attack(), nn.Linear(64, 8)
    here.observe(pack(layer, client=0))
    step(layer, torch.rand(4, 64))
    here.observe(pack(layer, client=1))  # its own steps
    here.observe(pack(layer, client=0))  # nobody has trained
    assert not len(here.recovered)


def test_an_average_is_compared_with_the_average_before_it() -> None:
    here, layer, own = attack(), nn.Linear(64, 8), nn.Linear(64, 8)
    x = torch.rand(1, 64)
    here.observe(pack(layer, client=1, leg=Leg.BROADCAST))
    here.observe(pack(own, client=1))
    step(layer, x)
    here.observe(pack(layer, client=1, leg=Leg.BROADCAST))
    read = here.recovered.flatten(1)
    assert len(read)
    assert torch.allclose(read, x.expand_as(read), atol=1e-4)


def test_its_state_can_be_taken_up_again() -> None:
    here, there, layer = attack(), attack(), nn.Linear(64, 8)
    here.observe(pack(layer, client=1))
    there.load({name: tensor.clone() for name, tensor in here.state().items()})
    step(layer, torch.rand(1, 64))
    for each in (here, there):
        each.observe(pack(layer, client=0))
    assert torch.equal(here.recovered, there.recovered)
    assert len(here.recovered)


def test_a_layer_of_another_form_is_left_alone() -> None:
    here = attack()
    conv = Packet(0, Leg.HANDOVER, 1, 0, (torch.zeros(3, 1, 5, 5),), ("head.0.weight",))
    for packet in (conv, replace(conv, tensors=(), names=()), conv):
        here.observe(packet)
    assert not len(here.recovered)


def test_candidates_in_no_order_are_matched_with_the_nearest_target() -> None:
    truth = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    candidates = torch.tensor([[0.9, 1.0], [0.1, 0.0], [5.0, 5.0]])
    assert torch.equal(find_nearest(candidates, truth), candidates[[1, 0]])
    assert torch.equal(find_nearest(candidates[:0], truth), torch.zeros(2, 2))
    guesses = {"a": Guesses(candidates, unordered=True), "b": Guesses(truth)}
    floor = find_nearest_others(guesses, torch.full((9, 2), 0.5), truth)
    assert floor.keys() == {NEAREST}
    assert not find_nearest_others({"b": Guesses(truth)}, truth, truth)


@pytest.mark.parametrize(
    ("changes", "gist"),
    [
        ({"model": {"kind": "simplecnn"}}, "linear ... simplecnn ... mlp"),
        ({"clients": {"heads": "per_client"}}, "heads: shared"),
        ({"attacks": [{"kind": "handed_weights", "by": "client 0"}]}, "targets.client"),
    ],
)
def test_it_is_refused_where_it_could_read_nothing(changes: dict[str, Any], gist: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(**{"model": MLP, "attacks": [{"kind": "handed_weights"}], **changes})
    assert says(str(error.value), gist), str(error.value)


def read(folder: Path, **changes: Any) -> dict[str, float]:
    given = scenario(
        model=MLP,
        clients={"count": 2},
        data={"train_samples": 24},
        train={"batch_size": 1, "client": {"kind": "sgd", "lr": 0.05}},
        schedule={"rounds": 1},
        evaluate={"every": 0},
        attacks=[{"kind": "handed_weights"}],
        targets={"count": 8},
        **changes,
    )
    leaks = Run.load(run_to_end(given, folder).path).leaks
    return dict(leaks[leaks["metric"] == "mse"].groupby("attack")["value"].mean())


def test_in_a_run_a_client_reads_the_other_ones_images(tmp_path: Path) -> None:
    mse = read(tmp_path / "run")
    assert mse["handed_weights"] < 0.01 < mse["nearest_other"]
