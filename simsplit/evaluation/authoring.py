"""A client can write texts and score them by itself, so that nobody else sees them.

The next token depends on the client's outputs, so the client decides which pass comes next, and
when all texts are written. The server sees what crosses at the cut, as in every pass.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.errors import ProtocolError
from simsplit.evaluation.generation import GENERATION_METRICS, split_prompts
from simsplit.evaluation.writing import Pass, Pen
from simsplit.models.tokenizers import Reader
from simsplit.packets import Packets
from simsplit.parties.client import Client


@dataclass(eq=False)
class Author:
    """A writer of the first texts of a split for a client; it keeps them until they are scored."""

    client: Client
    pen: Pen
    reader: Reader
    splits: Mapping[str, Samples]
    metrics: Sequence[str]
    texts: int = field(kw_only=True)
    tokens: int = field(kw_only=True)
    _passes: Generator[Pass, Tensor, list[list[int]]] | None = field(default=None, init=False)
    _session: int | None = field(default=None, init=False)
    _reading: str = field(default="", init=False)
    _references: Sequence[str] = field(default=(), init=False)
    _written: list[str] | None = field(default=None, init=False)

    def begin(self, split: str, round_number: int, session: int, reading: str) -> Packets:
        """Return the packets of the first pass over the prompts of a split."""
        samples = self.splits[split]
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, self._references = split_prompts(self.reader, chosen)
        self._session = session if self.pen.in_sessions(reading) else None
        self._reading, self._written = reading, None
        at = self.client.number, prompts, self.tokens, round_number
        self._passes = self.pen.iterate_passes(*at, self._session)
        return self._send(next(self._passes))

    def go_on(self, packets: Packets) -> Packets:
        """Return the packets of the next pass, given the model's reply to the last one.

        There are none if all texts are written.
        """
        if self._passes is None:
            raise ProtocolError(f"client {self.client.number} writes nothing now")
        try:
            following = self._passes.send(self.client.examination.predict(packets))
        except StopIteration as over:
            self._written = [self.reader.decode(text).strip() for text in over.value]
            self._passes = None
            if self._session is not None:
                self.client.examination.close(self._session)
            return ()
        return self._send(following)

    def figures(self) -> dict[str, float]:
        """Return the figures of the written texts, and forget the texts."""
        written, self._written = self._written, None
        if written is None:
            return {}
        names = [name for name in self.metrics if name in GENERATION_METRICS]
        return {name: GENERATION_METRICS[name](written, self._references) for name in names}

    def _send(self, following: Pass) -> Packets:
        """Return a pass's packets from the client, under the control that is evaluated."""
        return replace(following, reading=self._reading).on(self.client)
