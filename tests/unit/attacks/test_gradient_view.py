"""What attacks on gradients prepare from a batch's messages."""

from types import SimpleNamespace

import torch
from torch import nn

from simsplit.attacks.gradient_view import _scale_to_usual
from simsplit.attacks.knowledge import Pretrained
from simsplit.models.language import CausalLM
from simsplit.models.transformer import Head

LENGTH, TOKENS = 12, 259


class Counted(nn.Module):
    """A trunk that counts its passes, with features three times as large as what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return 3 * x


def make_known() -> tuple[SimpleNamespace, Counted]:
    trunk = Counted()
    model = CausalLM(sizes={"width": 16, "layers": 3}, head=1, tail=1)
    head = model.segment("head", (LENGTH,), 1, seed=0).eval()
    assert isinstance(head, Head)
    segments = {"head": head, "trunk": trunk}
    return SimpleNamespace(pretrained=Pretrained(segments.__getitem__, vocabulary=TOKENS)), trunk


def test_the_usual_level_is_measured_once_for_each_length_of_texts():
    known, trunk = make_known()
    for rows, length in ((2, 12), (5, 12), (2, 7), (2, 12), (1, 7)):
        _scale_to_usual(known, torch.randn(rows, length, 16, generator=torch.Generator()))
    assert trunk.passes == 2


def test_features_get_the_level_of_the_pretrained_ones_whatever_was_measured_before():
    features = torch.randn(2, LENGTH, 16, generator=torch.Generator().manual_seed(1))
    first, _ = make_known()
    later, _ = make_known()
    _scale_to_usual(later, features[:, :5])
    _scale_to_usual(later, features + 1)
    wanted = _scale_to_usual(first, features)
    assert torch.equal(_scale_to_usual(later, features), wanted)
    assert torch.allclose(_scale_to_usual(first, 40 * features), wanted, rtol=1e-5)
