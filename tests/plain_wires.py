"""A split in plain PyTorch, without simsplit but for its recorder: what a stranger would run."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import simsplit
from simsplit.data.sources import DigitsSource

CLASSES = 10


class Constant(nn.Module):
    """An encoder that says the same of every image."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


class PlainSplit(nn.Module):
    """A client's encoder and tail around a server's trunk."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.ReLU())
        self.tail = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(self.encoder(x)))


def record_digits(path: Path, make: Callable[[], nn.Module], count: int = 160) -> Path:
    """Train one epoch on digits with an encoder, recorded; return the transcript's folder."""
    data = DigitsSource(size=12).load().train
    x, y = data.inputs[:count].float() / 255, data.labels[:count]
    torch.manual_seed(0)  # noqa: TID251 - a stranger's script
    net = PlainSplit(make(), 12 * 12)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with simsplit.record(
        path, smashed=net.encoder, features=net.trunk, modality="images", mean=[0.0], std=[1.0]
    ) as tape:
        for rows in torch.arange(count).split(20):
            tape.samples(rows, inputs=x[rows], labels=y[rows])
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return path
