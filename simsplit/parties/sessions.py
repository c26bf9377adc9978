"""One side's caches of a session, in which texts go on token by token and each token crosses once.

The first pass brings the prompts, padded on the left to one length, and a mask of the real tokens
if there is padding. Each later pass brings one token of each text that goes on; if texts have ended
since the last pass, it also brings the rows that are left. Each side has a cache for each of its
segments. A session tells neither side anything that whole texts would not.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.legs import ClientId

if TYPE_CHECKING:
    from transformers import Cache

Tensors = tuple[Tensor, ...]


class Session:
    """One side's caches for texts that go on together."""

    def __init__(self) -> None:
        self.rows = 0
        self.seen = 0
        """Tokens of each text so far, padding included."""
        self.news: Tensors = ()
        """Tensors beside the payload in this pass: a mask, or the rows that are left."""
        self.mask: Tensor | None = None
        """Which of all tokens so far are real; None if all are."""
        self._pasts: dict[str, Cache] = {}
        self._width: torch.Size | None = None
        """Shape of a token's part of the payload."""

    def extend(self, sent: Tensor, news: Tensors) -> None:
        """Take in a pass; `sent` has a row for each text and a column for each token."""
        rows, tokens = sent.shape[:2]
        self.news = news
        if not self.seen:
            self.rows, self.mask = rows, news[0] if news else None
        elif news:
            self._keep(news[0])
        if rows != self.rows:
            raise ProtocolError(f"a session of {self.rows} texts was sent {rows}")
        self._width = sent.shape[2:] if self._width is None else self._width
        if sent.shape[2:] != self._width:
            raise ProtocolError(
                f"a session of tokens of shape {tuple(self._width)} was sent some of "
                f"{tuple(sent.shape[2:])}: its cache is another model's"
            )
        if self.seen and self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(rows, tokens)], 1)
        self.seen += tokens

    def beside(self, segment: str, x: Tensor) -> tuple[object, ...]:
        """Return a segment's inputs beside `x`; a tail also learns to read the last token alone."""
        past = self.get_cache(segment)
        mask = self.mask
        if mask is None and past.get_seq_length() + x.shape[1] < self.seen:
            # The cache of a segment without layers is empty, and has no positions of tokens.
            mask = torch.ones(self.rows, self.seen, dtype=torch.bool, device=x.device)
        return (mask, past, True) if segment == "tail" else (mask, past)

    def get_cache(self, segment: str) -> "Cache":
        """Return the cache of a segment, or of a method's part, by name."""
        if segment not in self._pasts:
            from transformers import DynamicCache

            self._pasts[segment] = DynamicCache()
        return self._pasts[segment]

    def _keep(self, rows: Tensor) -> None:
        """Keep these texts, and forget the ones that have ended."""
        self.rows = len(rows)
        if self.mask is not None:
            self.mask = self.mask[rows]
        for past in self._pasts.values():
            if past.is_initialized:  # never true of a segment without layers
                past.batch_select_indices(rows)


class Sessions:
    """The open sessions of one side, by client and number."""

    def __init__(self) -> None:
        self._open: dict[tuple[ClientId, int], Session] = {}

    def at(self, client: ClientId, number: int, position: int) -> Session:
        """Return a session that stands at `position`; open it at 0."""
        session = self._open.get((client, number))
        if position == 0 and session is None:
            session = self._open[client, number] = Session()
        if session is None:
            raise ProtocolError(f"session {number} of client {client} is over, or never began")
        if session.seen != position:
            raise ProtocolError(
                f"session {number} of client {client} has come to token {session.seen}, and cannot "
                f"go on at {position}"
            )
        return session

    def close(self, client: ClientId, number: int) -> None:
        """Forget a session, if it is open."""
        self._open.pop((client, number), None)

    def clear(self) -> None:
        """Forget all sessions: their caches were computed with weights that have changed."""
        self._open.clear()
