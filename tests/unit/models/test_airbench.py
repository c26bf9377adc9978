"""airbench94 as published: its layers by hand, its recipe, and what its first layer is for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from simsplit.data.sources import ParquetSource
from simsplit.models.airbench import VARIANCE_EPS, Airbench, Norm, build_whitening_filters
from simsplit.models.vision import Cut

WIDTH = 24


def build_published(width: int) -> nn.Sequential:
    """Build the published layers out of torch's own."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        norms = [nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4) for _ in range(2)]
        for norm in norms:
            norm.weight.requires_grad_(False)
        first = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
        second = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        return [first, nn.MaxPool2d(2), norms[0], nn.GELU(), second, norms[1], nn.GELU()]

    whiten = nn.Conv2d(3, 24, 2)
    whiten.weight.requires_grad_(False)
    blocks = [*block(24, width), *block(width, 4 * width), *block(4 * width, 4 * width)]
    last = nn.Linear(4 * width, 10, bias=False)
    return nn.Sequential(whiten, nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten(), last)


def join_parts(width: int, cut: Cut) -> nn.Sequential:
    model = Airbench(width=width, cut=cut).build((3, 32, 32), 10, seed=0)
    return nn.Sequential(*model.head, *model.trunk, model.tail)


@pytest.mark.parametrize("cut", ["l1h", "l2h"])
def test_sgd_at_one_rate_is_the_published_recipe_with_quicker_biases(cut):
    ours, theirs = join_parts(WIDTH, cut), build_published(WIDTH)
    theirs.load_state_dict(ours.state_dict())
    lr, decay, momentum = 0.02, 1e-3, {"momentum": 0.85, "nesterov": True}
    norms = [m.bias for m in theirs.modules() if isinstance(m, nn.BatchNorm2d)]
    fast = {id(bias) for bias in norms}
    others = [p for p in theirs.parameters() if p.requires_grad and id(p) not in fast]
    groups = [
        {"params": norms, "lr": 64 * lr, "weight_decay": decay / 64},
        {"params": others, "lr": lr, "weight_decay": decay},
    ]
    optimizers = [
        torch.optim.SGD([p for p in ours.parameters() if p.requires_grad], lr, weight_decay=decay,
                        **momentum),
        torch.optim.SGD(groups, lr, **momentum),
    ]  # fmt: skip
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    losses = []
    for _ in range(4):
        both = F.cross_entropy(ours(images), labels), F.cross_entropy(theirs(images) / 9, labels)
        for loss, optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append([loss.item() for loss in both])
    assert losses[-1][0] < 0.9 * losses[0][0]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)
    kept = [m.bias.detach() for m in ours.modules() if isinstance(m, Norm)]
    moved = [bias.detach() for bias in norms]
    torch.testing.assert_close(8 * torch.cat(kept), torch.cat(moved), rtol=0.02, atol=2e-3)


def test_convolutions_begin_by_copying_and_the_first_one_never_learns():
    model = Airbench(width=WIDTH).build((3, 32, 32), 10, seed=0)
    other = Airbench(width=WIDTH).build((3, 32, 32), 10, seed=1)
    first, second = model.head[0], model.head[2]
    assert not first.weight.requires_grad
    assert torch.equal(first.weight, other.head[0].weight)
    x = torch.randn(2, 24, 8, 8)
    torch.testing.assert_close(second(x)[:, :24], x)
    wider = model.trunk[0](torch.randn(2, WIDTH, 8, 8))
    assert wider.shape[1] == 4 * WIDTH
    assert not torch.equal(model.trunk[0].weight[WIDTH:], other.trunk[0].weight[WIDTH:])


def test_a_single_value_is_normalised_by_the_running_statistics():
    norm = Norm(3).train()
    x = torch.randn(1, 3, 1, 1)
    torch.testing.assert_close(norm(x), x)


@pytest.mark.slow
def test_filters_equal_those_of_the_published_code_on_cifar10(real_data):
    images = ParquetSource(path=real_data("cifar10")).load().train.inputs[:5000].double() / 255
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    theirs = vectors.T / (values + VARIANCE_EPS).sqrt()[:, None]
    ours = build_whitening_filters()[:12].flatten(1).double()
    cosines = F.normalize(ours) @ F.normalize(theirs).T
    nearest = cosines.abs().argmax(1)
    assert sorted(nearest.tolist()) == list(range(12))
    assert cosines.abs().amax(1).min() > 0.98
    torch.testing.assert_close(ours.norm(dim=1), theirs.norm(dim=1)[nearest], rtol=0.05, atol=0)
