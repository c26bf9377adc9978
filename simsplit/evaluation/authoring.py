"""Texts that a client writes and scores by itself: others have a part in the passes alone.

What it writes next depends on its outputs, so it is the client that says which pass comes next, and
when all is written. The server sees what crosses at the cut, as in any pass.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.errors import ProtocolError
from simsplit.evaluation.generation import GENERATION_METRICS, prompts_and_answers
from simsplit.evaluation.writing import Pass, Pen
from simsplit.models.tokens import Reader
from simsplit.packets import Packets
from simsplit.parties.client import Client


class Author:
    """Has a client write the first texts of a split, and keeps them until they are scored."""

    def __init__(
        self,
        client: Client,
        pen: Pen,
        reader: Reader,
        splits: Mapping[str, Samples],
        metrics: Sequence[str],
        *,
        texts: int,
        tokens: int,
    ) -> None:
        self.client, self.pen, self.reader, self.splits = client, pen, reader, splits
        self.metrics = [name for name in metrics if name in GENERATION_METRICS]
        self.texts, self.tokens = texts, tokens
        self._passes: Generator[Pass, Tensor, list[list[int]]] | None = None
        self._session: int | None = None
        self._reading = ""
        self._meant: list[str] = []
        self._said: list[str] | None = None

    def begin(self, split: str, round_number: int, session: int, reading: str) -> Packets:
        """The first pass over the prompts of a split."""
        samples = self.splits[split]
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, self._meant = prompts_and_answers(self.reader, chosen)
        self._session = session if self.pen.in_sessions(reading) else None
        self._reading, self._said = reading, None
        at = self.client.number, prompts, self.tokens, round_number
        self._passes = self.pen.passes(*at, self._session)
        return self._asked(next(self._passes))

    def go_on(self, packets: Packets) -> Packets:
        """The next pass, after what the model made of the last one."""
        if self._passes is None:
            raise ProtocolError(f"client {self.client.number} writes nothing now")
        try:
            asked = self._passes.send(self.client.examination.predict(packets))
        except StopIteration as over:
            self._said = [self.reader.decode(text).strip() for text in over.value]
            self._passes = None
            if self._session is not None:
                self.client.examination.close(self._session)
            return ()
        return self._asked(asked)

    def figures(self) -> dict[str, float]:
        """Those of what was written, which is then forgotten."""
        said, self._said = self._said, None
        if said is None:
            return {}
        return {name: GENERATION_METRICS[name](said, self._meant) for name in self.metrics}

    def _asked(self, asked: Pass) -> Packets:
        return replace(asked, reading=self._reading).on(self.client)
