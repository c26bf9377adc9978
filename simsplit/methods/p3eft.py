"""P3EFT: labels kept private while a model is fine-tuned over an API (arXiv 2412.16669).

The head gets h' = sum_i W_i * h_i of the states under n sets of adapters. W_i = 1/n +
sum_{j>i} xi_ij - sum_{j<i} xi_ji with xi ~ N(0, s) in R^d, secret, drawn once a run: its columns
sum to one. Each h_i is trained not to give labels away: at each step a logistic regression is
fitted to the batch, and what it would do with the opposite labels is a term of the loss. And
gradients can cross in m messages of noise that only the client can combine (`private_backprop`).

The published code trains W with everything else, unless told not to; the paper draws it once, and
so does `weights: drawn`. Where features have no axis of adapters (topology: u_shaped), there is one
set, and nothing to mix; the regulariser then reads all positions at once, padding included.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from simsplit.methods.base import (
    ANYTHING,
    Method,
    MethodConfig,
    Modality,
    Shape,
    Share,
    Site,
    Step,
)
from simsplit.methods.classes import classes_of
from simsplit.methods.private_backprop import PrivateBackprop, PrivateBackpropConfig
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.seeds import rng_for

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

FIT_ITERATIONS = 150


class P3eftConfig(MethodConfig):
    """Mixes sets of adapters with secret weights, and trains each not to tell labels."""

    kind: Literal["p3eft"] = "p3eft"
    mixing: bool | None = None
    """Whether the head gets a secret mixture of the sets' states, which needs two sets
    (model.adapters: 2); false: their mean. Null: a mixture where there are several."""
    spread: float = Field(default=1.0, gt=0)
    """Standard deviation of the secret weights."""
    weights: Literal["drawn", "learned"] = "drawn"
    """drawn: the secret weights stay as they are drawn. learned: they are trained too."""
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the regulariser; 0: none. The paper's values are powers of the root of ten."""
    messages: int = Field(default=1, ge=1)
    """In how many messages each gradient crosses, none of which is the gradient (private_backprop,
    whose noise is mixed; list that method for other noise); 1: as it is."""
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    once: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.mixing is False and not self.alpha and self.messages == 1:
            raise ValueError(
                "all of its parts are off; leave the method out, or give mixing: true, alpha above "
                "0 or messages above 1"
            )
        return self

    @property
    def needs(self) -> Needs:
        """Clients have the labels and the loss; several messages say nothing to a trunk."""
        own = [Need(Given.SCORING), Need(Given.CLASSIFIES), needs_leg(Leg.FEATURES_GRAD)]
        if self.mixing:
            own.append(Need(Given.ADAPTER_SETS, "mixing", least=2))
        elif not self.alpha and self.messages == 1:  # there is nothing else for it to do
            own.append(Need(Given.ADAPTER_SETS, "alpha", least=2))
        if self.messages > 1:
            own.append(Need(Given.FROZEN_TRUNK, "messages"))
        return (*super().needs, *own)

    def build(self, site: Site) -> Method:
        """The client's half; the server has none."""
        if site.side == "server":
            return Method()
        weights = None
        if self.mixing is not False and site.sets > 1:
            weights = mixing_weights(site.sets, site.features[1:], self.spread, site.seed)
            weights = weights.to(site.device)
        return P3eft(self, weights, sets=site.sets)


def mixing_weights(sets: int, shape: Shape, spread: float, seed: int) -> Tensor:
    """W, sets x shape; over the sets it sums to one."""
    rng = rng_for(seed, "p3eft", "weights")
    weights = torch.full((sets, *shape), 1 / sets)
    for one in range(sets):
        for other in range(one + 1, sets):
            drawn = torch.randn(shape, generator=rng) * spread
            weights[one] += drawn
            weights[other] -= drawn
    return weights


class P3eft(Method):
    """Mixes what arrives, and keeps it for the regulariser."""

    def __init__(self, config: P3eftConfig, weights: Tensor | None, *, sets: int) -> None:
        self.alpha, self.weights, self.sets = config.alpha, weights, sets
        self.backprop = PrivateBackprop(PrivateBackpropConfig(messages=config.messages))
        self.num_messages = config.messages
        if config.weights == "learned" and weights is not None:
            self.module = nn.Module()
            self.module.weights = self.weights = nn.Parameter(weights)

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """The gradient, or messages of it."""
        return self.backprop.outgoing(grad, step)

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """What the head gets: of B x n x D, B x D."""
        if self.alpha and step.training and step.labels is not None:
            step.memo[self] = u
        if not self.sets:
            return u
        return u.mean(1) if self.weights is None else (u * self.weights).sum(1)

    def tail_loss(self, step: Step) -> Tensor | None:
        """How well each set's states tell the opposite of the labels."""
        u = step.memo.pop(self, None)
        if u is None or step.labels is None:
            return None
        each = u.unbind(1) if self.sets else [u.flatten(1)]
        terms = [opposite_loss(h, classes_of(step.labels), step.seed) for h in each]
        found = [term for term in terms if term is not None]
        return self.alpha * torch.stack(found).sum() if found else None


def opposite_loss(h: Tensor, labels: Tensor, seed: int) -> Tensor | None:
    """The loss of the best linear reader of labels, of their opposites; None of a single class.

    The reader is fitted to the batch and does not learn; only h does.
    """
    classes, targets = np.unique(labels.cpu().numpy(), return_inverse=True)
    if len(classes) < 2:
        return None
    reader = _fitted(h.detach().float().cpu().numpy(), targets, seed)
    weight = torch.as_tensor(reader.coef_, dtype=h.dtype, device=h.device)
    bias = torch.as_tensor(reader.intercept_, dtype=h.dtype, device=h.device)
    scores, wanted = F.linear(h, weight, bias), torch.as_tensor(targets, device=h.device)
    if len(classes) == 2:
        return F.binary_cross_entropy_with_logits(scores[:, 0], 1 - wanted.to(h.dtype))
    return F.cross_entropy(-scores, wanted)


def _fitted(rows: np.ndarray, targets: np.ndarray, seed: int) -> "LogisticRegression":
    """As the published code fits it: C = 1, no scaling, at most 150 iterations."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made = LogisticRegression(random_state=seed % 2**32, max_iter=FIT_ITERATIONS)
        return made.fit(rows, targets)
