"""The vision transformer is torchvision's, cut between two blocks: equal to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from safetensors.torch import save_file

from simsplit.assembly.trained import load_trained
from simsplit.errors import ScenarioError
from simsplit.models.fresh import CutNetwork
from simsplit.models.vit import VisionTransformer
from simsplit.network.clock import count_flops

SIZES: dict[str, Any] = {"patch": 4, "width": 16, "layers": 3, "heads": 2, "hidden": 24}
SHAPE, CLASSES = (3, 12, 12), 5


def make_whole() -> torch.nn.Module:
    from torchvision.models import VisionTransformer as Whole

    with torch.random.fork_rng():
        torch.manual_seed(3)  # noqa: TID251 - torchvision draws from it
        made = Whole(12, 4, 3, 2, 16, 24, num_classes=CLASSES)
        torch.nn.init.normal_(made.heads.head.weight)
    return made


def cut(head: int, path: Path) -> CutNetwork:
    config = VisionTransformer(**SIZES, head=head, weights=path)
    return config.build(SHAPE, CLASSES, seed=0)


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_cut_is_the_whole_to_the_bit(head: int, tmp_path: Path) -> None:
    whole, file = make_whole(), tmp_path / "whole.safetensors"
    save_file(whole.state_dict(), file)
    made = cut(head, file)
    segments = (made.head, made.trunk, made.tail)
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    smashed = made.head(images)
    features = made.trunk(smashed)
    outputs = made.tail(features)
    assert (smashed.shape[1:], features.shape[1:]) == (made.cut_shape, made.feature_shape)
    assert torch.equal(outputs, whole(images))
    outputs.square().sum().backward()
    whole(images).square().sum().backward()
    ours = {
        VisionTransformer.name_prefixes.get(owner, "") + name: weight.grad
        for owner, segment in zip(("head", "trunk", "tail"), segments, strict=True)
        for name, weight in segment.named_parameters()
    }
    theirs = {name: weight.grad for name, weight in whole.named_parameters()}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_it_begins_as_torchvision_does() -> None:
    """The same spread of each weight, and zeros where there are zeros."""
    from torchvision.models import VisionTransformer as Whole

    sizes = {"width": 64, "layers": 2, "heads": 2, "hidden": 256}
    made = VisionTransformer(**sizes).build((3, 32, 32), 10, seed=0)
    whole = Whole(32, 4, 2, 2, 64, 256, num_classes=10).state_dict()
    for owner in ("head", "trunk", "tail"):
        before = VisionTransformer.name_prefixes.get(owner, "")
        for name, weight in getattr(made, owner).state_dict().items():
            theirs = whole[before + name]
            assert weight.shape == theirs.shape
            assert weight.std().item() == pytest.approx(theirs.std().item(), rel=0.2, abs=1e-5)


def test_inference_counts_the_projections_of_attentions() -> None:
    """The layers of one block, by hand: three projections, one out, and two of the MLP."""
    made = VisionTransformer(**SIZES, head=2).build(SHAPE, CLASSES, seed=0)
    tokens, width, hidden = 10, 16, 24
    with torch.no_grad():
        counted, _ = count_flops(lambda: made.trunk.eval()(torch.zeros(1, tokens, width)))
    products = 4 * tokens * width**2 + 2 * tokens * width * hidden
    assert counted == 2 * products


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"heads": 3}, "heads:"), ({"head": 3}, "head:"), ({"patch": 5}, "model.kind")],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(model={"kind": "vit", **SIZES, **changes})
    assert field in str(caught.value)


def test_a_run_trains_it_and_its_network_is_read_back(tmp_path: Path) -> None:
    model = {"kind": "vit", **SIZES, "patch": 7}
    made = run_to_end(
        scenario(model=model, train={"checkpointing": True}, schedule={"rounds": 1}),
        tmp_path / "run",
    )
    trained = load_trained(tmp_path / "run")
    one = made.parts.server.learner.weights()["trunk.encoder_layer_1.mlp.0.weight"]
    assert torch.equal(trained.trunk.state_dict()["encoder_layer_1.mlp.0.weight"], one)
