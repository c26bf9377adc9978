"""A segment that computes its activations again keeps less, and gives the same to the bit."""

import copy

import pytest
import torch
from torch import nn

from simsplit.models.recomputing import list_units, recompute_units, watch_units
from simsplit.preflight import KeptTensors


def build_block(width: int) -> nn.Sequential:
    norm = nn.BatchNorm1d(width)
    return nn.Sequential(nn.Linear(width, width), norm, nn.ReLU(), nn.Dropout(0.3))


def train_once(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return all gradients and statistics after a step."""
    torch.default_generator.manual_seed(0)
    net(x).square().mean().backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return [*grads, *(buffer.clone() for buffer in net.buffers())]


@pytest.mark.parametrize("copied", [False, True])
def test_gradients_statistics_and_dropout_are_those_of_one_pass(copied: bool) -> None:
    torch.default_generator.manual_seed(1)
    net, x = nn.Sequential(build_block(6), build_block(6), nn.Linear(6, 2)), torch.randn(5, 6)
    again = recompute_units(copy.deepcopy(net))
    again = copy.deepcopy(again) if copied else again
    for kept, made in zip(train_once(net, x), train_once(again, x), strict=True):
        assert torch.equal(kept, made)
    assert again.state_dict().keys() == net.state_dict().keys()


def test_weights_that_have_moved_on_are_those_of_the_first_pass() -> None:
    net = recompute_units(nn.Sequential(build_block(4)))
    layer, old = net[0][0], nn.Parameter(torch.ones(4, 4))
    layer.weight = old
    out = net(torch.randn(3, 4)).square().sum()
    layer.weight = nn.Parameter(torch.full((4, 4), float("nan")))
    out.backward()
    assert old.grad is not None
    assert old.grad.isfinite().all()
    assert layer.weight.grad is None


def test_blocks_keep_their_inputs_alone() -> None:
    net, x = nn.Sequential(*(build_block(8) for _ in range(5))), torch.randn(4, 8)
    again = recompute_units(copy.deepcopy(net))
    kept, inputs = KeptTensors(net.parameters()), KeptTensors(again.parameters())
    with kept.watch({"": net}):
        net(x)
    with watch_units(again) as passes, inputs.watch({"": nn.Module()}):
        again(x)
    assert inputs.count([""]) == 5 * x.nbytes
    assert len(passes) == 5
    assert kept.count([""]) > 3 * inputs.count([""])


def test_units_are_layers_or_blocks_or_all() -> None:
    blocks = nn.Sequential(build_block(4), nn.ReLU(), build_block(4))
    assert list_units(blocks) == [blocks[0], blocks[2]]
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert list_units(plain) == [plain]
    layers = nn.ModuleList([build_block(4)])
    assert list_units(nn.ModuleDict({"head": nn.Linear(4, 4), "layers": layers})) == list(layers)
