"""LAMP (Balunovic et al., NeurIPS 2022) for a cut model: TAG with reordered guesses.

Gradients reveal which tokens occur better than where they stand. In every `every`-th step, from the
first one on, random permutations of each text are tried (two tokens swapped, a token or a span
moved, the beginning rotated to the end; a text's ends stay). The one with the lowest sum of TAG's
loss and the language model's loss is kept, as in SplitLLM's code (Chen et al., CCS 2024).
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.tag import GradientMatching, MatchingConfig, Tag
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.seeds import numpy_rng_for


class LampConfig(MatchingConfig):
    """TAG with tokens reordered by a language model."""

    kind: Literal["lamp"] = "lamp"
    threat: ClassVar[Threat] = Threat((Sees.SMASHED, Sees.GRADIENTS), (Knows.TAIL, Knows.MODEL))
    every: int = Field(default=30, ge=1)
    """Steps between two rounds of permutations."""
    permutations: int = Field(default=100, ge=1)
    """Number of permutations that are tried in a round."""
    language: float = Field(default=0.2, ge=0)
    """Weight of the language model's loss beside that of the gradient; published: 0.2."""

    def build(self, known: Knowledge) -> "Lamp":
        return Lamp(self, known)


class Lamp(Tag):
    """TAG, which tries permutations between its steps."""

    config: LampConfig

    def __init__(self, config: LampConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.head = known.pretrained.segment("head")
        self.trunk = known.pretrained.segment("trunk")

    def between(self, number: int, labels_RLV: Tensor, matching: GradientMatching) -> None:
        """Replace each text by its best permutation, every few steps."""
        if number % self.config.every:
            return
        rows, length, _ = labels_RLV.shape
        rng = numpy_rng_for(self.known.seed, "permutations", number)
        with torch.no_grad():
            soft_RLV = labels_RLV.softmax(-1)
            best_RL = torch.arange(length, device=labels_RLV.device).expand(rows, -1).clone()
            least_R = self._score(soft_RLV, matching)
            for _ in range(self.config.permutations):
                drawn = torch.from_numpy(draw_permutations(rows, length, rng))
                order_RL = drawn.to(best_RL.device)
                score_R = self._score(_reorder(soft_RLV, order_RL), matching)
                better_R = score_R < least_R
                best_RL[better_R] = order_RL[better_R]
                least_R = torch.minimum(least_R, score_R)
            labels_RLV.copy_(_reorder(labels_RLV, best_RL))

    def _score(self, soft_RLV: Tensor, matching: GradientMatching) -> Tensor:
        """Compute each text's score: the gradient's loss plus the weighted language loss."""
        return matching.losses(soft_RLV) + self.config.language * self._surprise(
            soft_RLV, *matching.context
        )

    def _surprise(self, soft_RLV: Tensor, *context: Tensor) -> Tensor:
        """Compute each text's language loss under the pretrained model, in nats per token."""
        # Labels are a text without its first token, which a language model reads like any text.
        tokens_RL = soft_RLV.argmax(-1)
        hidden_RLD = self.trunk(self.head(tokens_RL, *context), *context)
        logits_RLV = self.tail(hidden_RLD, *context)
        predicted, labels = logits_RLV[:, :-1].transpose(1, 2), tokens_RL[:, 1:]
        return cross_entropy(predicted, labels, reduction="none").mean(1)


ENDS = 2
"""Number of labels at a text's end that stay: that of the last token, and the place after it."""


def draw_permutations(rows: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a permutation of a random kind for each text, which leaves the text's ends in place.

    The first token is no label, so only the end needs care.
    """
    inner = max(1, length - ENDS)
    drawn = [_KINDS[rng.integers(len(_KINDS))](inner, rng) for _ in range(rows)]
    return np.stack([np.concatenate([order, np.arange(inner, length)]) for order in drawn])


def _swap_tokens(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order with two tokens swapped."""
    order = np.arange(length)
    one, other = rng.integers(length, size=2)
    order[[one, other]] = order[[other, one]]
    return order


def _move_token(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order with one token moved."""
    place, to = rng.integers(length, size=2)
    return np.insert(np.delete(np.arange(length), place), min(to, length - 1), place)


def _move_span(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order with a span of tokens moved."""
    start, end = np.sort(rng.integers(length + 1, size=2))
    span, rest = np.arange(start, end), np.delete(np.arange(length), slice(start, end))
    return np.insert(rest, rng.integers(len(rest) + 1), span)


def _rotate(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order with the beginning rotated to the end."""
    return np.roll(np.arange(length), -int(rng.integers(length)))


_KINDS = (_swap_tokens, _move_token, _move_span, _rotate)


def _reorder(x_RLV: Tensor, order_RL: Tensor) -> Tensor:
    """Put each text's positions in the given order."""
    return x_RLV.gather(1, order_RL[..., None].expand_as(x_RLV))
