"""Vocabulary matching: tokens are read one after the other, each as the one whose output fits.

A causal head's output at a position depends on no later token. Whoever knows the head and the
tokens so far tries candidates for the next one, and takes the one whose output is nearest to what
was sent (Thomas et al., 2025, arXiv 2505.18332; SipIt, Nikolaou et al., 2025, arXiv 2510.15511: no
two texts have the same output). Without noise, and with the pretrained head, each text is read to
the letter: a ceiling for whatever reads smashed data.

Both papers go through the vocabulary, in an order by which the right token comes early, until one
fits. Here the tokens that an inverter finds likeliest are tried, all at once, and the nearest is
taken, so noise and a head that was trained further end no search. Outputs are compared by
direction, since methods may scale what is sent. Where the inverter's own reading fits, nothing is
tried.

An inverter knows the tokens of public texts alone. So where none of its tokens fits, the whole
vocabulary is tried, as published, as long as all tokens so far fit: then the right token fits too,
unless something was changed. After a token that fits nowhere, noise or training has changed what is
sent, a whole vocabulary at each position would be costly, and the inverter's tokens alone are
tried: their nearest is taken there as well. `candidates: null` tries all tokens everywhere. A head
without layers (`model.head: 0`) looks at no other token, so the whole vocabulary costs little, and
its nearest token is taken wherever no candidate fits.

With `candidates: null` and without public texts there is no inverter. Tokens are ranked by the
head's outputs for each of them alone, which a table of embeddings is enough for.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from simsplit.attacks.inverters import NOTHING, Inverter, InverterConfig, divide_by_level
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.matching import Before
from simsplit.attacks.openings import OpenedConfig, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.text_attack import (
    Read,
    SeenBatch,
    TextAttack,
    count_messages,
    pick_surer,
    split_messages,
)
from simsplit.attacks.threat import Knows, Threat
from simsplit.config import Config
from simsplit.models.transformer import Head, get_layers
from simsplit.needs import Given, Need, Needs

FITS = 1e-5
"""Squared sine of the angle between two outputs below which they are the same but for rounding."""
AT_ONCE = 2**15
"""Number of tokens that are sent through the head at once."""


class RankedTokens(Config):
    """The fields by which next tokens are ranked and tried."""

    inverter: Literal["recurrent", "gaussian"] = "gaussian"
    """What ranks the tokens. gaussian: a normal distribution for each token, fitted in seconds.
    recurrent: SIP's network."""
    candidates: int | None = Field(default=64, ge=1)
    """Number of tokens that are tried at a position, those that the inverter finds likeliest. Where
    none of them fits, the whole vocabulary is tried, as long as all tokens so far fit, or if the
    head has no layers. null: the whole vocabulary everywhere, as published, for which no public
    texts are needed."""


class VocabularyMatchingConfig(RankedTokens, InverterConfig):
    """A search for each next token among those that an inverter finds likeliest."""

    kind: Literal["vocabulary_matching"] = "vocabulary_matching"
    threat: ClassVar[Threat] = Threat(knows=(Knows.PUBLIC, Knows.CAUSAL_HEAD))

    @property
    def needs(self) -> Needs:
        """Public texts, from which an inverter learns, unless all tokens are candidates."""
        public = Need(Given.PUBLIC)
        others = tuple(need for need in super().needs if need != public)
        return others if self.candidates is None else (*others, replace(public, field="candidates"))

    def build(self, known: Knowledge) -> "VocabularyMatching | TableMatching":
        if self.candidates is None and known.auxiliary is None:
            return TableMatching(known)
        return VocabularyMatching(self, known)


class SessionMatchingConfig(RankedTokens, OpenedConfig):
    """Vocabulary matching of sessions, prompts and responses alike."""

    kind: Literal["session_matching"] = "session_matching"
    opening: ClassVar[Start] = "sip"

    def build(self, known: Knowledge) -> "SessionMatching":
        return SessionMatching(self, known)


class VocabularyMatching(Inverting):
    """An attack that reads each message, with the sign that the inverter reads surer."""

    config: VocabularyMatchingConfig

    @cached_property
    def words(self) -> "WholeVocabulary | None":
        """The whole vocabulary, where no candidate fits."""
        return make_vocabulary(self.head, self.known, self.config.candidates)

    def recover(self, seen: SeenBatch) -> Read:
        """Return one guess per message; the nearest is the surest."""
        sent_MBLD = split_messages(self.known.lift_smashed(seen.smashed), self.messages)
        sign_R = self.signs(sent_MBLD, is_mixed(self.known))
        sent_RLD = sign_R[:, None, None] * sent_MBLD.flatten(0, 1)
        # only texts that are padded on the left have a mask, and these have one message each
        mask = next(iter(self.known.stack.get_context(seen.smashed.tensors)), None)
        ranked = rank_tokens(self.inverter, sent_RLD, self.config.candidates)
        matched = match_tokens(self.head, sent_RLD, ranked, mask, words=self.words)
        return Read(matched.tokens, self.together(-matched.error, self.messages))


class TableMatching(TextAttack):
    """An attack that has no public texts: all tokens are candidates, and no inverter ranks them."""

    @cached_property
    def head(self) -> nn.Module:
        """The head as it was pretrained, which embeds every candidate."""
        return self.known.pretrained.segment("head")

    @cached_property
    def words(self) -> "WholeVocabulary":
        """All tokens of the head."""
        return WholeVocabulary(self.head, len(self.known.pretrained.embeddings))

    @torch.no_grad()
    def recover(self, seen: SeenBatch) -> Read:
        """Return one guess per message, with the sign after which the outputs fit better."""
        messages = count_messages(self.known)
        sent_RLD = self.known.lift_smashed(seen.smashed)
        mask = next(iter(self.known.stack.get_context(seen.smashed.tensors)), None)
        guesses = [
            self._match(sign * sent_RLD, mask, messages)
            for sign in ((1, -1) if is_mixed(self.known) else (1,))
        ]
        return guesses[0] if len(guesses) == 1 else pick_surer(*guesses)

    def _match(self, sent_RLD: Tensor, mask: Tensor | None, messages: int) -> Read:
        if not self.words.looks_back:
            tokens_RL, error_RL = self.words.find_nearest(sent_RLD)
            error_R = (error_RL if mask is None else error_RL * mask).mean(1)
        else:
            ranked = torch.cat([self.words.rank(row_LD)[None] for row_LD in sent_RLD])
            tokens_RL, error_R = match_tokens(self.head, sent_RLD, ranked, mask)
        return Read(tokens_RL, self.together(-error_R, messages))


class SessionMatching(SessionAttack):
    """An attack that reads sessions one by one, after its inverter has learned."""

    config: SessionMatchingConfig

    def __init__(self, config: SessionMatchingConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.head = known.pretrained.segment("head")
        self.words = make_vocabulary(self.head, known, config.candidates)

    def steps(self, record: Record) -> int:
        return len(record.lengths) + 1

    def read(self, record: Record) -> Steps:
        assert self.opening.sip is not None, "it opens with an inverter"
        inverter = self.opening.sip.inverter
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        for row, length in enumerate(record.lengths.tolist()):
            sent_1LD = record.sent[row : row + 1, :length].float()
            ranked = rank_tokens(inverter, sent_1LD, self.config.candidates)
            matched = match_tokens(self.head, sent_1LD, ranked, words=self.words)
            tokens[row, :length] = matched.tokens[0]
            yield
        return tokens


class NearestTokens(NamedTuple):
    """Tokens whose outputs are nearest to what was sent, of texts or at one of their positions."""

    tokens: Tensor
    error: Tensor
    """The outputs' distances from what was sent; of texts their means."""


@torch.no_grad()
def rank_tokens(inverter: Inverter, sent_RLD: Tensor, count: int | None) -> Tensor:
    """Return an inverter's likeliest tokens at each position, the likeliest first: R x L x K."""
    inverter.eval()
    rows = []
    for row_1LD in sent_RLD.split(1):  # the scores of all tokens need much memory
        scores = inverter.scores(inverter.features(divide_by_level(row_1LD)))
        rows.append(scores.topk(min(count or scores.shape[-1], scores.shape[-1])).indices)
    return torch.cat(rows)


class TextPosition(NamedTuple):
    """One position of S texts, of which the tokens before it are decided."""

    prefix: Tensor
    """S x P."""
    sent: Tensor
    """S x D."""
    mask: Tensor | None
    """The mask of the prefix and of this position, S x (P + 1)."""

    def take(self, rows: Tensor) -> "TextPosition":
        """Return the position of some of the texts."""
        mask = None if self.mask is None else self.mask[rows]
        return TextPosition(self.prefix[rows], self.sent[rows], mask)


class WholeVocabulary:
    """All tokens of a head, to be tried where none of the candidates fits."""

    def __init__(self, head: nn.Module, size: int) -> None:
        self.head, self.size = head, size
        self.looks_back = not isinstance(head, Head) or len(get_layers(head)) > 0
        """Whether an output depends on the tokens before it."""

    def choose(self, here: "TextPosition") -> NearestTokens:
        """Return the token of all that is nearest to what was sent after each prefix."""
        prefix_SP = here.prefix
        if here.mask is None and not (self.looks_back and prefix_SP.shape[1]):
            first = prefix_SP.shape[1] == 0
            made_VD = self.first_outputs if first else self._compute_outputs(prefix_SP[:1])
            near = [measure_distance(made_VD, sent_D).min(0) for sent_D in here.sent]
            return NearestTokens(
                torch.stack([at for _, at in near]), torch.stack([low for low, _ in near])
            )
        every_SV = torch.arange(self.size, device=prefix_SP.device).expand(len(prefix_SP), -1)
        return _choose(self.head, here, every_SV)

    def find_nearest(self, sent_RLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token whose output alone is nearest at each position, and its distance."""
        tokens_RL, error_RL = [], []
        for sent_LD in sent_RLD:
            near_L, at_L = self._compute_cosines(sent_LD).max(-1)
            tokens_RL.append(at_L)
            error_RL.append(1 - near_L * near_L.abs())
        return torch.stack(tokens_RL), torch.stack(error_RL)

    def rank(self, sent_LD: Tensor) -> Tensor:
        """Rank all tokens at each position by their outputs alone, the nearest first: L x V."""
        return self._compute_cosines(sent_LD).sort(dim=-1, descending=True, stable=True).indices

    def _compute_cosines(self, sent_LD: Tensor) -> Tensor:
        """Compute the cosine of what was sent at each position with each token's output: L x V."""
        return normalize(sent_LD.float(), dim=-1) @ self.directions.T

    @cached_property
    def directions(self) -> Tensor:
        """The directions of the outputs of all tokens alone: V x D."""
        return normalize(self.first_outputs.float(), dim=-1)

    @cached_property
    def first_outputs(self) -> Tensor:
        """The outputs of all tokens at a text's first place, which are alike for all texts."""
        device = next(self.head.parameters()).device
        return self._compute_outputs(torch.zeros(1, 0, dtype=torch.int64, device=device))

    def _compute_outputs(self, prefix_1P: Tensor) -> Tensor:
        """Compute the outputs of all tokens after a prefix: V x D."""
        onwards = _prepare(self.head, prefix_1P, None)
        every_1V = torch.arange(self.size, device=prefix_1P.device)[None]
        return torch.cat([onwards(part)[:, -1] for part in every_1V.split(AT_ONCE, 1)])


def make_vocabulary(
    head: nn.Module, known: Knowledge, candidates: int | None
) -> WholeVocabulary | None:
    """Make the vocabulary of the pretrained head; None where all of it is tried everywhere."""
    return None if candidates is None else WholeVocabulary(head, len(known.pretrained.embeddings))


@torch.no_grad()
def match_tokens(
    head: nn.Module,
    sent_RLD: Tensor,
    ranked_RLK: Tensor,
    mask_RL: Tensor | None = None,
    *,
    words: WholeVocabulary | None = None,
) -> NearestTokens:
    """Read tokens from the left, each as the ranked one whose output is nearest to what was sent.

    A position that the mask leaves out keeps the likeliest token. Where no ranked token fits,
    others are tried among `words`, if there are any: see the module.
    """
    tokens_RL = ranked_RLK[..., 0].clone()
    context = () if mask_RL is None else (mask_RL,)
    read = 0  # positions before it are decided
    fits_R = torch.ones_like(tokens_RL[:, 0], dtype=torch.bool)  # at all of these positions
    while True:
        error_RL = measure_distance(head(tokens_RL, *context), sent_RLD)
        if mask_RL is not None:
            error_RL = error_RL.masked_fill(~mask_RL.bool(), 0.0)
        unfit_RL = error_RL > FITS
        unfit_RL[:, :read] = False
        if not unfit_RL.any():
            return NearestTokens(tokens_RL, error_RL.mean(1))
        place = int(unfit_RL.any(0).float().argmax())
        rows = unfit_RL[:, place].nonzero().flatten()
        for some in rows.split(max(1, AT_ONCE // (ranked_RLK.shape[-1] * (place + 1)))):
            mask_SP = None if mask_RL is None else mask_RL[some, : place + 1]
            here = TextPosition(tokens_RL[some, :place], sent_RLD[some, place], mask_SP)
            chosen = _choose(head, here, ranked_RLK[some, place])
            if words is not None:
                chosen = _widen(words, chosen, fits_R[some], here)
            tokens_RL[some, place] = chosen.tokens
            fits_R[some] &= chosen.error <= FITS
        read = place + 1


def _widen(
    words: WholeVocabulary, chosen: NearestTokens, fits_S: Tensor, here: TextPosition
) -> NearestTokens:
    """Try all tokens where the chosen ones do not fit; behind layers a fit alone is taken."""
    tried = ((chosen.error > FITS) & (fits_S | (not words.looks_back))).nonzero().flatten()
    if not len(tried):
        return chosen
    every = words.choose(here.take(tried))
    most = torch.full_like(every.error, FITS) if words.looks_back else chosen.error[tried]
    better = every.error <= most
    tokens, error = chosen.tokens.clone(), chosen.error.clone()
    tokens[tried[better]], error[tried[better]] = every.tokens[better], every.error[better]
    return NearestTokens(tokens, error)


def _choose(head: nn.Module, here: TextPosition, choices_SK: Tensor) -> NearestTokens:
    """Return for each of S prefixes the nearest to what was sent of its K choices."""
    prefix_SP, sent_SD = here.prefix, here.sent
    best_S, least_S = choices_SK[:, 0].clone(), torch.full_like(sent_SD[:, 0], torch.inf)
    onwards = _prepare(head, prefix_SP, here.mask)
    # what a choice needs of memory: its prefix, as tokens or as keys and values
    for part_SK in choices_SK.split(max(1, AT_ONCE // max(1, prefix_SP.numel())), 1):
        some = part_SK.shape[1]
        made_NLD = onwards(part_SK)
        distance_SK = measure_distance(made_NLD[:, -1].unflatten(0, (-1, some)), sent_SD[:, None])
        near_S, at_S = distance_SK.min(1)
        best_S = torch.where(near_S < least_S, part_SK.gather(1, at_S[:, None])[:, 0], best_S)
        least_S = torch.minimum(near_S, least_S)
    return NearestTokens(best_S, least_S)


def _prepare(
    head: nn.Module, prefix_SP: Tensor, mask_SP: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """Return a function of choices, S x K, that computes the head's outputs after each prefix.

    Without a mask what comes before is computed once, and kept as the head's cache.
    """
    if mask_SP is None and isinstance(head, Head):
        before = Before.of(head, head.tokens(prefix_SP))

        def go_on(choices_SK: Tensor) -> Tensor:
            embedded = head.tokens(choices_SK.reshape(-1, 1))
            return before.repeat(choices_SK.shape[1]).onwards(head, embedded)

        return go_on

    def begin_anew(choices_SK: Tensor) -> Tensor:
        count = choices_SK.shape[1]
        tried = torch.cat([prefix_SP.repeat_interleave(count, 0), choices_SK.reshape(-1, 1)], 1)
        context = () if mask_SP is None else (mask_SP.repeat_interleave(count, 0),)
        made: Tensor = head(tried, *context)
        return made

    return begin_anew


def measure_distance(made: Tensor, sent: Tensor) -> Tensor:
    """Return the squared sine of the angle between outputs and what was sent; opposed ones: 2."""
    cosine = cosine_similarity(made.float(), sent.float(), dim=-1)
    return 1 - cosine * cosine.abs()
