"""Weights that a network starts from: a run's, an export's, torchvision's."""

from pathlib import Path

import pytest
import torch
from builders import scenario
from safetensors.torch import save_file
from typer.testing import CliRunner

from simsplit import load_trained, run
from simsplit.__main__ import app
from simsplit.errors import ScenarioError
from simsplit.models.tabular import Mlp
from simsplit.models.vision import ResNet18

SEGMENTS = ("head", "trunk", "tail")


def test_a_run_starts_from_another_or_from_its_export(tmp_path: Path) -> None:
    small = {"kind": "mlp", "widths": [8, 8]}
    first = run(scenario(model=small), tmp_path / "first")
    CliRunner().invoke(app, ["export", str(first.path)])
    network = load_trained(first)
    for path in (first.path, first.path / "export", first.path / "export" / "model.safetensors"):
        config = Mlp(widths=(8, 8), weights=path)
        for owner in SEGMENTS:
            segment = config.segment(owner, (1, 28, 28), 10, seed=9)
            for name, tensor in segment.state_dict().items():
                assert torch.equal(tensor, getattr(network, owner).state_dict()[name])
    further = run(scenario(model={**small, "weights": str(first.path)}), tmp_path / "further")
    assert further.rounds["train_loss"].iloc[0] < first.rounds["train_loss"].iloc[0]


def test_torchvisions_names_fit_and_other_classes_start_afresh(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    whole = resnet18(num_classes=1000)
    save_file(whole.state_dict(), tmp_path / "resnet18.safetensors")
    config = ResNet18(weights=tmp_path / "resnet18.safetensors")
    expected = whole.state_dict()
    for owner in SEGMENTS:
        for name, tensor in config.segment(owner, (3, 32, 32), 10, seed=0).state_dict().items():
            if owner != "tail":
                assert torch.equal(tensor, expected[name]), name
    same = ResNet18(weights=tmp_path / "resnet18.safetensors").segment("tail", (3, 32, 32), 1000, 0)
    assert torch.equal(same.state_dict()["weight"], expected["fc.weight"])


@pytest.mark.parametrize("there", ["nothing", "another", "no tensors"])
def test_weights_that_do_not_fit_say_so(tmp_path: Path, there: str) -> None:
    file = tmp_path / "weights.safetensors"
    if there == "another":
        save_file({"head.1.weight": torch.zeros(3, 3)}, file)
    elif there == "no tensors":
        file.write_bytes(b"pickle?")
    facts = {
        "nothing": "no weights",
        "another": r"head: head\.1\.weight \(8x784, .*3x3\)",
        "no tensors": r"model\.weights: .*not a safetensors",
    }
    with pytest.raises(ScenarioError, match=facts[there]):
        Mlp(widths=(8, 8), weights=file).segment("head", (1, 28, 28), 10, 0)
