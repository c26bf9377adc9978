"""This module implements NaiveMix: mixup of smashed data (Sun et al., COLING 2020) and of the loss.

Each text H1 of a batch is mixed with another one, H2: the client sends lam H1 + (1 - lam) H2 with
lam ~ Beta(a, a). The loss of the returned features is mixed from both texts' labels in the same
proportion.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.methods.method import CUT_LEGS, TEXTS, Loss, Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need
from simsplit.seeds import numpy_rng_for


class NaiveMixConfig(MethodConfig):
    """Mixtures of pairs of private texts (mixup of smashed data)."""

    kind: Literal["naive_mix"] = "naive_mix"
    alpha: float = Field(default=1.0, gt=0)
    """Parameter of the Beta distribution of mixing proportions. 1: uniform; larger values give
    proportions closer to one half."""
    modalities = TEXTS
    works_in_sessions = True
    required_traits = frozenset({Trait.SAMPLES, Trait.VALUES})
    ended_traits = frozenset({Trait.SAMPLES})
    once = True
    superposes = CUT_LEGS
    requires = (Need(Given.SCORING), Need(Given.UNMASKED))

    def build(self, site: Site) -> Method:
        return NaiveMix(self.alpha) if site.side == "client" else Method()


class NaiveMix(Method):
    """The client's half; a step's memo holds the partners and the mixing proportion."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Draw partners and the proportion; return the batch unchanged."""
        if step.training:
            partners = torch.randperm(len(batch.labels), generator=step.make_rng("partners"))
            stream = ("naive_mix", step.phase, step.client, step.round, step.number)
            share = float(numpy_rng_for(step.seed, *stream).beta(self.alpha, self.alpha))
            step.memo[self] = (partners.to(batch.labels.device), share)
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Mix each text with its partner."""
        if self not in step.memo:
            return z
        partners, share = step.memo[self]
        mixed: Tensor = share * z + (1 - share) * z[partners]
        return mixed

    def compute_task_loss(
        self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step
    ) -> Tensor | None:
        """Return the losses on both texts' labels, mixed in the same proportion."""
        if self not in step.memo:
            return None
        partners, share = step.memo[self]
        both = torch.stack([loss(outputs, labels), loss(outputs, labels[partners])])
        return (both * both.new_tensor([share, 1 - share])).sum()
