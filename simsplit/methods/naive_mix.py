"""This module implements NaiveMix: mixup of smashed data (Sun et al., COLING 2020) and of the loss.

Each text H1 of a batch is mixed with another one, H2: the client sends lam H1 + (1 - lam) H2 with
lam ~ Beta(a, a), one proportion for a batch. The loss of the returned features is mixed from both
texts' labels in the same proportion.

MixGuard's paper mixes two samples (its equations 7 to 10) and does not say how the second one is
drawn. Published code of mixup (Zhang et al., 2018) draws a permutation of the batch, which is the
default. It leaves a text as it is where the permutation has a fixed point: one text of a batch on
average, whatever its size. As a defence, `partners: others` has none.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import RunFailedError
from simsplit.methods.method import CUT_LEGS, TEXTS, Loss, Method, MethodConfig, Site, Step, Trait
from simsplit.needs import Given, Need, Needs
from simsplit.seeds import numpy_rng_for


class NaiveMixConfig(MethodConfig):
    """Mixtures of pairs of private texts (mixup of smashed data)."""

    kind: Literal["naive_mix"] = "naive_mix"
    alpha: float = Field(default=1.0, gt=0)
    """Parameter of the Beta distribution of mixing proportions. 1: uniform; larger values give
    proportions closer to one half."""
    partners: Literal["permutation", "others"] = "permutation"
    """Whom each text is mixed with. permutation: a permutation of the batch, as in published code
    of mixup; where it leaves a text at its place, the text is sent unmixed. others: always another
    text, which takes batches of two or more."""
    modalities = TEXTS
    works_in_sessions = True
    required_traits = frozenset({Trait.SAMPLES, Trait.VALUES})
    ended_traits = frozenset({Trait.SAMPLES})
    once = True
    superposes = CUT_LEGS
    requires = (Need(Given.SCORING), Need(Given.UNMASKED))

    @property
    def needs(self) -> Needs:
        pairs = (Need(Given.BATCH, "partners", least=2),) if self.partners == "others" else ()
        return (*super().needs, *pairs)

    def build(self, site: Site) -> Method:
        return NaiveMix(self) if site.side == "client" else Method()


class NaiveMix(Method):
    """The client's half; a step's memo holds the partners and the mixing proportion."""

    def __init__(self, config: NaiveMixConfig) -> None:
        self.alpha, self.others = config.alpha, config.partners == "others"

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Draw partners and the proportion; return the batch unchanged."""
        if step.training:
            partners = self._draw_partners(len(batch.labels), step.make_rng("partners"))
            stream = ("naive_mix", step.phase, step.client, step.round, step.number)
            share = float(numpy_rng_for(step.seed, *stream).beta(self.alpha, self.alpha))
            step.memo[self] = (partners.to(batch.labels.device), share)
        return batch

    def _draw_partners(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw each text's partner, uniformly among the pairings that are allowed."""
        if self.others and count < 2:
            raise RunFailedError(
                "naive_mix with partners: others: a batch of one text has no other text to mix it "
                "with; choose a train.batch_size (and targets.batch_size) that leaves no single "
                "text over, or train.drop_last: true"
            )
        partners = torch.randperm(count, generator=rng)
        # about one permutation in e has no fixed point, whatever the size
        while self.others and bool((partners == torch.arange(count)).any()):
            partners = torch.randperm(count, generator=rng)
        return partners

    def encode(self, z: Tensor, step: Step) -> Tensor:
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
