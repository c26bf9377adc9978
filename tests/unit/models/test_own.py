"""Networks of one's own: cut by layer names, exactly; or refused with what to do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.models import SplitModel
from simsplit.models.split_model import hold_model


class Block(nn.Module):
    """A layer whose code cannot be traced, and need not be."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:  # depends on the data
            return x
        return x + self.linear(x)


class Net(nn.Module):
    """With functions between layers, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.flatten(1)))
        for block in self.blocks:
            x = block(x)
        return self.last(torch.relu(x))


def make_sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def make_net(kind: str | Callable[[], nn.Module]) -> nn.Module:
    """Make torchvision's network of this name, or one of these."""
    from torchvision import models

    return getattr(models, kind)(num_classes=7) if isinstance(kind, str) else kind()


@pytest.mark.parametrize(
    ("kind", "cut", "shape", "crossing"),
    [
        ("resnet18", ("layer1", "fc"), (3, 32, 32), ((64, 8, 8), (512,))),
        ("resnet18", ("layer1.0", "layer4.1"), (3, 32, 32), ((64, 8, 8), (512, 1, 1))),
        ("mobilenet_v3_small", ("features.3", "classifier"), (3, 32, 32), None),
        (Net, ("first", "last"), (4,), ((8,), (8,))),
        (Net, ("blocks.0", "blocks.2"), (4,), ((8,), (8,))),
        (make_sequence, (1, -1), (4,), ((8,), (8,))),
        (make_sequence, ("0", "2"), (4,), None),
    ],
)
def test_a_cut_network_computes_what_the_whole_does(
    kind: str | Callable[[], nn.Module],
    cut: tuple[str, str],
    shape: tuple[int, ...],
    crossing: tuple[tuple[int, ...], ...] | None,
) -> None:
    net = make_net(kind)
    model = SplitModel(net, cut=cut)
    result = model.measure(shape)
    assert crossing is None or result[:2] == crossing
    x = torch.randn(3, *shape)
    head, trunk, tail = (segment.eval() for segment in model.segments)
    with torch.no_grad():
        assert torch.equal(tail(trunk(head(x))), net.eval()(x))
    counted = sum(p.numel() for segment in model.segments for p in segment.parameters())
    assert counted == sum(p.numel() for p in net.parameters())


class Tied(nn.Module):
    """Its first and last layer have the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Skipping(nn.Module):
    """The trunk is given two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.middle(self.first(x)))


@pytest.mark.parametrize(
    ("net", "cut", "gist"),
    [
        (Net(), ("frist", "last"), "'frist'.*'first'"),
        (Net(), ("last", "first"), "'last'.*before 'first'"),
        (Tied(), ("first", "last"), "share the weights"),
        (Skipping(), ("first", "last"), "several tensors"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
            (1, 2),
            r"model\.cut: .*got \(1, 2\) of 2",
        ),
        (Net(), None, r"model: .*SplitModel.*first, blocks, last"),
    ],
)
def test_cuts_that_cannot_be_are_refused(
    net: nn.Module, cut: tuple[str, str] | None, gist: str
) -> None:
    with pytest.raises(ScenarioError, match=gist):
        SplitModel(net, cut=cut)


def test_three_modules_are_held_to_samples() -> None:
    model = SplitModel(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    assert model.measure((4,)) == ((8,), (8,), 3)
    with pytest.raises(ScenarioError, match="head cannot"):
        model.measure((5,))
    in_place = SplitModel(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    with pytest.raises(ScenarioError, match=r"trunk cannot.*in-place"):
        in_place.measure((4,))


def test_a_digest_tells_networks_apart() -> None:
    parts = [nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
    one = hold_model(parts)
    assert one == hold_model(SplitModel(*parts))
    with torch.no_grad():
        parts[0].weight[0, 0] += 1
    assert one.digest != hold_model(parts).digest


def test_fresh_weights_come_from_the_seed() -> None:
    parts = [nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
    kept, drawn = hold_model(parts), hold_model(SplitModel(*parts, fresh=True))
    heads = [config.segment("head", (4,), 3, seed) for config in (kept, drawn) for seed in (0, 1)]
    weights = [next(head.parameters()) for head in heads]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], parts[0].weight)
    assert not torch.equal(weights[2], weights[3])
    with pytest.raises(ScenarioError, match=r"model: .*3 scores.*4 classes"):
        kept.segment("head", (4,), 4, 0)
