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
"""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from simsplit.attacks.inverters import NOTHING, Inverter, InverterConfig, divide_by_level
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.matching import Before
from simsplit.attacks.openings import OpenedConfig, Opening, Start
from simsplit.attacks.session_attack import SessionAttack, Steps
from simsplit.attacks.session_records import Record
from simsplit.attacks.text_attack import Read, SeenBatch, has_unknown_sign, split_messages
from simsplit.config import Config
from simsplit.models.transformer import Head

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
    """Number of tokens that are tried at a position, those that the inverter finds likeliest; null:
    the whole vocabulary, as published."""


class VocabularyMatchingConfig(RankedTokens, InverterConfig):
    """A search for each next token among those that an inverter finds likeliest."""

    kind: Literal["vocabulary_matching"] = "vocabulary_matching"
    causal: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "VocabularyMatching":
        return VocabularyMatching(self, known)


class SessionMatchingConfig(RankedTokens, OpenedConfig):
    """Vocabulary matching of sessions, prompts and responses alike."""

    kind: Literal["session_matching"] = "session_matching"

    @property
    def opening(self) -> Start:
        return "sip"

    def build(self, known: Knowledge) -> "SessionMatching":
        return SessionMatching(self, Opening("sip", self, known), known)


class VocabularyMatching(Inverting):
    """An attack that reads each message, with the sign that the inverter reads surer."""

    config: VocabularyMatchingConfig

    def recover(self, seen: SeenBatch) -> Read:
        """Return one guess per message; the nearest is the surest."""
        sent_MBLD = split_messages(self.known.lift_smashed(seen.smashed), self.messages)
        sign_R = self.signs(sent_MBLD, has_unknown_sign(self.known))
        sent_RLD = sign_R[:, None, None] * sent_MBLD.flatten(0, 1)
        # only texts that are padded on the left have a mask, and these have one message each
        mask = next(iter(self.known.stack.get_context(seen.smashed.tensors)), None)
        ranked = rank_tokens(self.inverter, sent_RLD, self.config.candidates)
        matched = match_tokens(self.head, sent_RLD, ranked, mask)
        return Read(matched.tokens, self.together(-matched.error, self.messages))


class SessionMatching(SessionAttack):
    """An attack that reads sessions one by one, after its inverter has learned."""

    def __init__(self, config: SessionMatchingConfig, opening: Opening, known: Knowledge) -> None:
        super().__init__(config, opening, known)
        self.candidates = config.candidates
        self.head = known.pretrained.segment("head")

    def steps(self, record: Record) -> int:
        return len(record.lengths) + 1

    def read(self, record: Record) -> Steps:
        assert self.opening.sip is not None, "it opens with an inverter"
        inverter = self.opening.sip.inverter
        tokens = torch.full_like(record.real, NOTHING, dtype=torch.int64)
        for row, length in enumerate(record.lengths.tolist()):
            sent_1LD = record.sent[row : row + 1, :length].float()
            ranked = rank_tokens(inverter, sent_1LD, self.candidates)
            tokens[row, :length] = match_tokens(self.head, sent_1LD, ranked).tokens[0]
            yield
        return tokens


class Matched(NamedTuple):
    """Tokens whose outputs are nearest to what was sent."""

    tokens: Tensor
    """R x L."""
    error: Tensor
    """Mean distance of the outputs from what was sent, R."""


@torch.no_grad()
def rank_tokens(inverter: Inverter, sent_RLD: Tensor, count: int | None) -> Tensor:
    """Return an inverter's likeliest tokens at each position, the likeliest first: R x L x K."""
    inverter.eval()
    rows = []
    for row_1LD in sent_RLD.split(1):  # the scores of all tokens need much memory
        scores = inverter.scores(inverter.features(divide_by_level(row_1LD)))
        rows.append(scores.topk(min(count or scores.shape[-1], scores.shape[-1])).indices)
    return torch.cat(rows)


@torch.no_grad()
def match_tokens(
    head: nn.Module, sent_RLD: Tensor, ranked_RLK: Tensor, mask_RL: Tensor | None = None
) -> Matched:
    """Read tokens from the left, each as the ranked one whose output is nearest to what was sent.

    A position that the mask leaves out keeps the likeliest token.
    """
    tokens_RL = ranked_RLK[..., 0].clone()
    context = () if mask_RL is None else (mask_RL,)
    read = 0  # positions before it are decided
    while True:
        error_RL = measure_distance(head(tokens_RL, *context), sent_RLD)
        if mask_RL is not None:
            error_RL = error_RL.masked_fill(~mask_RL.bool(), 0.0)
        unfit_RL = error_RL > FITS
        unfit_RL[:, :read] = False
        if not unfit_RL.any():
            return Matched(tokens_RL, error_RL.mean(1))
        place = int(unfit_RL.any(0).float().argmax())
        rows = unfit_RL[:, place].nonzero().flatten()
        for some in rows.split(max(1, AT_ONCE // (ranked_RLK.shape[-1] * (place + 1)))):
            tokens_RL[some, place] = _choose(
                head,
                tokens_RL[some, :place],
                ranked_RLK[some, place],
                sent_RLD[some, place],
                None if mask_RL is None else mask_RL[some, : place + 1],
            )
        read = place + 1


def _choose(
    head: nn.Module,
    prefix_SP: Tensor,
    choices_SK: Tensor,
    sent_SD: Tensor,
    mask_SP: Tensor | None,
) -> Tensor:
    """Return for each prefix the choice after which the head's output is nearest to what was sent.

    S prefixes of one length, K choices each.
    """
    best_S, least_S = choices_SK[:, 0].clone(), torch.full_like(sent_SD[:, 0], torch.inf)
    onwards = _prepare(head, prefix_SP, mask_SP)
    # what a choice needs of memory: its prefix, as tokens or as keys and values
    for part_SK in choices_SK.split(max(1, AT_ONCE // max(1, prefix_SP.numel())), 1):
        some = part_SK.shape[1]
        made_NLD = onwards(part_SK)
        distance_SK = measure_distance(made_NLD[:, -1].unflatten(0, (-1, some)), sent_SD[:, None])
        near_S, at_S = distance_SK.min(1)
        best_S = torch.where(near_S < least_S, part_SK.gather(1, at_S[:, None])[:, 0], best_S)
        least_S = torch.minimum(near_S, least_S)
    return best_S


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
