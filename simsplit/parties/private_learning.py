"""A client's learning by DP-SGD: clipped gradients of samples are summed, and noise is added.

The step is that of Abadi et al. (CCS 2016). It departs from the usual code in one thing: the
gradient of a sample is that of the sample's own mean loss, as if it were alone. Of texts of several
lengths a batch's mean is over tokens, so that a sample's part would depend on the others' lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.data.samples import IGNORED
from simsplit.methods.method import Step
from simsplit.parties.learner import Learner
from simsplit.parties.sample_gradients import SampleGradients


@dataclass(frozen=True)
class WeightNoise:
    """The size of one client's noise."""

    clip: float
    multiplier: float
    expected: float | None = None
    """The mean number of samples of a drawn batch, by which sums are divided; None: divide by the
    batch's own number, which is public where batches are passes."""


class PrivateLearning:
    """The gradients of one client's mini-batch, which become private before its optimizer steps."""

    def __init__(self, noise: WeightNoise) -> None:
        self.noise = noise
        self.sums: dict[Tensor, Tensor] = {}
        self.rows = 0

    def begin(self) -> None:
        """Forget a mini-batch that was given up."""
        self.sums, self.rows = {}, 0

    def gather(self, samples: SampleGradients, labels: Tensor, share: float) -> None:
        """Add a batch's clipped gradients; `share` is its part of the mini-batch."""
        scales = compute_scales(labels, share)
        for weight, total in samples.clip(self.noise.clip, scales).items():
            before = self.sums.get(weight)
            self.sums[weight] = total if before is None else before + total
        self.rows += samples.rows

    def release(self, learners: Sequence[Learner], step: Step) -> None:
        """Give all weights that learn the noised mean as their gradient."""
        noise, sums = self.noise, self.sums
        size = noise.multiplier * noise.clip
        divisor = noise.expected or self.rows
        # The phase is in the scope: public batches have numbers of their own, and noise that is
        # used twice would cancel out.
        rngs = {}
        for weight in [w for each in learners for w in each.parameters if w.requires_grad]:
            if weight.device not in rngs:
                rngs[weight.device] = step.make_rng("train.dp", step.phase, device=weight.device)
            rng = rngs[weight.device]
            draws = torch.randn(weight.shape, generator=rng, device=rng.device).to(weight.device)
            total = size * draws
            if weight in sums:
                total = sums[weight] + total
            # A weight that no sample reaches gets noise all the same: neighbours may reach it.
            weight.grad = (total / divisor).to(weight.dtype)
        self.begin()


def compute_scales(labels: Tensor, share: float) -> Tensor:
    """Return what makes of each row of a batch's gradient the gradient of that sample alone.

    A batch's loss is the mean over all its labels, times its share of the mini-batch.
    """
    if labels.ndim == 1:
        return torch.full((len(labels),), len(labels) / share, device=labels.device)
    counts = (labels != IGNORED).sum(1)
    return counts.sum() / counts.clamp_min(1) / share
