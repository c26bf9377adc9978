"""A plain split of a small network, which uses nothing of simsplit but `record`.

python plain_split.py wire
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from simsplit import record

BATCH_SIZE = 32
LEARNING_RATE = 0.1


class SplitNet(nn.Module):
    """The client has the encoder and the classifier; the server has the trunk between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.trunk = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.classifier = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each class."""
        return self.classifier(self.trunk(self.encoder(images)))


def load_images() -> tuple[Tensor, Tensor]:
    """Return the digits that ship with scikit-learn: pixels from 0 to 1, and labels."""
    digits = load_digits()
    pixels = torch.as_tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return pixels, torch.as_tensor(digits.target)


def train(folder: str, epochs: int = 1, samples: int = 1024) -> float:
    """Train, record what crosses the cut, and return the last loss."""
    torch.manual_seed(0)  # noqa: TID251 - a plain script
    images, labels = load_images()
    net, loss_of = SplitNet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    loss = torch.zeros(())
    with record(folder, smashed=net.encoder, features=net.trunk) as tape:
        for epoch in range(epochs):
            tape.round = epoch + 1
            for ids in torch.randperm(samples).split(BATCH_SIZE):
                tape.samples(ids, inputs=images[ids], labels=labels[ids])
                loss = loss_of(net(images[ids]), labels[ids])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return loss.item()


if __name__ == "__main__":
    last = train(sys.argv[1] if len(sys.argv) > 1 else "wire")
    print(f"last loss: {last:.3f}")  # noqa: T201 - a script
