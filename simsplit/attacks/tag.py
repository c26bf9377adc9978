"""TAG (Deng et al., EMNLP Findings 2021), for a cut model: which tokens would have that gradient?

A client answers features with their gradient. Through the pretrained tail soft labels are sought
whose gradient at the same features is the same, by .85 times the squared and .15 times the absolute
difference. A label is the token that comes next, so labels are the text, moved by one place; tokens
that nothing is learned of leave no trace but through attention. As in SplitLLM's code (Chen et al.,
CCS 2024) differences are summed, labels start from the softmax of normal draws, and AdamW has an
epsilon of 1e-6 and a decay of .01.

Ours: a gradient's size is not known, for neither the mean's divisor nor a defence's factor is. The
one that was seen is brought to the size that gradients of hard labels have, drawn at random; those
of the labels sought are taken as they are (to level these too is to lose most of the slope: uniform
labels have hardly a gradient). Distances by which guesses are compared are of levelled gradients.
Where messages are mixed both signs are tried. All texts are sought at once, since none depends on
another.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import AdamW

from simsplit.attacks.base import TextAttackConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, TextAttack, has_unknown_sign, payload
from simsplit.models.transformer import eager
from simsplit.packets import Leg
from simsplit.seeds import rng_for

SQUARED, ABSOLUTE = 0.85, 0.15
EPS = 1e-6
"""AdamW's, as published."""
TOLD = 0.1
"""Share of the largest gradient above which a token's gradient is one of its label."""


class MatchingConfig(TextAttackConfig):
    """Options of attacks that match gradients."""

    iterations: int = Field(default=300, ge=1)
    """Optimization steps on the soft labels."""
    lr: float = Field(default=0.09, gt=0)
    """AdamW's learning rate."""
    gradients: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    public: ClassVar[bool] = False


class TagConfig(MatchingConfig):
    """Optimizes soft labels until their gradient through the pretrained tail is the client's."""

    kind: Literal["tag"] = "tag"

    def build(self, known: Knowledge) -> "Tag":
        return Tag(self, known)


class GradientMatching:
    """Soft labels for a batch's rows, and the distance of their gradients from the client's."""

    def __init__(self, tail: nn.Module, known: Knowledge, seen: SeenBatch, sign: int = 1) -> None:
        assert seen.features is not None, "what the config asks for"
        assert seen.gradient is not None, "what the config asks for"
        features = payload(known, seen.features)
        self.features_RLD = features.detach().requires_grad_()
        self.context = known.stack.context(seen.smashed.tensors)
        self.logits_RLV = tail(self.features_RLD, *self.context)
        self.likely_RLV = self.logits_RLV.detach().softmax(-1)
        seen_RLD = sign * payload(known, seen.gradient)
        self.wanted_RLD = _levelled(seen_RLD)
        with torch.enable_grad():
            usual_RLD = self._gradient(self._random_labels())
        sizes_RL = seen_RLD.square().mean(-1).sqrt()
        told_RL = sizes_RL > TOLD * sizes_RL.amax(1, keepdim=True)
        self.usual_R11 = _size(usual_RLD, told_RL)
        self.sought_RLD = seen_RLD / _size(seen_RLD, told_RL)

    def distances(self, soft_RLV: Tensor) -> Tensor:
        """For each row, how far these labels' gradient is off but for size; differentiable."""
        off_RLD = _levelled(self._gradient(soft_RLV)) - self.wanted_RLD
        squares, absolutes = off_RLD.square().mean((1, 2)), off_RLD.abs().mean((1, 2))
        return SQUARED * squares + ABSOLUTE * absolutes

    def _loss(self, soft_RLV: Tensor) -> Tensor:
        """What is descended: the difference from a gradient of the usual size."""
        off_RLD = self._gradient(soft_RLV) / self.usual_R11 - self.sought_RLD
        return SQUARED * off_RLD.square().sum() + ABSOLUTE * off_RLD.abs().sum()

    def _gradient(self, soft_RLV: Tensor) -> Tensor:
        (made_RLD,) = torch.autograd.grad(
            self.logits_RLV,
            self.features_RLD,
            self.likely_RLV - soft_RLV,
            create_graph=soft_RLV.requires_grad,
            retain_graph=True,
        )
        return made_RLD

    def _random_labels(self) -> Tensor:
        rows, length, words = self.logits_RLV.shape
        drawn = torch.randint(words, (rows, length), generator=rng_for(0, "usual labels"))
        return one_hot(drawn, words).to(self.logits_RLV)

    def descend(self, labels_RLV: Tensor, how: "LabelDescent") -> None:
        """Optimize labels in place to match the gradient that was seen."""
        optimizer = AdamW([labels_RLV], lr=how.lr, eps=EPS, fused=True)
        for number in range(how.steps):
            optimizer.zero_grad()
            self._loss(labels_RLV.softmax(-1)).backward(inputs=[labels_RLV])
            optimizer.step()
            how.between(number, labels_RLV, self)


def _nothing(number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
    del number, labels_RLV, matching


class LabelDescent(NamedTuple):
    """How labels are optimized."""

    steps: int
    lr: float
    between: Callable[[int, Tensor, GradientMatching], None] = _nothing
    """Called after each step."""


def best_match(
    tail: nn.Module, known: Knowledge, seen: SeenBatch, start_RLV: Tensor, how: LabelDescent
) -> tuple[Tensor, Tensor]:
    """Labels whose gradient is a batch's, and their distances; of the sign that comes nearer."""
    found: list[tuple[Tensor, Tensor]] = []
    for sign in (1, -1) if has_unknown_sign(known, Leg.FEATURES_GRAD) else (1,):
        matching = GradientMatching(tail, known, seen, sign)
        labels = start_RLV.to(matching.logits_RLV).clone().requires_grad_()
        matching.descend(labels, how)
        with torch.no_grad():
            distances = matching.distances(labels.softmax(-1))
        found.append((labels.detach(), distances))
    if len(found) == 1:
        return found[0]
    nearer = found[0][1] <= found[1][1]
    labels = torch.where(nearer[:, None, None], found[0][0], found[1][0])
    return labels, torch.minimum(found[0][1], found[1][1])


class Tag(TextAttack):
    """Gradient matching, batch by batch."""

    ahead: ClassVar[bool] = True

    def __init__(self, config: MatchingConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        self.tail = eager(known.pretrained.own("tail"))

    def recover(self, seen: SeenBatch) -> Read:
        """Match gradients from random labels, which are the text moved by one token."""
        assert seen.features is not None, "what the config asks for"
        rng = rng_for(self.known.seed, "labels", seen.smashed.round, seen.smashed.step)
        rows, length = payload(self.known, seen.features).shape[:2]
        start = torch.randn((rows, length, self.vocabulary.size), generator=rng).softmax(-1)
        how = LabelDescent(self.config.iterations, self.config.lr, self.between)
        with torch.enable_grad():
            labels_RLV, distances_R = best_match(self.tail, self.known, seen, start, how)
        return Read(labels_RLV.argmax(-1), -distances_R)

    def between(self, number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
        """A hook after each step of descent."""


def moved_on(labels_RL: Tensor, first: int) -> Tensor:
    """Texts of which these are the next tokens; the first token, which is unknown, is `first`."""
    return torch.cat([torch.full_like(labels_RL[:, :1], first), labels_RL[:, :-1]], dim=1)


def _levelled(x_RLD: Tensor) -> Tensor:
    size = x_RLD.square().mean((1, 2), keepdim=True).sqrt()
    return x_RLD / size.clamp_min(1e-20)


def _size(x_RLD: Tensor, told_RL: Tensor) -> Tensor:
    """The root mean square of a text's told tokens."""
    squares_RL = x_RLD.square().mean(-1)
    mean_R = (squares_RL * told_RL).sum(1) / told_RL.sum(1).clamp_min(1)
    return mean_R.sqrt().clamp_min(1e-20)[:, None, None]
