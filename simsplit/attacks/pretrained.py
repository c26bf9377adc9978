"""A model as it was before training, made once for all attacks of a run: they only read it."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from simsplit.models.encoders import EncoderHead
from simsplit.models.fresh import Owner
from simsplit.models.transformer import Head


class Pretrained:
    """Its segments and its tokens' embeddings; nothing of it learns.

    Where clients' own start is not public, `make` gives other weights of the same kind.
    """

    def __init__(self, make: Callable[[Owner], nn.Module], vocabulary: int) -> None:
        self._make, self._vocabulary = make, vocabulary
        self._segments: dict[Owner, nn.Module] = {}

    def segment(self, owner: Owner) -> nn.Module:
        """A segment, the same one for all attacks."""
        if owner not in self._segments:
            self._segments[owner] = self.own(owner)
        return self._segments[owner]

    def own(self, owner: Owner) -> nn.Module:
        """A segment for one attack alone, which may change how it computes."""
        return self._make(owner).eval().requires_grad_(requires_grad=False)

    @cached_property
    def embeddings(self) -> Tensor:
        """Of every token, V x D, the same ones for all attacks."""
        head = self.segment("head")
        assert isinstance(head, Head | EncoderHead), "what language models begin with"
        device = next(head.parameters()).device
        with torch.no_grad():
            found: Tensor = head.tokens(torch.arange(self._vocabulary, device=device))
        return found
