"""A split model continues texts token by token, with a pass through the cut for each token.

In a session each token crosses once: both sides keep what they computed from it, including a
method's draw. A text that has ended is left out of later passes. Methods that cannot treat tokens
one by one (`MethodConfig.in_sessions`) send whole texts in every pass, with new draws.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.legs import ClientId
from simsplit.parties.calls import ContinueTexts, ProbeTexts
from simsplit.schedules.exchange import Exchange
from simsplit.seeds import rng_for

FIRST_STEP = 1_000_000
"""Step numbers of generation start here, so that no evaluated batch has the same draws."""


Pass = ContinueTexts | ProbeTexts
"""A call to a client, which gets the scores of the next tokens by it."""


class Sampling(Config):
    """How the next token is drawn, if it is not the likeliest one."""

    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Scores are divided by it: below 1 likely tokens become likelier."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that together have this probability are drawn from; 1: all."""


@dataclass(eq=False)
class WritingPasses(ABC):
    """A way to get the scores of the next token."""

    round: int
    texts: Sequence[Tensor]
    pad: int
    number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.indices = torch.arange(len(self.texts))

    @abstractmethod
    def begin(self) -> Pass:
        """Return the pass for the scores after each prompt."""

    @abstractmethod
    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """Return the pass for the scores after one more token; `left` masks unfinished texts."""


@dataclass(frozen=True)
class Pen:
    """The rules by which texts are written, without the exchange that gives the scores."""

    seed: int
    end: int
    """The token that ends a text; it does not belong to the text."""
    pad: int
    positions: int
    """The number of tokens that the model can read."""
    sampling: Sampling | None = None
    """How tokens are drawn; None: always the likeliest token."""
    in_sessions: Callable[[str], bool] = lambda _: True
    """A function that returns whether a control (empty: none) is evaluated in sessions."""

    def iterate_passes(
        self,
        client: ClientId,
        prompts: Sequence[Tensor],
        tokens: int,
        round_number: int,
        session: int | None,
    ) -> Generator[Pass, Tensor, list[list[int]]]:
        """Yield pass after pass, receive the scores of each, and return the written texts.

        Without a session, every pass has whole texts.
        """
        refuse_unreadable(prompts, self.positions)
        # The last token needs no position, because it is not read again.
        limits = torch.tensor([min(tokens, self.positions - len(each) + 1) for each in prompts])
        draws = self._draw(client, len(prompts), tokens, round_number)
        texts: list[list[int]] = [[] for _ in prompts]
        rows = torch.arange(len(prompts))
        at = round_number, prompts, self.pad
        passes = WholeTexts(*at) if session is None else InSession(*at, session)
        scores = yield passes.begin()
        for number in range(tokens):
            chosen = choose_tokens(scores.cpu(), self.sampling, draws[rows, number])
            open_ = chosen != self.end
            for row, token in zip(rows[open_].tolist(), chosen[open_].tolist(), strict=True):
                texts[row].append(token)
            left = open_ & (limits[rows] > number + 1)
            if not left.any():
                break
            rows = rows[left]
            scores = yield passes.go_on(chosen[left], left)
        return texts

    def _draw(self, client: ClientId, texts: int, tokens: int, round_number: int) -> Tensor:
        """Draw a number for each token of each text; zeros without sampling."""
        if self.sampling is None:
            return torch.zeros(texts, tokens)
        streams = (rng_for(self.seed, "write", client, round_number, n) for n in range(texts))
        return torch.stack([torch.rand(tokens, generator=s, dtype=torch.float64) for s in streams])


@dataclass(frozen=True)
class Writer(Pen):
    """A pen that has clients' models continue texts through the exchange."""

    exchange: Exchange = field(kw_only=True)

    def write(
        self, client: ClientId, prompts: Sequence[Tensor], tokens: int, round_number: int = 0
    ) -> list[list[int]]:
        """Return what a client's model writes after each prompt, at most `tokens` tokens each."""
        sessions = self.in_sessions(self.exchange.reading)
        with self.exchange.open_session(client) if sessions else nullcontext() as session:
            passes = self.iterate_passes(client, prompts, tokens, round_number, session)
            following = next(passes)
            while True:
                scores = self.exchange.predict(client, following)
                try:
                    following = passes.send(scores)
                except StopIteration as over:
                    written: list[list[int]] = over.value
                    return written


def refuse_unreadable(prompts: Sequence[Tensor], positions: int) -> None:
    """Raise SimsplitError if there is no prompt, or if one is empty or too long for the model."""
    if not prompts:
        raise SimsplitError("there is no prompt to go on with")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise SimsplitError(f"prompt {number} is empty; give it a token or more to go on with")
        if len(prompt) > positions:
            raise SimsplitError(
                f"prompt {number} has {len(prompt)} tokens; the model reads {positions} at most"
            )


@dataclass(eq=False)
class InSession(WritingPasses):
    """The passes of a session: each token crosses once, and both sides keep their results."""

    session: int
    position: int = field(default=0, init=False)

    def begin(self) -> Pass:
        """Return the pass with the prompts, padded on the left, with a mask if lengths differ."""
        lengths = torch.tensor([len(prompt) for prompt in self.texts])
        longest = int(lengths.max())
        mask = torch.arange(longest) >= longest - lengths[:, None]
        inputs = torch.full(mask.shape, self.pad).masked_scatter(mask, torch.cat([*self.texts]))
        return self._make_pass(inputs, None if mask.all() else mask, None)

    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """Return the pass with one more token of each unfinished text."""
        self.indices = self.indices[left]
        return self._make_pass(tokens[:, None], None, None if left.all() else left.nonzero()[:, 0])

    def _make_pass(self, inputs: Tensor, mask: Tensor | None, left: Tensor | None) -> Pass:
        batch = Batch(inputs, torch.full_like(inputs, IGNORED), self.indices, mask)
        at, step = (self.session, self.position), (self.round, FIRST_STEP + self.number)
        following = ContinueTexts(*at, batch, *step, left)
        self.position += inputs.shape[1]
        self.number += 1
        return following


class WholeTexts(WritingPasses):
    """Passes without a session: every pass has the whole texts, padded on the right."""

    def begin(self) -> Pass:
        """Return the pass with all texts so far."""
        lengths = torch.tensor([len(text) for text in self.texts])
        places = torch.arange(int(lengths.max()))
        real = places < lengths[:, None]
        inputs = torch.full(real.shape, self.pad).masked_scatter(real, torch.cat([*self.texts]))
        labels = torch.full(real.shape, IGNORED)
        # Scores are computed where a label is not ignored; which label it is does not matter.
        labels[places == lengths[:, None] - 1] = 0
        batch = Batch(inputs, labels, self.indices)
        probe = ProbeTexts(batch, self.round, FIRST_STEP + self.number)
        self.number += 1
        return probe

    def go_on(self, tokens: Tensor, left: Tensor) -> Pass:
        """Return the pass with the unfinished texts, each longer by a token."""
        self.indices = self.indices[left]
        kept = [self.texts[row] for row in left.nonzero()[:, 0].tolist()]
        longer = zip(kept, tokens, strict=True)
        self.texts = [torch.cat([text, token[None]]) for text, token in longer]
        return self.begin()


def choose_tokens(logits_BV: Tensor, sampling: Sampling | None, draws_B: Tensor) -> Tensor:
    """Return the next token of each text: by its draw, or the likeliest without `sampling`."""
    if not torch.isfinite(logits_BV).all():
        raise RunFailedError(
            "the model's scores for the next token are no numbers (NaN, or infinite), so none can "
            "be chosen; has training diverged? a lower train.client.lr and train.server.lr, or "
            "train.clip_norm, may help"
        )
    if sampling is None:
        return logits_BV.argmax(-1)
    return draw_tokens(warp_scores(logits_BV, sampling), draws_B)


def warp_scores(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the scores at the temperature, with minus infinity for tokens outside `top_p`."""
    scores_BV = logits_BV / sampling.temperature
    if sampling.top_p == 1.0:
        return scores_BV
    rising_BV, order_BV = scores_BV.sort(-1)
    below_BV = rising_BV.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
    below_BV[:, -1] = False  # the likeliest token always stays
    return scores_BV.masked_fill(below_BV.scatter(1, order_BV, below_BV), -torch.inf)


def draw_tokens(scores_BV: Tensor, draws_B: Tensor) -> Tensor:
    """Return the first token at which the cumulative probability exceeds a text's draw."""
    sums_BV = scores_BV.double().softmax(-1).cumsum(-1)
    aims_B1 = draws_B.to(sums_BV)[:, None] * sums_BV[:, -1:]
    return torch.searchsorted(sums_BV, aims_B1, right=True)[:, 0]
