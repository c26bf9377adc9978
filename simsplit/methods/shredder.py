"""This module adds learned noise, after Shredder (Mireshghallah et al., ASPLOS 2020).

One of several noise tensors, drawn at random, is added to every sample. The tensors start from a
Laplace draw and learn with the task, while a loss term rewards their mean magnitude until the ratio
of their power to the signal's reaches `privacy`. In the paper, noise is learned after training, for
a fixed network; here it is learned together with the head.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.methods.method import Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.methods.noise import draw_laplace
from simsplit.seeds import isolate


class ShredderConfig(MethodConfig):
    """Learned noise: a random tensor of a bank is added to every sample."""

    kind: Literal["shredder"] = "shredder"
    tensors: int = Field(default=20, ge=1)
    """The number of learned noise tensors."""
    scale: float = Field(default=1.0, gt=0)
    """Scale of the Laplace distribution from which the tensors are initialised."""
    weight: float = Field(default=0.01, ge=0)
    """Weight of the tensors' mean magnitude, which the client's loss rewards; 0: no reward."""
    privacy: float = Field(default=2.0, gt=0)
    """Ratio of noise power to signal power from which on more noise is not rewarded."""
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        return Shredder(self, site) if site.side == "client" else Method()


class Bank(nn.Module):
    """The learned noise tensors."""

    def __init__(self, tensors: int, shape: Shape, scale: float) -> None:
        super().__init__()
        self.noise = nn.Parameter(scale * draw_laplace(torch.Size((tensors, *shape))))


class Shredder(Method):
    """The client's half, which adds a random tensor of the bank to each sample."""

    def __init__(self, config: ShredderConfig, site: Site) -> None:
        self.config = config
        with isolate(site.seed, "shredder"):
            self.bank = Bank(config.tensors, site.shape, config.scale)
        self.module = self.bank

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Add one of the tensors to each sample."""
        which = torch.randint(self.config.tensors, (len(z),), generator=step.make_rng("shredder"))
        if step.training and self.config.weight > 0:
            step.memo[self] = z.detach().square().mean()
        return z + self.bank.noise[which.to(z.device)]

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the reward for noise, or 0 if the noise has reached the ratio `privacy`."""
        if self not in step.memo:
            return None
        noise, power = self.bank.noise, step.memo.pop(self)
        is_low = noise.detach().square().mean() < self.config.privacy * power
        term: Tensor = -self.config.weight * noise.abs().mean() * is_low
        return term
