"""The model as it was before training, shared by all attacks of a run."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from simsplit.models.encoders import EncoderHead
from simsplit.models.fresh import Owner
from simsplit.models.transformer import Head


class Pretrained:
    """The pretrained model's frozen segments and token embeddings.

    If the clients' initial weights are not public, `make` returns other weights of the same shape.
    """

    def __init__(self, make: Callable[[Owner], nn.Module], vocabulary: int) -> None:
        self._make, self._vocabulary = make, vocabulary
        self._segments: dict[Owner, nn.Module] = {}
        self.usual_levels: dict[int, Tensor] = {}
        """A cache: the level of the features of texts, by their length (see `gradient_view`).

        Measuring one takes a pass through the trunk, as long as a step of an attack on a batch.
        """

    def segment(self, owner: Owner) -> nn.Module:
        """Return a segment that all attacks share, so it must not be changed."""
        if owner not in self._segments:
            self._segments[owner] = self.own(owner)
        return self._segments[owner]

    def own(self, owner: Owner) -> nn.Module:
        """Build a frozen segment for one attack, which may change how it computes."""
        return self._make(owner).eval().requires_grad_(requires_grad=False)

    @cached_property
    def embeddings(self) -> Tensor:
        """The embeddings of all tokens, V x D, shared by all attacks."""
        head = self.segment("head")
        assert isinstance(head, Head | EncoderHead), "language models have no other heads"
        device = next(head.parameters()).device
        with torch.no_grad():
            embedded: Tensor = head.tokens(torch.arange(self._vocabulary, device=device))
        return embedded
