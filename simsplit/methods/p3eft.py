"""This module implements P3EFT (arXiv 2412.16669), which hides labels in fine-tuning over an API.

The client's head gets h' = sum_i W_i * h_i, where h_i are the states under n sets of adapters.
W_i = 1/n + sum_{j>i} xi_ij - sum_{j<i} xi_ji with xi ~ N(0, s) in R^d is secret and drawn once per
run; for each of the d values, the weights sum to one. Each h_i is trained not to reveal labels: at
each step a logistic regression is fitted to the batch, and its loss for the opposite labels is a
term of the loss. Gradients can cross in m messages of noise that only the client can combine
(`private_backprop`).

W stays as drawn by default, as in the paper and in the published code, which freezes it after the
draw unless an option trains it (`weights: learned`). The standard deviation of xi differs: 1 in the
code of 2024 and 2025, and 31 in the scripts of 2023 (`spread`). The regulariser is also put on the
features' shift from the model without adapters, by the authors' account with the same weight
everywhere, though the paper has no such term (`shift_alpha`). Published code
adds its terms on one rank before gradients are averaged, so its alphas, on four or eight GPUs, are
as much larger than those that act; alpha here is the one that acts.

The shift needs the features without adapters. A client of an API has them from one more set of
adapters, the last, which stays as it starts, with no effect: it costs as much as any other set.

`scaled` is ours. The published reader takes features as they are, and its penalty (C = 1) makes it
weak on small ones: training then shrinks features, and labels stay plain to attacks that know no
scale. Scaled, the batch's features are centred before the reader, and multiplied by one factor,
which makes their root mean square length 4: that is the length of MiniLM's. The penalty acts on
lengths, so the same one suits models of any width. Gradients pass through the factor; where it is
a constant to them, features shrink as before, and nothing is learned. So it is where each value
has a factor of its own, which makes values that hardly vary as loud as all others.

If features have no axis of adapter sets (topology: u_shaped), there is one set and nothing to mix;
then the regulariser reads the mean over a text's real positions, since padding tells lengths only.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes
from simsplit.legs import Leg
from simsplit.methods.distance_correlation import get_real_mask
from simsplit.methods.method import ANYTHING, Method, MethodConfig, Shape, Share, Site, Step
from simsplit.methods.private_backprop import PrivateBackprop, PrivateBackpropConfig
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.seeds import rng_for

FIT_ITERATIONS = 150
LENGTH = 4.0
"""Root mean square length of the rows that the scaled reader gets."""
SMALLEST = 1e-3
"""The length from which on rows are scaled."""


class P3eftConfig(MethodConfig):
    """Secret mixtures of adapter sets, each trained not to reveal labels."""

    kind: Literal["p3eft"] = "p3eft"
    mixing: bool | None = None
    """Whether the head gets a secret mixture of the adapter sets' states, which needs at least two
    sets (model.adapters: 2), or their mean. Null: a mixture if there are several sets."""
    spread: float = Field(default=1.0, gt=0)
    """Standard deviation of the draws that the secret weights are made of. Published: 1 (code of
    2025) and 31 (scripts of 2023)."""
    weights: Literal["drawn", "learned"] = "drawn"
    """Whether the secret weights stay fixed after they are drawn (`drawn`), or are trained too
    (`learned`)."""
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the regulariser; 0: none. The paper's values are powers of the root of ten."""
    shift_alpha: float = Field(default=0.0, ge=0)
    """Weight of the same regulariser on how adapters shift the features. The last set of adapters
    (model.adapters) then stays without effect, for its features are the unshifted ones."""
    scaled: bool = False
    """Whether a batch's features are centred and scaled before the regulariser's reader, so that
    small features do not evade it. Not published. With `shift_alpha` little was learned in what
    was measured (MiniLM on SST-2), whatever the weight."""
    messages: int = Field(default=1, ge=1)
    """Messages in which each gradient crosses, with mixed noise; only their secret sum is the
    gradient. For other noise, list private_backprop instead. 1: the gradient itself crosses."""
    modalities = ANYTHING
    once = True
    everywhere = True

    @model_validator(mode="after")
    def _check_that_a_part_is_on(self) -> Self:
        if self.mixing is False and not self.regularises and self.messages == 1:
            raise ValueError(
                "mixing: false, alpha: 0 and messages: 1 turn off all parts of the method; leave "
                "it out, or give mixing: true, alpha above 0 or messages above 1"
            )
        return self

    @property
    def regularises(self) -> bool:
        """Whether the regulariser is on, for features or for their shift."""
        return bool(self.alpha or self.shift_alpha)

    @property
    def needs(self) -> Needs:
        own = [Need(Given.SCORING), Need(Given.CLASSIFIES), need_leg(Leg.FEATURES_GRAD)]
        if self.mixing:
            least = 3 if self.shift_alpha else 2
            own.append(Need(Given.ADAPTER_SETS, "mixing", least=least))
        elif self.shift_alpha:
            own.append(Need(Given.ADAPTER_SETS, "shift_alpha", least=2))
        elif not self.alpha and self.messages == 1:  # mixing is all that the method can do
            own.append(Need(Given.ADAPTER_SETS, "alpha", least=2))
        if self.messages > 1:
            # A trunk that learns would learn from the noise of single messages.
            own.append(Need(Given.FROZEN_TRUNK, "messages"))
        return (*super().needs, *own)

    def build(self, site: Site) -> Method:
        if site.side == "server":
            return Method()
        weights, mixed = None, site.sets - bool(self.shift_alpha)
        if self.mixing is not False and mixed > 1:
            weights = draw_mixing_weights(mixed, site.features[1:], self.spread, site.seed)
            weights = weights.to(site.device)
        return P3eft(self, weights, sets=site.sets)


def draw_mixing_weights(sets: int, shape: Shape, spread: float, seed: int) -> Tensor:
    """Draw W, of sets x shape, which sums to one over the sets."""
    rng = rng_for(seed, "p3eft", "weights")
    weights = torch.full((sets, *shape), 1 / sets)
    for one in range(sets):
        for other in range(one + 1, sets):
            draw = torch.randn(shape, generator=rng) * spread
            weights[one] += draw
            weights[other] -= draw
    return weights


class P3eft(Method):
    """The client's half, which mixes states and stores them for the regulariser."""

    accepts_parts = True

    def __init__(self, config: P3eftConfig, weights: Tensor | None, *, sets: int) -> None:
        self.config, self.weights, self.sets = config, weights, sets
        self.backprop = PrivateBackprop(PrivateBackpropConfig(messages=config.messages))
        self.num_messages = config.messages
        if config.weights == "learned" and weights is not None:
            self.module = nn.Module()
            self.module.weights = self.weights = nn.Parameter(weights)

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        return self.backprop.split_gradient(grad, step)

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Keep the last set of adapters without effect, if the shift is read against it."""
        if self.config.shift_alpha:
            # Of a gradient in several messages rounding leaves a little, which Adam would enlarge.
            for weight in head.get_submodule(f"sets.{self.sets - 1}").parameters():
                if weight.grad is not None:
                    weight.grad.zero_()
        return True

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Mix the sets' states, from B x n x D to B x D, for the client's head."""
        if self.config.regularises and step.training and step.labels is not None:
            step.memo[self] = u
        if not self.sets:
            return u
        # No loss reaches the set without effect, so it stays so.
        mixed = u[:, :-1] if self.config.shift_alpha else u
        return mixed.mean(1) if self.weights is None else (mixed * self.weights).sum(1)

    def transform(self, batch: Batch, step: Step) -> Batch:
        if self.config.regularises and step.training and not self.sets:
            step.memo[self, "real"] = get_real_mask(batch)
        return batch

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the regulariser: alpha times the sum of each set's loss on opposite labels."""
        u = step.memo.pop(self, None)
        if u is None or step.labels is None:
            return None
        real = step.memo.pop((self, "real"), None)
        each = list(u.unbind(1)) if self.sets else [flatten_real(u, real)]
        weighted = []
        if self.config.shift_alpha:
            base = each.pop().detach()
            weighted += [(self.config.shift_alpha, h - base) for h in each]
        weighted += [(self.config.alpha, h) for h in each if self.config.alpha]
        labels, terms = get_classes(step.labels), []
        for alpha, h in weighted:
            read = scale_together(h) if self.config.scaled else h
            loss = compute_opposite_loss(read, labels, step.seed)
            terms += [] if loss is None else [alpha * loss]
        return torch.stack(terms).sum() if terms else None


def flatten_real(u: Tensor, mask: Tensor | None) -> Tensor:
    """Return one row per sample: the mean over a text's real positions, or all values."""
    if mask is None or u.dim() != 3:
        return u.flatten(1)
    real = mask.to(u)[:, :, None]
    mean: Tensor = (u * real).sum(1) / real.sum(1).clamp_min(1)
    return mean


def scale_together(h: Tensor) -> Tensor:
    """Centre rows, and scale them by one factor to a root mean square length of `LENGTH`."""
    centred = h - h.mean(0)
    length = centred.square().sum(1).mean().sqrt()
    # At the first step a shift is zero but for rounding, which must not be scaled up.
    return centred * LENGTH / length if length > SMALLEST else centred


def compute_opposite_loss(h: Tensor, labels: Tensor, seed: int) -> Tensor | None:
    """Return the loss of a linear classifier on the opposite labels; None for a single class.

    The classifier is fitted to the batch's true labels; gradients reach h only.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    classes, targets = np.unique(labels.cpu().numpy(), return_inverse=True)
    if len(classes) < 2:
        return None
    # As the published code does: C = 1, no scaling, at most 150 iterations.
    classifier = LogisticRegression(random_state=seed % 2**32, max_iter=FIT_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(h.detach().float().cpu().numpy(), targets)
    weight = torch.as_tensor(classifier.coef_, dtype=h.dtype, device=h.device)
    bias = torch.as_tensor(classifier.intercept_, dtype=h.dtype, device=h.device)
    scores, wanted = F.linear(h, weight, bias), torch.as_tensor(targets, device=h.device)
    if len(classes) == 2:
        return F.binary_cross_entropy_with_logits(scores[:, 0], 1 - wanted.to(h.dtype))
    return F.cross_entropy(-scores, wanted)
