"""TAG (Deng et al., EMNLP Findings 2021) for a cut model: find tokens with the client's gradient.

A client answers features with their gradient. The attack optimizes soft labels until their gradient
at the same features, through the pretrained tail, equals the client's. The loss is .85 times the
squared and .15 times the absolute difference. A label is the next token, so the labels are the text
moved by one place. As in SplitLLM's code (Chen et al., CCS 2024), the gradient is the raw one of
the mean loss, so its differences are small and the absolute ones decide; differences are summed;
labels start from the softmax of normal draws; AdamW has an epsilon of 1e-6 and a decay of .01; the
last position has no label. The scale matters: at raw size, the epsilon keeps tokens that matter
little from moving as fast as the others, and few iterations are enough.

Ours: only positions whose gradient is not negligible are learned. Messages of one text are unmixed
first (see `gradient_view`; `reads: messages` takes each as a text, as MixGuard's paper does). Where
messages are mixed, the gradient's scale and sign are unknown. It is scaled to the usual size of
gradients of random labels, and the sign is the one in which the gradient has more of a label's
direction. The tail's derivative is the same at every step, so its graph is kept, and a step's
gradient is computed without building another.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW

from simsplit.attacks.attack import TextAttackConfig
from simsplit.attacks.gradient_view import GradientView, Reading, view_gradients
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.tag_linear import LabelTable
from simsplit.attacks.tail_derivative import TailDerivative, get_weight
from simsplit.attacks.text_attack import Read, SeenBatch, TextAttack
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.legs import Leg
from simsplit.models.transformer import Tail, use_eager_attention
from simsplit.seeds import rng_for

SQUARED, ABSOLUTE = 0.85, 0.15
"""Weights of the squared and the absolute difference, as published."""
EPS = 1e-6
"""AdamW's epsilon, as published."""
LABELLED = 0.01
"""Positions count as learned if their gradient exceeds this share of the text's largest one."""
SIZED = 0.1
"""The share of the text's largest gradient from which positions count for its size."""


class MatchingConfig(TextAttackConfig):
    """Base class of the fields of attacks that match gradients."""

    threat: ClassVar[Threat] = Threat((Sees.SMASHED, Sees.GRADIENTS), (Knows.TAIL,))
    iterations: int = Field(default=300, ge=1)
    """Optimization steps on the soft labels; published: 300, of which ten or twenty do most."""
    lr: float = Field(default=0.09, gt=0)
    """AdamW's learning rate."""
    reads: Reading = "unmixed"
    """What is read of a text with several messages. unmixed: features and gradient combined with
    the weights that the gradients' ratio gives. messages: each message as if it were a text. mean:
    one gradient at the mean of the messages' features."""


class TagConfig(MatchingConfig):
    """Soft labels, optimized until their gradient through the public tail equals the client's."""

    kind: Literal["tag"] = "tag"

    def build(self, known: Knowledge) -> "Tag":
        return Tag(self, known)


class GradientMatching:
    """A comparison of soft labels' gradients with the client's, for the rows of a batch."""

    def __init__(
        self, tail: nn.Module, known: Knowledge, view: GradientView, context: tuple[Tensor, ...]
    ) -> None:
        assert isinstance(tail, Tail), "language models have no other tails"
        self.context = context
        self.derivative = TailDerivative(tail, view.features, context, with_norm=True)
        self.weight_VD = get_weight(tail.reader)
        with torch.no_grad():
            likely_RLV: Tensor = tail.reader(self.derivative.states).softmax(-1)
            self.expected_RLD = likely_RLV @ self.weight_VD
            learned_RL = _exceeds(view.gradient, LABELLED)
            learned_RL[:, -1] = False  # no token follows the last one
            # All texts of a batch share the mean's divisor, and each message has all of them.
            count = learned_RL.sum().clamp_min(1) / view.messages
            self.learned_RL1 = (learned_RL / count)[..., None]
            self.wanted_RLD = view.gradient
            if is_mixed(known, Leg.FEATURES_GRAD):
                sign_R = LabelTable(tail).choose_signs(view)
                self.wanted_RLD = sign_R[:, None, None] * self._scale_to_usual(view.gradient)

    def losses(self, soft_RLV: Tensor) -> Tensor:
        """Compute each row's loss: the published distance of its raw gradient from the client's."""
        off_RLD = self._compute_gradient(soft_RLV) - self.wanted_RLD
        return SQUARED * off_RLD.square().sum((1, 2)) + ABSOLUTE * off_RLD.abs().sum((1, 2))

    def differentiate(self, labels_RLV: Tensor) -> Tensor:
        """Compute the loss's gradient at the labels, whose softmax is the soft labels."""
        soft_RLV = labels_RLV.softmax(-1)
        off_RLD = self._compute_gradient(soft_RLV) - self.wanted_RLD
        of_off_RLD = 2 * SQUARED * off_RLD + ABSOLUTE * off_RLD.sign()
        back_RLD = -self.derivative.push(of_off_RLD) * self.learned_RL1
        of_soft_RLV = back_RLD @ self.weight_VD.T
        return soft_RLV * (of_soft_RLV - (soft_RLV * of_soft_RLV).sum(-1, keepdim=True))

    def descend(
        self, start_RLV: Tensor, steps: int, lr: float, between: "Between | None" = None
    ) -> Tensor:
        """Return labels, optimized until they match the client's gradient; changes the start."""
        labels_RLV = start_RLV.to(self.weight_VD)
        # Fused, because a step goes over rows x positions x vocabulary values.
        optimizer = AdamW([labels_RLV.requires_grad_()], lr=lr, eps=EPS, fused=True)
        for number in range(steps):
            with torch.no_grad():
                labels_RLV.grad = self.differentiate(labels_RLV)
            optimizer.step()
            if between is not None:
                between(number, labels_RLV, self)
        return labels_RLV.detach()

    def _compute_gradient(self, soft_RLV: Tensor) -> Tensor:
        """Compute the features' gradient of the mean cross-entropy with these labels."""
        return self._pull(soft_RLV @ self.weight_VD)

    def _pull(self, labels_RLD: Tensor) -> Tensor:
        """Pull the difference of the expected rows of the output matrix from the labels' ones."""
        return self.derivative.pull((self.expected_RLD - labels_RLD) * self.learned_RL1)

    def _scale_to_usual(self, gradient_RLD: Tensor) -> Tensor:
        """Scale each row to the usual size of gradients of random hard labels."""
        shape, tokens = gradient_RLD.shape[:2], len(self.weight_VD)
        drawn = torch.randint(tokens, shape, generator=rng_for(0, "usual labels"))
        usual_RLD = self._pull(self.weight_VD[drawn.to(self.weight_VD.device)])
        counted_RL = _exceeds(gradient_RLD, SIZED)
        return gradient_RLD * (_size(usual_RLD, counted_RL) / _size(gradient_RLD, counted_RL))


Between = Callable[[int, Tensor, GradientMatching], None]
"""Called after each step with its number and the labels, which it may change in place."""


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
        view = view_gradients(self.known, seen, self.config.reads)
        context = self.known.stack.get_context(seen.smashed.tensors)
        # By batch: its guesses do not depend on the batches before it.
        rng = rng_for(self.known.seed, "labels", seen.smashed.round, seen.smashed.step)
        shape = (*view.features.shape[:2], self.vocabulary.size)
        start = torch.randn(shape, generator=rng).softmax(-1)
        matching = GradientMatching(self.tail, self.known, view, context)
        labels_RLV = matching.descend(start, self.config.iterations, self.config.lr, self.between)
        with torch.no_grad():
            return Read(labels_RLV.argmax(-1), -matching.losses(labels_RLV.softmax(-1)))

    def between(self, number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
        """Change labels between two steps of descent; by default nothing is changed."""


def shift_to_tokens(labels_RL: Tensor, first: int) -> Tensor:
    """Turn next-token labels into texts, whose first token is unknown and set to `first`."""
    return torch.cat([torch.full_like(labels_RL[:, :1], first), labels_RL[:, :-1]], dim=1)


def _exceeds(gradient_RLD: Tensor, share: float) -> Tensor:
    """Return the positions whose gradient exceeds a share of the text's largest one."""
    sizes_RL = gradient_RLD.square().mean(-1).sqrt()
    return sizes_RL > share * sizes_RL.amax(1, keepdim=True)


def _size(x_RLD: Tensor, counted_RL: Tensor) -> Tensor:
    """Compute the root mean square over each text's counted positions."""
    squares_RL = x_RLD.square().mean(-1)
    mean_R = (squares_RL * counted_RL).sum(1) / counted_RL.sum(1).clamp_min(1)
    return mean_R.sqrt().clamp_min(1e-20)[:, None, None]
