"""Image classifiers, cut in three as in LightSplit's Table II.

The L1H head is a network's stem or first convolution; the L2H head is one block deeper. In the two
small networks the paper adds that block. For ResNet-18 the paper gives the same trunk size for both
heads, which means that the block is added; a deeper cut of one network would move the block out of
the trunk. Both are options. The paper names no activation after the small networks' added block, so
there is none. All trunks start with a convolution, and no segment modifies its input in place: the
tensor that crosses the cut is a leaf, and the other side still needs its values.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar, Literal, cast, get_args

from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.fresh import InputShape, LaidOut, Owner, Place, Segments, Shape
from simsplit.models.layers import BatchNorm1d, BatchNorm2d

Cut = Literal["l1h", "l2h"]
_CUTS: tuple[Cut, ...] = get_args(Cut)


class ResNet18(LaidOut):
    """torchvision's ResNet-18, whose segments keep torchvision's names of the weights."""

    start = "kaiming"
    name_prefixes: ClassVar[Mapping[Owner, str]] = {"tail": "fc."}

    images_only = True
    kind: Literal["resnet18"] = "resnet18"
    cut: Cut = "l2h"
    """The head: the stem (l1h), or the stem and one residual block (l2h)."""
    l2h: Literal["moved", "added"] = "moved"
    """The block of the l2h head: taken from the trunk (moved), or an additional one (added). No
    effect on l1h."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """imagenet: 7x7 convolution, stride 2, and max pooling. cifar: 3x3, stride 1, no pooling."""

    @property
    def cut_field(self) -> str:  # type: ignore[override]
        # An added block is in no trunk, so the other cut would be of another network.
        return "cut" if self.l2h == "moved" else ""

    def count_passed(self, place: Place) -> int:
        return _CUTS.index(cast("Cut", place)) - _CUTS.index(self.cut)

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        layers = OrderedDict(trunk.named_children())
        layers["layer1"] = cast("nn.Sequential", layers["layer1"])[self.count_passed(place) :]
        return nn.Sequential(layers)

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        # The imagenet stem halves the image twice, rounding up; the cifar stem never does.
        stem_stride = 4 if self.stem == "imagenet" else 1
        smallest = stem_stride * 4 + 1  # so that layer4 still gets more than one pixel to halve
        if min(input_shape[1:]) < smallest:
            takes = f"{self.kind} with the {self.stem} stem takes {smallest}x{smallest} or larger"
            raise build_misfit(takes, input_shape, f"{smallest} or more")
        height, width = (-(-side // stem_stride) for side in input_shape[1:])
        return (64, height, width), (512,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        from torchvision.models import resnet18
        from torchvision.models.resnet import BasicBlock

        net = resnet18(num_classes=num_classes, norm_layer=BatchNorm2d)
        if self.stem == "cifar":
            conv = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
        else:
            conv = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
        head = OrderedDict[str, nn.Module](conv1=conv, bn1=net.bn1, relu=net.relu)
        if self.stem == "imagenet":
            head["maxpool"] = net.maxpool
        layer1 = net.layer1
        if self.cut == "l2h" and self.l2h == "moved":
            head["layer1"], layer1 = layer1[:1], layer1[1:]
        elif self.cut == "l2h":
            head["extra"] = BasicBlock(64, 64, norm_layer=BatchNorm2d)
        rest = {"layer2": net.layer2, "layer3": net.layer3, "layer4": net.layer4}
        trunk = OrderedDict(layer1=layer1, **rest, avgpool=net.avgpool, flatten=nn.Flatten())
        return Segments(nn.Sequential(head), nn.Sequential(trunk), net.fc)


class SimpleCNN(LaidOut):
    """Two convolutions and two linear layers, for grey or colour images of 28 or 32 pixels."""

    images_only = True
    kind: Literal["simplecnn"] = "simplecnn"
    cut: Cut = "l2h"
    """The head: the first convolution (l1h), or a second one as well (l2h)."""
    l2h: Literal["added"] = "added"
    """The l2h head's second convolution is an additional one, which the l1h network lacks."""

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        size_fits = input_shape[1:] in ((28, 28), (32, 32))
        if not size_fits or input_shape[0] not in (1, 3):
            takes = f"{self.kind} takes 28x28 or 32x32 in 1 or 3 channels"
            raise build_misfit(takes, input_shape, "" if size_fits else "28 or 32")
        side = (input_shape[1] - 4) // 2
        return (20, side, side), (512,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        channels, side, _ = input_shape
        head = [nn.Conv2d(channels, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
        if self.cut == "l2h":
            head += _build_same_size_block(20)
        pooled = ((side - 4) // 2 - 4) // 2
        trunk = nn.Sequential(
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * pooled * pooled, 512),
            nn.ReLU(),
        )
        return Segments(nn.Sequential(*head), trunk, nn.Linear(512, num_classes))


class MicronNet(LaidOut):
    """A small network for traffic signs, in 32x32 colour images.

    The first linear layer has 74x4x4 inputs. Unpadded convolutions give that size only without the
    third pooling of MicronNet's paper: the sides are 32, 28, 14, 12, 6, 4.
    """

    images_only = True
    kind: Literal["micronnet"] = "micronnet"
    cut: Cut = "l2h"
    """The head: two convolutions (l1h), or a third one as well (l2h)."""
    l2h: Literal["added"] = "added"
    """The l2h head's third convolution is an additional one, which the l1h network lacks."""

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        if input_shape != (3, 32, 32):
            size = "" if input_shape[1:] == (32, 32) else "32"
            raise build_misfit(f"{self.kind} takes 32x32 in 3 channels", input_shape, size)
        return (29, 14, 14), (300,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        head = [BatchNorm2d(3), nn.Conv2d(3, 1, 1), BatchNorm2d(1), nn.ReLU()]
        head += [nn.Conv2d(1, 29, 5), BatchNorm2d(29), nn.ReLU(), _build_pooling()]
        if self.cut == "l2h":
            head += _build_same_size_block(29)
        trunk = [nn.Conv2d(29, 59, 3), BatchNorm2d(59), nn.ReLU(), _build_pooling()]
        trunk += [nn.Conv2d(59, 74, 3), BatchNorm2d(74), nn.ReLU(), nn.Flatten()]
        trunk += [nn.Linear(74 * 4 * 4, 300), nn.ReLU(), BatchNorm1d(300)]
        return Segments(nn.Sequential(*head), nn.Sequential(*trunk), nn.Linear(300, num_classes))


def _build_same_size_block(channels: int) -> list[nn.Module]:
    """Build the block that L2H adds to a small network's head."""
    # It is padded, so that the cut keeps L1H's shape.
    return [nn.Conv2d(channels, channels, 3, padding=1, bias=False), BatchNorm2d(channels)]


def _build_pooling() -> nn.MaxPool2d:
    """Build MicronNet's overlapping pooling, which rounds up."""
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def build_misfit(takes: str, input_shape: InputShape, size: str) -> ScenarioError:
    """Build the error for unsuitable images; `size` is a size that fits, if the size is wrong."""
    got = "x".join(str(extent) for extent in input_shape)
    resize = f"set data.source.size to {size}, or " if size else ""
    return ScenarioError("model.kind", f"{takes}, got {got}; {resize}choose another model")
