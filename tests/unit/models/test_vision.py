"""Table II of the LightSplit paper: parameter counts, cut shapes, and what does not fit."""

from functools import partial

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models import MODELS, Model, SimpleCNN
from simsplit.models.airbench import Airbench
from simsplit.models.attacked import MnistNet, MobileNet, ResNet20
from simsplit.models.fresh import CutNetwork
from simsplit.models.vision import MicronNet, ResNet18

TABLE_II = [
    (ResNet18(cut="l1h"), (3, 32, 32), 10, (9_536, 11_166_976, 5_130)),
    (ResNet18(), (3, 32, 32), 10, (83_520, 11_092_992, 5_130)),
    (ResNet18(l2h="added"), (3, 32, 32), 10, (83_520, 11_166_976, 5_130)),
    (ResNet18(), (3, 32, 32), 100, (83_520, 11_092_992, 51_300)),
    (MicronNet(cut="l1h"), (3, 32, 32), 43, (824, 411_192, 12_943)),
    (MicronNet(), (3, 32, 32), 43, (8_451, 411_192, 12_943)),
    (SimpleCNN(cut="l1h"), (1, 28, 28), 10, (520, 435_162, 5_130)),
    (SimpleCNN(), (1, 28, 28), 10, (4_160, 435_162, 5_130)),
    # not in the table: conv 3*20*25+20; conv 20*50*25+50 and fc 1250*512+512; Linear(512, 10)
    (SimpleCNN(cut="l1h"), (3, 32, 32), 10, (1_520, 665_562, 5_130)),
    # 3*64*9 + 2*64
    (ResNet18(cut="l1h", stem="cifar"), (3, 32, 32), 10, (1_856, 11_166_976, 5_130)),
    # SDAR's levels 4 and 7, its tail on the client
    (ResNet20(), (3, 32, 32), 10, (29_008, 242_816, 650)),
    (ResNet20(cut=7), (3, 32, 32), 10, (123_856, 147_968, 650)),
    # FORA's level 2: 3,213,770 behind the cut, Linear(1024, 10) among them
    (MobileNet(), (3, 32, 32), 10, (3_456, 3_203_520, 10_250)),
    # UnSplit's: conv 1*8*25+8 and 8*16*25+16, fc 256*120+120, 120*84+84, 84*10+10
    (MnistNet(), (1, 28, 28), 10, (208, 3_216 + 30_840 + 10_164, 850)),
    (MnistNet(cut=4), (1, 28, 28), 10, (208 + 3_216, 30_840 + 10_164, 850)),
    # airbench94, 1,972,792 in all: 24*12+24, 9*24*64 + 9*64*64 and two norms of 64; Linear(256, 10)
    (Airbench(), (3, 32, 32), 10, (312 + 50_944, 738_304 + 1_180_672, 2_560)),
    # the second convolution of the first block, 9*64*64 and a norm of 2*64, is the trunk's
    (Airbench(cut="l1h"), (3, 32, 32), 10, (312 + 13_952, 36_992 + 738_304 + 1_180_672, 2_560)),
    # one channel: 64*49 + 2*64
    (ResNet18(cut="l1h"), (1, 28, 28), 10, (3_264, 11_166_976, 5_130)),
]

SHAPES = [
    (ResNet18(cut="l1h"), (3, 32, 32), (64, 8, 8), (512,)),
    (ResNet18(), (3, 32, 32), (64, 8, 8), (512,)),
    (ResNet18(l2h="added"), (1, 28, 28), (64, 7, 7), (512,)),
    (ResNet18(), (3, 17, 33), (64, 5, 9), (512,)),
    (ResNet18(), (3, 18, 19), (64, 5, 5), (512,)),
    (ResNet18(stem="cifar"), (3, 32, 32), (64, 32, 32), (512,)),
    (ResNet18(stem="cifar"), (1, 5, 6), (64, 5, 6), (512,)),
    (Airbench(), (3, 32, 32), (64, 15, 15), (256,)),
    (Airbench(width=24), (3, 25, 48), (24, 12, 23), (96,)),
    (MicronNet(cut="l1h"), (3, 32, 32), (29, 14, 14), (300,)),
    (MicronNet(), (3, 32, 32), (29, 14, 14), (300,)),
    (SimpleCNN(cut="l1h"), (1, 28, 28), (20, 12, 12), (512,)),
    (SimpleCNN(), (1, 28, 28), (20, 12, 12), (512,)),
    (SimpleCNN(), (1, 32, 32), (20, 14, 14), (512,)),
    (SimpleCNN(), (3, 28, 28), (20, 12, 12), (512,)),
    (SimpleCNN(), (3, 32, 32), (20, 14, 14), (512,)),
    (ResNet20(cut=3), (3, 32, 32), (16, 32, 32), (64, 8, 8)),
    (ResNet20(), (3, 32, 32), (32, 16, 16), (64, 8, 8)),
    (ResNet20(cut=7), (3, 32, 32), (64, 8, 8), (64, 8, 8)),
    (ResNet20(width=8), (3, 32, 32), (16, 16, 16), (32, 8, 8)),
    (ResNet20(cut=8), (1, 17, 30), (64, 5, 8), (64, 5, 8)),
    (MobileNet(), (3, 32, 32), (64, 16, 16), (1024,)),
    (MobileNet(cut=13), (3, 33, 20), (1024, 2, 1), (1024,)),
    (MobileNet(cut=1), (1, 7, 7), (32, 4, 4), (1024,)),
    (MnistNet(), (1, 28, 28), (8, 12, 12), (84,)),
    (MnistNet(cut=4), (1, 28, 28), (16, 8, 8), (84,)),
]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("config", "input_shape", "num_classes", "expected"), TABLE_II)
def test_parameter_counts(config, input_shape, num_classes, expected):
    model = config.build(input_shape, num_classes, seed=0)
    assert (count(model.head), count(model.trunk), count(model.tail)) == expected


@pytest.mark.parametrize(("config", "input_shape", "cut_shape", "feature_shape"), SHAPES)
def test_shapes_are_those_of_the_real_tensors(config, input_shape, cut_shape, feature_shape):
    model = config.build(input_shape, 10, seed=0)
    with torch.no_grad():
        smashed = model.head.eval()(torch.zeros(2, *input_shape))
        features = model.trunk.eval()(smashed)
    assert smashed.shape == (2, *cut_shape)
    assert features.shape == (2, *feature_shape)
    assert model.tail(features).shape == (2, 10)
    assert (model.cut_shape, model.feature_shape) == (cut_shape, feature_shape)
    assert config.compute_shapes(input_shape) == (cut_shape, feature_shape)


def test_shapes_lay_out_no_layers(monkeypatch):
    monkeypatch.setattr(ResNet18, "make_segments", None)
    assert ResNet18().compute_shapes((3, 224, 224)) == ((64, 56, 56), (512,))


def test_the_linear_layer_of_simplecnn_takes_1250_values_in_colour():
    trunk = SimpleCNN().build((3, 32, 32), 10, seed=0).trunk
    assert [m.in_features for m in trunk.modules() if isinstance(m, nn.Linear)] == [1250]


@pytest.mark.parametrize("cut", ["l1h", "l2h"])
def test_resnet18_is_torchvisions(cut):
    from torchvision.models import resnet18

    net = resnet18(num_classes=10)
    model = ResNet18(cut=cut, l2h="moved").build((3, 32, 32), 10, seed=0)
    names = [*model.head.state_dict(), *model.trunk.state_dict(), "fc.weight", "fc.bias"]
    assert sorted(names) == sorted(net.state_dict())

    for segment in (model.head, model.trunk):
        segment.load_state_dict({name: net.state_dict()[name] for name in segment.state_dict()})
    model.tail.load_state_dict(net.fc.state_dict())
    images = torch.rand(4, 3, 32, 32)
    joint = nn.Sequential(model.head, model.trunk, model.tail)
    assert torch.equal(joint(images), net(images))  # training mode; it also moves the statistics
    assert torch.equal(joint.eval()(images), net.eval()(images))


@pytest.mark.parametrize(
    ("config", "input_shape", "reason"),
    [
        (SimpleCNN(), (1, 8, 8), "takes 28x28 or 32x32 in 1 or 3 channels, got 1x8x8; set data."),
        (SimpleCNN(), (3, 28, 32), "got 3x28x32; set data.source.size to 28 or 32, or choose"),
        (SimpleCNN(), (4, 28, 28), "4x28x28"),
        (MicronNet(), (3, 28, 28), "got 3x28x28; set data.source.size to 32, or choose another"),
        (MicronNet(), (1, 32, 32), "micronnet takes 32x32 in 3 channels, got 1x32x32; choose"),
        (ResNet18(), (3, 16, 32), "imagenet stem takes 17x17 or larger, got 3x16x32; set data."),
        (ResNet18(stem="cifar"), (3, 4, 4), "cifar stem takes 5x5 or larger, got 3x4x4"),
    ],
)
def test_images_that_do_not_fit(config, input_shape, reason):
    for attempt in (config.build, partial(config.segment, "head")):
        with pytest.raises(ScenarioError) as caught:
            attempt(input_shape, 10, seed=0)
        assert caught.value.field == "model.kind"
        assert reason in caught.value.reason
    with pytest.raises(ScenarioError):
        config.compute_shapes(input_shape)


def test_the_union_knows_every_model_by_kind():
    adapter = TypeAdapter(Model)
    for kind, config in MODELS.items():
        assert adapter.validate_python({"kind": kind}) == config()
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "simplecnn", "l2h": "moved"})


def test_loss_is_the_mean_cross_entropy():
    model = CutNetwork(nn.Identity(), nn.Identity(), nn.Identity(), (2,), (2,))
    outputs = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    loss = model.loss(outputs, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(0.6931472)  # ln 2
