"""TAG (Deng et al., EMNLP Findings 2021), for a cut model: which tokens would have that gradient?

A client answers features with their gradient. Through the pretrained tail soft labels are sought
whose gradient at the same features is the same, by .85 times the squared and .15 times the absolute
difference. A label is the token that comes next, so labels are the text, moved by one place; tokens
that nothing is learned of leave no trace but through attention. Ours: gradients are compared after
each text's is scaled to a root mean square of 1, for neither the mean's divisor nor a defence's
factor is known; and all texts are sought at once, since none depends on another.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW

from simsplit.attacks.base import Knowledge
from simsplit.attacks.texts import Seen, TextAttack, TextAttackConfig, payload
from simsplit.models.transformer import eager
from simsplit.seeds import rng_for

SQUARED, ABSOLUTE = 0.85, 0.15


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


class Matching:
    """Soft labels for a batch's rows, and the distance of their gradients from the client's."""

    def __init__(self, tail: nn.Module, known: Knowledge, seen: Seen) -> None:
        assert seen.features is not None, "what the config asks for"
        assert seen.gradient is not None, "what the config asks for"
        features = payload(known, seen.features)
        self.features_RLD = features.detach().requires_grad_()
        self.context = known.stack.context(seen.smashed.tensors)
        self.logits_RLV = tail(self.features_RLD, *self.context)
        self.likely_RLV = self.logits_RLV.detach().softmax(-1)
        self.wanted_RLD = _levelled(payload(known, seen.gradient))

    def distances(self, soft_RLV: Tensor) -> Tensor:
        """For each row, the distance of these labels' gradient; differentiable."""
        (made_RLD,) = torch.autograd.grad(
            self.logits_RLV,
            self.features_RLD,
            self.likely_RLV - soft_RLV,
            create_graph=torch.is_grad_enabled(),
            retain_graph=True,
        )
        off_RLD = _levelled(made_RLD) - self.wanted_RLD
        squares, absolutes = off_RLD.square().mean((1, 2)), off_RLD.abs().mean((1, 2))
        return SQUARED * squares + ABSOLUTE * absolutes

    def descend(
        self,
        labels_RLV: Tensor,
        steps: int,
        lr: float,
        between: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Optimize labels in place to match the gradient that was seen."""
        optimizer = AdamW([labels_RLV], lr=lr, fused=True)
        for number in range(steps):
            optimizer.zero_grad()
            self.distances(labels_RLV.softmax(-1)).sum().backward(inputs=[labels_RLV])
            optimizer.step()
            between(number)


class Tag(TextAttack):
    """Gradient matching, batch by batch."""

    def __init__(self, config: MatchingConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        self.tail = eager(known.pretrained("tail")).eval().requires_grad_(requires_grad=False)

    def recover(self, seen: Seen) -> Tensor:
        """Match gradients from random labels."""
        with torch.enable_grad():
            matching = Matching(self.tail, self.known, seen)
            rng = rng_for(self.known.seed, "labels", seen.smashed.round, seen.smashed.step)
            start = torch.randn(matching.logits_RLV.shape, generator=rng)
            labels = start.to(matching.logits_RLV).requires_grad_()
            matching.descend(
                labels,
                self.config.iterations,
                self.config.lr,
                lambda number: self.between(number, labels, matching),
            )
        return self.tokens(labels)

    def between(self, number: int, labels_RLV: Tensor, matching: Matching) -> None:
        """A hook after each step of descent."""

    def tokens(self, labels_RLV: Tensor) -> Tensor:
        """The text that these labels are the next tokens of."""
        return moved_on(labels_RLV.detach().argmax(-1), self.vocabulary.pad)


def moved_on(labels_RL: Tensor, first: int) -> Tensor:
    """Texts of which these are the next tokens; the first token, which is unknown, is `first`."""
    return torch.cat([torch.full_like(labels_RL[:, :1], first), labels_RL[:, :-1]], dim=1)


def _levelled(x_RLD: Tensor) -> Tensor:
    size = x_RLD.square().mean((1, 2), keepdim=True).sqrt()
    return x_RLD / size.clamp_min(1e-20)
