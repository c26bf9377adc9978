"""After Shredder (Mireshghallah et al., ASPLOS 2020): noise that has learned where it does no harm.

A bank of noise tensors, one of which, at random, is added to every sample. They start from a
Laplace draw and learn with the task, while a term rewards their mean magnitude until their power,
over the signal's, reaches `privacy`. Unlike the paper's, which come after training and leave the
network as it is, they learn along with the head.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.methods.base import Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.methods.noise import laplace
from simsplit.seeds import isolated


class ShredderConfig(MethodConfig):
    """Adds one of several learned noise tensors to every sample."""

    kind: Literal["shredder"] = "shredder"
    tensors: int = Field(default=20, ge=1)
    """How many noise tensors are learned."""
    scale: float = Field(default=1.0, gt=0)
    """Scale of the Laplace distribution that they are drawn from at first."""
    weight: float = Field(default=0.01, ge=0)
    """Weight of their mean magnitude in the client's loss, which rewards noise."""
    privacy: float = Field(default=2.0, gt=0)
    """Ratio of noise power to signal power above which more noise is not rewarded."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return Shredder(self, site) if site.side == "client" else Method()


class Bank(nn.Module):
    """The noise tensors that are learned."""

    def __init__(self, tensors: int, shape: Shape, scale: float) -> None:
        super().__init__()
        self.noise = nn.Parameter(scale * laplace(torch.Size((tensors, *shape))))


class Shredder(Method):
    """Adds a tensor of the bank, drawn for each sample."""

    def __init__(self, config: ShredderConfig, site: Site) -> None:
        self.config = config
        with isolated(site.seed, "shredder"):
            self.bank = Bank(config.tensors, site.shape, config.scale)
        self.module = self.bank

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Add one of the tensors to every sample."""
        which = torch.randint(self.config.tensors, (len(z),), generator=step.rng("shredder"))
        if step.training and self.config.weight > 0:
            step.memo[self] = z.detach().square().mean()
        return z + self.bank.noise[which.to(z.device)]

    def loss(self, step: Step) -> Tensor | None:
        """A reward for more noise, until there is enough."""
        if self not in step.memo:
            return None
        noise, power = self.bank.noise, step.memo.pop(self)
        wanting = noise.detach().square().mean() < self.config.privacy * power
        term: Tensor = -self.config.weight * noise.abs().mean() * wanting
        return term
