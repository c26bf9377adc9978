"""What one side keeps of a session: texts go on token by token, and each token crosses once.

The first pass brings the prompts, padded on the left to one length, and where padding there is the
mask of what is real. Every later pass brings one token of each text that goes on; where a text has
ended since the pass before, it brings along which rows are left. So each side has a cache of its
own for each of its segments, and neither is told anything that it would not see anyway.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.packets import ClientId

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
        """What crosses beside the payload in this pass: a mask, or the rows that are left."""
        self.mask: Tensor | None = None
        """Of all tokens so far, which are real; None if all are."""
        self._pasts: dict[str, Cache] = {}
        self._width: torch.Size | None = None
        """Shape of what is sent of a token."""

    def extend(self, sent: Tensor, news: Tensors) -> None:
        """Take in a pass, of which `sent` has a row for each text and a column for each token."""
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
        """What a segment is given beside `x`; a tail is to read the last token alone."""
        past = self.past(segment)
        mask = self.mask
        if mask is None and past.get_seq_length() + x.shape[1] < self.seen:
            # a segment without layers: its cache is empty, and cannot say where the tokens stand
            mask = torch.ones(self.rows, self.seen, dtype=torch.bool, device=x.device)
        return (mask, past, True) if segment == "tail" else (mask, past)

    def past(self, segment: str) -> "Cache":
        """The cache of a segment, or of a method's part by a name of its own."""
        if segment not in self._pasts:
            from transformers import DynamicCache

            self._pasts[segment] = DynamicCache()
        return self._pasts[segment]

    def _keep(self, rows: Tensor) -> None:
        """Forget the texts that have ended."""
        self.rows = len(rows)
        if self.mask is not None:
            self.mask = self.mask[rows]
        for past in self._pasts.values():
            if past.is_initialized:  # that of a segment without layers never is
                past.batch_select_indices(rows)


class Sessions:
    """The open sessions of one side, by client and number."""

    def __init__(self) -> None:
        self._open: dict[tuple[ClientId, int], Session] = {}

    def at(self, client: ClientId, number: int, position: int) -> Session:
        """A session that has come to `position`; at 0 it opens."""
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
        """Forget all: other weights have no use for what these computed."""
        self._open.clear()
