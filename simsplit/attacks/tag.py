"""TAG (Deng et al., EMNLP Findings 2021) for a cut model: find tokens with the client's gradient.

A client answers features with their gradient. The attack optimizes soft labels until their gradient
at the same features, through the pretrained tail, equals the client's. The loss is .85 times the
squared and .15 times the absolute difference. A label is the next token, so the labels are the text
moved by one place. A token that is no label leaves a trace through attention only. As in SplitLLM's
code (Chen et al., CCS 2024), differences are summed, labels start from the softmax of normal draws,
and AdamW has an epsilon of 1e-6 and a decay of .01.

Ours: the attacker does not know a gradient's scale, since it knows neither the mean's divisor nor a
defence's factor. The observed gradient is scaled to the usual size of gradients of random hard
labels. The soft labels' gradient is not levelled in the loss: uniform labels have almost no
gradient, so levelling would lose most of the slope. Guesses are compared by the distance between
levelled gradients. Where messages are mixed, both signs are tried. All texts of a batch are
optimized at once, since none depends on another.

SplitLLM's code matches the raw gradient of the mean loss, leaves out the last position, and learns
only positions with a label. It converges 10 to 15 times faster than this version.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import AdamW

from simsplit.attacks.attack import TextAttackConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, TextAttack, has_unknown_sign, payload
from simsplit.models.transformer import use_eager_attention
from simsplit.packets import Leg
from simsplit.seeds import rng_for

SQUARED, ABSOLUTE = 0.85, 0.15
"""Weights of the squared and the absolute difference, as published."""
EPS = 1e-6
"""AdamW's epsilon, as published."""
LABELLED = 0.1
"""Positions count as labelled if their gradient exceeds this share of the text's largest one."""


class MatchingConfig(TextAttackConfig):
    """Base class of the fields of attacks that match gradients."""

    iterations: int = Field(default=300, ge=1)
    """Optimization steps on the soft labels."""
    lr: float = Field(default=0.09, gt=0)
    """AdamW's learning rate."""
    gradients: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    public: ClassVar[bool] = False


class TagConfig(MatchingConfig):
    """Soft labels, optimized until their gradient through the public tail equals the client's."""

    kind: Literal["tag"] = "tag"

    def build(self, known: Knowledge) -> "Tag":
        return Tag(self, known)


class GradientMatching:
    """A comparison of soft labels' gradients with the client's, for the rows of a batch."""

    def __init__(self, tail: nn.Module, known: Knowledge, seen: SeenBatch, sign: int = 1) -> None:
        assert seen.features is not None, "needed by the config"
        assert seen.gradient is not None, "needed by the config"
        features = payload(known, seen.features)
        self.features_RLD = features.detach().requires_grad_()
        self.context = known.stack.get_context(seen.smashed.tensors)
        self.logits_RLV = tail(self.features_RLD, *self.context)
        self.likely_RLV = self.logits_RLV.detach().softmax(-1)
        seen_RLD = sign * payload(known, seen.gradient)
        self.wanted_RLD = _level(seen_RLD)
        with torch.enable_grad():
            usual_RLD = self._gradient(self._draw_labels())
        sizes_RL = seen_RLD.square().mean(-1).sqrt()
        labelled_RL = sizes_RL > LABELLED * sizes_RL.amax(1, keepdim=True)
        self.usual_R11 = _size(usual_RLD, labelled_RL)
        self.scaled_RLD = seen_RLD / _size(seen_RLD, labelled_RL)

    def distances(self, soft_RLV: Tensor) -> Tensor:
        """Compute each row's distance between levelled gradients; differentiable."""
        off_RLD = _level(self._gradient(soft_RLV)) - self.wanted_RLD
        squares, absolutes = off_RLD.square().mean((1, 2)), off_RLD.abs().mean((1, 2))
        return SQUARED * squares + ABSOLUTE * absolutes

    def _loss(self, soft_RLV: Tensor) -> Tensor:
        """Compute the loss to descend: the difference from the observed gradient at usual size."""
        off_RLD = self._gradient(soft_RLV) / self.usual_R11 - self.scaled_RLD
        return SQUARED * off_RLD.square().sum() + ABSOLUTE * off_RLD.abs().sum()

    def _gradient(self, soft_RLV: Tensor) -> Tensor:
        """Compute the features' gradient of the cross-entropy with these labels."""
        # The loss's gradient at the logits is softmax - labels, up to the mean's divisor, so one
        # pass through the tail serves all labels.
        (made_RLD,) = torch.autograd.grad(
            self.logits_RLV,
            self.features_RLD,
            self.likely_RLV - soft_RLV,
            create_graph=soft_RLV.requires_grad,
            retain_graph=True,
        )
        return made_RLD

    def _draw_labels(self) -> Tensor:
        """Draw random hard labels."""
        rows, length, tokens = self.logits_RLV.shape
        drawn = torch.randint(tokens, (rows, length), generator=rng_for(0, "usual labels"))
        return one_hot(drawn, tokens).to(self.logits_RLV)

    def descend(self, labels_RLV: Tensor, how: "LabelDescent") -> None:
        """Optimize labels in place to match the observed gradient."""
        # Fused, because a step goes over rows x positions x vocabulary values.
        optimizer = AdamW([labels_RLV], lr=how.lr, eps=EPS, fused=True)
        for number in range(how.steps):
            optimizer.zero_grad()
            self._loss(labels_RLV.softmax(-1)).backward(inputs=[labels_RLV])
            optimizer.step()
            how.between(number, labels_RLV, self)


def _do_nothing(number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
    """Leave the labels unchanged."""
    del number, labels_RLV, matching


class LabelDescent(NamedTuple):
    """The settings of an optimization of labels."""

    steps: int
    lr: float
    between: Callable[[int, Tensor, GradientMatching], None] = _do_nothing
    """Called after each step with its number and the labels, which it may change in place."""


def match_gradient(
    tail: nn.Module, known: Knowledge, seen: SeenBatch, start_RLV: Tensor, how: LabelDescent
) -> tuple[Tensor, Tensor]:
    """Optimize labels until their gradient equals a batch's; return the labels and the distances.

    If the sign is unknown, both are tried, and each row keeps the sign with the smaller distance.
    """
    matches: list[tuple[Tensor, Tensor]] = []
    for sign in (1, -1) if has_unknown_sign(known, Leg.FEATURES_GRAD) else (1,):
        matching = GradientMatching(tail, known, seen, sign)
        labels = start_RLV.to(matching.logits_RLV).clone().requires_grad_()
        matching.descend(labels, how)
        with torch.no_grad():
            distances = matching.distances(labels.softmax(-1))
        matches.append((labels.detach(), distances))
    if len(matches) == 1:
        return matches[0]
    nearer = matches[0][1] <= matches[1][1]
    labels = torch.where(nearer[:, None, None], matches[0][0], matches[1][0])
    return labels, torch.minimum(matches[0][1], matches[1][1])


class Tag(TextAttack):
    """An attack that matches gradients batch by batch."""

    ahead: ClassVar[bool] = True

    def __init__(self, config: MatchingConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        # The gradient is differentiated again, which fused attention kernels cannot do.
        self.tail = use_eager_attention(known.pretrained.own("tail"))

    def recover(self, seen: SeenBatch) -> Read:
        """Match a batch's gradients from random labels, which are the text moved by one token."""
        assert seen.features is not None, "needed by the config"
        # By batch: its guesses do not depend on the batches before it.
        rng = rng_for(self.known.seed, "labels", seen.smashed.round, seen.smashed.step)
        rows, length = payload(self.known, seen.features).shape[:2]
        start = torch.randn((rows, length, self.vocabulary.size), generator=rng).softmax(-1)
        how = LabelDescent(self.config.iterations, self.config.lr, self.between)
        with torch.enable_grad():
            labels_RLV, distances_R = match_gradient(self.tail, self.known, seen, start, how)
        return Read(labels_RLV.argmax(-1), -distances_R)

    def between(self, number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
        """Change labels between two steps of descent; by default nothing is changed."""


def shift_to_tokens(labels_RL: Tensor, first: int) -> Tensor:
    """Turn next-token labels into texts, whose first token is unknown and set to `first`."""
    return torch.cat([torch.full_like(labels_RL[:, :1], first), labels_RL[:, :-1]], dim=1)


def _level(x_RLD: Tensor) -> Tensor:
    """Scale each row to a root mean square of 1."""
    size = x_RLD.square().mean((1, 2), keepdim=True).sqrt()
    return x_RLD / size.clamp_min(1e-20)


def _size(x_RLD: Tensor, labelled_RL: Tensor) -> Tensor:
    """Compute the root mean square over each text's labelled positions."""
    squares_RL = x_RLD.square().mean(-1)
    mean_R = (squares_RL * labelled_RL).sum(1) / labelled_RL.sum(1).clamp_min(1)
    return mean_R.sqrt().clamp_min(1e-20)[:, None, None]
