"""Fresh weights: every segment from its own stream, and nothing else moved by a build."""

import copy

import pytest
import torch
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models import MODELS, SimpleCNN
from simsplit.models.fresh import copy_fresh
from simsplit.models.vision import MicronNet, ResNet18
from simsplit.seeds import isolate

IMAGE = (3, 32, 32)
CONFIGS = [ResNet18(), SimpleCNN(), MicronNet()]
EVERY_CUT = [
    *(kind(cut=cut) for kind in (ResNet18, SimpleCNN, MicronNet) for cut in ("l1h", "l2h")),
    ResNet18(l2h="added"),
    ResNet18(cut="l1h", stem="cifar"),
]


def name(config) -> str:
    return "-".join(str(value) for value in config.model_dump().values())


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_same_seed_same_weights(config):
    one, other = (config.build(IMAGE, 10, seed=5) for _ in range(2))
    assert same(one.head, other.head)
    assert same(one.trunk, other.trunk)
    assert same(one.tail, other.tail)
    assert one.head is not other.head
    assert not same(one.trunk, config.build(IMAGE, 10, seed=6).trunk)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_scope_changes_head_and_tail_but_not_the_trunk(config):
    shared = config.build(IMAGE, 10, seed=5)
    third = config.build(IMAGE, 10, seed=5, scope=("client", 3))
    assert not same(shared.head, third.head)
    assert not same(shared.tail, third.tail)
    assert same(shared.trunk, third.trunk)
    assert same(third.head, config.segment("head", IMAGE, 10, 5, ("client", 3)))
    assert same(third.tail, config.segment("tail", IMAGE, 10, 5, ("client", 3)))


def test_the_tail_does_not_depend_on_the_cut_or_the_stem():
    tails = [
        config.segment("tail", IMAGE, 10, 0) for config in EVERY_CUT if config.kind == "resnet18"
    ]
    assert all(same(tails[0], tail) for tail in tails)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_a_build_leaves_the_global_stream_alone(config):
    before = torch.get_rng_state()
    config.build(IMAGE, 7, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_are_drawn_as_the_usual_constructors_draw_them():
    model = ResNet18().build(IMAGE, 10, seed=1)
    with isolate(1, "model", "head"):
        conv = nn.init.kaiming_normal_(
            torch.empty(64, 3, 7, 7), mode="fan_out", nonlinearity="relu"
        )
    with isolate(1, "model", "tail"):
        tail = nn.Linear(512, 10)
    assert torch.equal(model.head.conv1.weight, conv)
    assert same(model.tail, tail)
    with isolate(1, "model", "head"):
        conv = nn.Conv2d(3, 20, 5)
    assert same(SimpleCNN().build(IMAGE, 10, seed=1).head[0], conv)


@pytest.mark.parametrize("config", EVERY_CUT, ids=name)
def test_batch_norms_start_at_identity(config):
    model = config.build(IMAGE, 10, seed=0)
    for module in nn.Sequential(model.head, model.trunk).modules():
        assert module.training
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
            assert (module.running_mean == 0).all()
            assert (module.running_var == 1).all()
            assert module.num_batches_tracked == 0


@pytest.mark.slow
@pytest.mark.parametrize("config", EVERY_CUT, ids=name)
def test_split_training_step_equals_the_joint_one(config):
    """Detached leaves at both crossings, against one graph: loss and gradients bit for bit."""
    model = config.build(IMAGE, 10, seed=0)
    joint = copy.deepcopy(nn.Sequential(model.head, model.trunk, model.tail))
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(4, *IMAGE, generator=draw)
    labels = torch.randint(10, (4,), generator=draw)

    smashed = model.head(images)
    smashed_leaf = smashed.detach().requires_grad_()
    sent = smashed_leaf.detach().clone()
    features = model.trunk(smashed_leaf)
    features_leaf = features.detach().requires_grad_()
    loss = model.loss(model.tail(features_leaf), labels)
    loss.backward()
    features.backward(features_leaf.grad)
    smashed.backward(smashed_leaf.grad)

    joint_loss = model.loss(joint(images), labels)
    joint_loss.backward()
    assert torch.equal(loss, joint_loss)
    assert torch.equal(smashed_leaf, sent)  # nothing behind the cut wrote into what crossed it
    split = nn.Sequential(model.head, model.trunk, model.tail)
    for ours, theirs in zip(split.parameters(), joint.parameters(), strict=True):
        assert ours.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    assert same(split, joint)  # the running statistics moved alike


def test_every_model_says_which_segments_learn():
    for kind, config in MODELS.items():
        expected = {"adapted_classifier": ("head", "tail")}.get(kind, ("head", "trunk", "tail"))
        assert config().learning == expected, kind
        if "learns" in config.model_fields:
            assert config(learns=["tail"]).learning == ("tail",), kind


class Scale(nn.Module):
    """A layer of a stranger's, with a weight and nothing that draws it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))


def test_a_layer_that_cannot_draw_its_weights_is_named():
    with pytest.raises(ScenarioError, match="Scale"):
        copy_fresh(Scale(), "head", 0)
