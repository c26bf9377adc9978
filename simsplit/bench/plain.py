"""The plain loop sets the lower limit of time: the joint network, one optimizer and no cut.

It trains on the same batches in the same order. A method's own layers are part of the network, as
they are real work on both sides.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from simsplit.assembly import Assembler
from simsplit.data.batches import Batch
from simsplit.methods.method import Step
from simsplit.methods.stack import Stack
from simsplit.packets import ClientId
from simsplit.parties.feed import Feed


class AtTheCut(nn.Module):
    """Both halves of the methods as one layer."""

    def __init__(self, client: Stack, server: Stack) -> None:
        super().__init__()
        self.client, self.server = client, server
        self.learned = nn.ModuleList([client.modules, server.modules])
        self.step = Step(client=0, round=0, number=0, seed=0)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Encode and lift, with no wire between."""
        return self.server.lift(self.client.encode(z, self.step), self.step)


class PlainLoop:
    """A training loop of the joint network, as one would write it by hand."""

    def __init__(self, assembler: Assembler, feeds: dict[ClientId, Feed]) -> None:
        model, cut = assembler.owners.joint()
        self.loss = assembler.owners.loss
        self.net = nn.Sequential(model.head, AtTheCut(*cut), model.trunk, model.tail)
        self.net.train()
        self.optimizer = assembler.scenario.train.server.build(self.net.parameters())
        self.feeds = feeds
        self.taken = dict.fromkeys(feeds, 0)
        self.loss_sum = torch.zeros((), device=assembler.device)

    def train(self, client: ClientId) -> None:
        """Take one step on a client's next batch."""
        batch = self.feeds[client].batch(self.taken[client])
        self.taken[client] += 1
        loss = self.loss(self.net(batch.inputs), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss_sum += loss.detach() * len(batch.labels)


class TextLoop(ABC):
    """A plain loop over one client's texts, with a whole model."""

    optimizer: torch.optim.Optimizer

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.losses: list[torch.Tensor] = []

    @abstractmethod
    def loss_of(self, batch: Batch) -> torch.Tensor:
        """Compute the loss of a batch."""

    def train(self, client: ClientId) -> None:
        """Take one step on the next batch."""
        loss = self.loss_of(self.feed.batch(len(self.losses)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    @property
    def mean_loss(self) -> float:
        """The mean loss over all steps so far."""
        return torch.stack(self.losses).mean().item()
