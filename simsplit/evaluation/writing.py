"""Texts that a split model goes on with, pass by pass through the cut and back.

In a session each token crosses once: both sides keep what they computed of it, and a method's draw
for it is kept with that. A text that has ended is left out from then on. Methods that cannot treat
tokens one by one (`MethodConfig.in_sessions`) are sent whole texts in every pass, drawn for anew.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import SimsplitError
from simsplit.evaluation.sampling import Sampling, chosen
from simsplit.packets import ClientId
from simsplit.parties.calls import ContinueTexts, ProbeTexts
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import rng_for

FIRST_STEP = 1_000_000
"""Step numbers of generation start here, so that no evaluated batch has the same draws."""


Pass = ContinueTexts | ProbeTexts
"""What a client is asked, who then has the scores of the next tokens."""


class Passes(Protocol):
    """Ways to get the scores of the next token."""

    def begin(self) -> Pass:
        """For the scores that follow each prompt."""

    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """For those that follow one more token; `left` is a mask of the texts that go on."""


@dataclass(frozen=True)
class Pen:
    """How texts are written, whoever it is that asks for the scores."""

    seed: int
    end: int
    """The token that ends a text; it is no part of what is written."""
    pad: int
    positions: int
    """How many tokens the model can read."""
    sampling: Sampling | None = None
    """Null: always the likeliest token."""
    in_sessions: Callable[[str], bool] = lambda _: True
    """Whether a control (empty: the run as it is) is evaluated in sessions."""

    def passes(
        self,
        client: ClientId,
        prompts: Sequence[Tensor],
        tokens: int,
        round_number: int,
        session: int | None,
    ) -> Generator[Pass, Tensor, list[list[int]]]:
        """Asks for pass after pass, and is sent the scores of each; at last what was written.

        Without a session, whole texts are sent in each.
        """
        refuse_unreadable(prompts, self.positions)
        # the last token needs no position, for it is not read again
        limits = torch.tensor([min(tokens, self.positions - len(each) + 1) for each in prompts])
        draws = self._draws(client, len(prompts), tokens, round_number)
        texts: list[list[int]] = [[] for _ in prompts]
        rows = torch.arange(len(prompts))
        at = client, round_number, prompts, self.pad
        passes: Passes = WholeTexts(*at) if session is None else InSession(*at, session=session)
        scores = yield passes.begin()
        for number in range(tokens):
            found = chosen(scores.cpu(), self.sampling, draws[rows, number])
            said = found != self.end
            for row, token in zip(rows[said].tolist(), found[said].tolist(), strict=True):
                texts[row].append(token)
            left = said & (limits[rows] > number + 1)
            if not left.any():
                break
            rows = rows[left]
            scores = yield passes.go_on(found[left], left)
        return texts

    def _draws(self, client: ClientId, texts: int, tokens: int, round_number: int) -> Tensor:
        """A number for each token of each text; zeros where none is drawn."""
        if self.sampling is None:
            return torch.zeros(texts, tokens)
        streams = (rng_for(self.seed, "write", client, round_number, n) for n in range(texts))
        return torch.stack([torch.rand(tokens, generator=s, dtype=torch.float64) for s in streams])


@dataclass(frozen=True)
class Writer(Pen):
    """Has clients' models go on with texts."""

    exchange: Exchange = field(kw_only=True)

    def write(
        self, client: ClientId, prompts: Sequence[Tensor], tokens: int, round_number: int = 0
    ) -> list[list[int]]:
        """What a client's model writes after each prompt: so many tokens at most."""
        with self._session(client) as session:
            passes = self.passes(client, prompts, tokens, round_number, session)
            asked = next(passes)
            while True:
                scores = self.exchange.predict(client, asked)
                try:
                    asked = passes.send(scores)
                except StopIteration as over:
                    written: list[list[int]] = over.value
                    return written

    def _session(self, client: ClientId) -> AbstractContextManager[int | None]:
        if self.in_sessions(self.exchange.reading):
            return self.exchange.open_session(client)
        return nullcontext()


def refuse_unreadable(prompts: Sequence[Tensor], positions: int) -> None:
    """SimsplitError for prompts that no model, or not this one, can go on with."""
    if not prompts:
        raise SimsplitError("there is no prompt to go on with")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise SimsplitError(f"prompt {number} is empty; give it a token or more to go on with")
        if len(prompt) > positions:
            raise SimsplitError(
                f"prompt {number} has {len(prompt)} tokens; the model reads {positions} at most"
            )


class InSession:
    """Each token once, as both sides keep what they computed of it."""

    def __init__(
        self,
        client: ClientId,
        round_number: int,
        prompts: Sequence[Tensor],
        pad: int,
        *,
        session: int,
    ) -> None:
        self.client, self.round = client, round_number
        self.prompts, self.pad, self.session = prompts, pad, session
        self.indices = torch.arange(len(prompts))
        self.position = self.number = 0

    def begin(self) -> Pass:
        """The prompts, padded on the left; their mask goes along where lengths differ."""
        lengths = torch.tensor([len(prompt) for prompt in self.prompts])
        longest = int(lengths.max())
        mask = torch.arange(longest) >= longest - lengths[:, None]
        inputs = torch.full(mask.shape, self.pad).masked_scatter(mask, torch.cat([*self.prompts]))
        return self._pass(inputs, None if mask.all() else mask, None)

    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """One more token of each text; the others are told to be over once."""
        self.indices = self.indices[left]
        return self._pass(tokens[:, None], None, None if left.all() else left.nonzero()[:, 0])

    def _pass(self, inputs: Tensor, mask: Tensor | None, left: Tensor | None) -> Pass:
        batch = Batch(inputs, torch.full_like(inputs, IGNORED), self.indices, mask)
        at, step = (self.session, self.position), (self.round, FIRST_STEP + self.number)
        asked = ContinueTexts(*at, batch, *step, left)
        self.position += inputs.shape[1]
        self.number += 1
        return asked


class WholeTexts:
    """All of each text again in every pass, padded on the right."""

    def __init__(
        self,
        client: ClientId,
        round_number: int,
        prompts: Sequence[Tensor],
        pad: int,
    ) -> None:
        self.client, self.round = client, round_number
        self.texts, self.pad = list(prompts), pad
        self.indices = torch.arange(len(prompts))
        self.number = 0

    def begin(self) -> Pass:
        """For the scores after each text as it is now, in a pass that sends all of it."""
        lengths = torch.tensor([len(text) for text in self.texts])
        places = torch.arange(int(lengths.max()))
        real = places < lengths[:, None]
        inputs = torch.full(real.shape, self.pad).masked_scatter(real, torch.cat(self.texts))
        asked = torch.full(real.shape, IGNORED)
        asked[places == lengths[:, None] - 1] = 0  # any label: here something is to come out
        batch = Batch(inputs, asked, self.indices)
        probe = ProbeTexts(batch, self.round, FIRST_STEP + self.number)
        self.number += 1
        return probe

    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """The texts that are left, each longer by a token."""
        self.indices = self.indices[left]
        kept = [self.texts[row] for row in left.nonzero()[:, 0].tolist()]
        longer = zip(kept, tokens, strict=True)
        self.texts = [torch.cat([text, token[None]]) for text, token in longer]
        return self.begin()
