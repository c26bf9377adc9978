"""Span search, ours: a search for the direction in which mixtures read most like one text.

The m messages for a text are linear combinations of the head's outputs for k texts. The private
text's output is a linear combination of the messages: otherwise the client could not unmix. So it
lies in their span, which has at most m dimensions. The span is whitened, after each position has
been given the same weight, so that a few huge tokens do not decide. The search looks for the unit
directions in which an inverter is surest, by gradient ascent from many starts at once. Mixtures of
texts read less surely than one text. If k > m, the private text is the only pure direction.
Otherwise all k texts are peaks, and one epoch does not reveal which of them is private.

In another epoch the same private texts are mixed with other public ones. With `looks: 2` the peaks
of two epochs are compared, and the peak that occurs in both belongs to the private text. The code
assumes that texts are in the same batch in both epochs; an attacker would first have to match them.
With `picks: strangest` one epoch is enough where the other texts are of another kind than the
private one.

The recurrent inverter is sure where the best token's score is far above the second. The Gaussian
inverter is sure where a token explains the state's distance from the mean state, which separates
pure directions better.

No gradients are used. Texts that share a secret are searched together.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Adam

from simsplit.attacks.inverters import (
    NOTHING,
    GaussianInverter,
    Inverter,
    divide_by_level,
    level,
    measure_explained_share,
)
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.telling_private import Telling, TellingConfig, compute_agreement
from simsplit.attacks.text_attack import (
    Read,
    SeenBatch,
    count_sources,
    has_shared_secrets,
    split_messages,
)
from simsplit.packets import Packet
from simsplit.seeds import rng_for

ALIKE = 0.9
"""Cosine above which two directions are the same peak."""
FLAT = 1e-6
"""Share of the largest eigenvalue below which a direction counts as absent."""
AT_ONCE = 2**27
"""Maximum number of values in memory for groups that are searched at once."""
SCORES = 2**22
"""Number of scores that are computed at once: few enough to stay in a processor's cache."""


class SpanSearchConfig(TellingConfig):
    """A search of the mixtures' span for the direction that reads most like a single text."""

    kind: Literal["span_search"] = "span_search"
    starts: int = Field(default=256, ge=1)
    """Number of random directions to start from."""
    kept: int = Field(default=16, ge=1)
    """Number of starts that are refined: the surest that differ."""
    refinements: int = Field(default=40, ge=0)
    """Steps of gradient ascent on the inverter's sureness."""
    step: float = Field(default=0.05, gt=0)
    """Adam's learning rate in the ascent, on directions of length 1."""
    peaks: int | None = Field(default=None, ge=1)
    """Number of different peaks that are guesses, the surest being the attack's answer; null: the
    number of messages or of mixed texts, whichever is smaller."""
    rows: int | None = Field(default=None, ge=1)
    """Number of a batch's texts that are searched together, as texts with one secret; null: the
    whole batch, or 1 if the method draws secrets for each text."""
    positions: int | None = Field(default=64, ge=1)
    """Number of positions of a group, drawn at random, by which a direction is judged; null: all.
    """
    tokens: int | None = Field(default=4096, ge=2)
    """Number of candidate tokens at these positions, the most frequent in public texts; null: all.
    Final guesses are made among all tokens at all positions."""
    effort: ClassVar[tuple[str, ...]] = (*TellingConfig.effort, "refinements")

    def build(self, known: Knowledge) -> "SpanSearch":
        return SpanSearch(self, known)


Peaks = tuple[Tensor, Tensor]
"""The tokens of a batch's peaks, P x B x L, and how sure they are, P x B; the surest first."""


class SpanSearch(Telling):
    """An attack that searches the span of each batch, or of each text."""

    config: SpanSearchConfig

    def recover(self, seen: SeenBatch) -> Read:
        tokens_PBL, sure_PB = self._search(seen.smashed)
        # With more texts than messages the private one alone is pure, and its peak is the surest.
        several = count_sources(self.known) <= self.messages
        if self.config.picks == "strangest" and several:
            sure_PB = self._together(-self.public.measure_familiarity(tokens_PBL))
        for packet in seen.again:
            other_QBL, _ = self._search(packet)
            alike_PQB = compute_agreement(tokens_PBL, other_QBL, self.public.rarity_V)
            sure_PB = self._together(alike_PQB).amax(1)
        return Read(tokens_PBL.flatten(0, 1), sure_PB.flatten())

    def _together(self, of_texts: Tensor) -> Tensor:
        """Average over the texts of a batch, if one direction reads all of them."""
        if not has_shared_secrets(self.known):
            return of_texts
        return of_texts.mean(-1, keepdim=True).expand_as(of_texts)

    def _search(self, packet: Packet) -> Peaks:
        """Find the peaks of a batch, separately for each group of rows that share a secret."""
        x_MBLD = split_messages(self.known.lift_smashed(packet), self.messages)
        rows = self.config.rows or (x_MBLD.shape[1] if has_shared_secrets(self.known) else 1)
        rng = rng_for(self.known.seed, "span", packet.round, packet.step)
        whole = len(x_MBLD[0]) // rows * rows
        parts = [part for part in (x_MBLD[:, :whole], x_MBLD[:, whole:]) if part.shape[1]]
        return _join(
            self._search_groups(each.unflatten(1, (-1, min(rows, each.shape[1]))), rng)
            for each in parts
        )

    def _search_groups(self, x_MGBLD: Tensor, rng: torch.Generator) -> Peaks:
        """Find the surest directions of each group's span, some groups at a time."""
        basis_GMBLD = whiten(x_MGBLD.transpose(0, 1))
        alive_GM = basis_GMBLD.flatten(2).any(-1)
        shape = (len(basis_GMBLD), self.config.starts, len(x_MGBLD))
        draws = torch.randn(shape, generator=rng).to(basis_GMBLD)
        # A direction that the span lacks adds nothing to a mixture, but two equal peaks that differ
        # in it would count as different.
        starts_GSM = normalize(draws * alive_GM[:, None], dim=-1)
        count = self._groups_at_once(basis_GMBLD)
        return _join(
            self._read_peaks(basis, self._climb(self._build_sureness(basis), starts))
            for basis, starts in zip(basis_GMBLD.split(count), starts_GSM.split(count), strict=True)
        )

    def _climb(self, sureness: "Sureness", starts_GSM: Tensor) -> Tensor:
        """Refine the surest of the starts, and return the surest different results."""
        config = self.config
        kept_GSM = pick_distinct(starts_GSM, sureness.of_all(starts_GSM), config.kept)
        refined_GSM = self._refine(sureness, kept_GSM)
        count = config.peaks or min(self.messages, count_sources(self.known))
        return pick_distinct(refined_GSM, sureness.of_all(refined_GSM), count)

    def _refine(self, sureness: "Sureness", start_GSM: Tensor) -> Tensor:
        """Return directions after gradient ascent on sureness, or the start where it was surer."""
        with torch.enable_grad():
            moved = start_GSM.clone().requires_grad_()
            optimizer = Adam([moved], lr=self.config.step)
            for _ in range(self.config.refinements):
                optimizer.zero_grad()
                for part in sureness.parts(moved):
                    sure_GS = sureness.of(normalize(moved[:, part], dim=-1))
                    (-sure_GS.sum()).backward(inputs=[moved])
                optimizer.step()
        end_GSM = normalize(moved.detach(), dim=-1)
        better_GS = sureness.of_all(end_GSM) >= sureness.of_all(start_GSM)
        return torch.where(better_GS[..., None], end_GSM, start_GSM)

    def _build_sureness(self, basis_GMBLD: Tensor) -> "Sureness":
        """Build the objective of the search, for randomly drawn positions."""
        total = basis_GMBLD[0, 0, ..., 0].numel()
        rng = rng_for(self.known.seed, "span", "positions", total)
        places = torch.randperm(total, generator=rng)[: self.config.positions]
        by = (basis_GMBLD, places.to(basis_GMBLD.device), self.candidates)
        if isinstance(self.inverter, GaussianInverter):
            return GaussianSureness(self.inverter, *by)
        return Sureness(self.inverter, *by)

    def _groups_at_once(self, basis_GMBLD: Tensor) -> int:
        """Compute how many groups are searched at once, by the memory that each needs."""
        messages, rows, length, width = basis_GMBLD.shape[1:]
        places = min(self.config.positions or rows * length, rows * length)
        each = max(rows * length * width, messages * places * len(self.candidates))
        return max(1, AT_ONCE // each)

    @torch.no_grad()
    def _read_peaks(self, basis_GMBLD: Tensor, v_GPM: Tensor) -> Peaks:
        """Read the tokens of each direction, with the inverter's sureness of each group."""
        tokens, sure = [], []
        # one by one: the scores of all tokens need much memory
        for basis_1MBLD, v_1PM in zip(basis_GMBLD.split(1), v_GPM.split(1), strict=True):
            for v_11M in v_1PM.split(1, 1):
                features = compute_features(self.inverter, basis_1MBLD, v_11M)
                scores = self.inverter.scores(features)
                tokens.append(scores.argmax(-1)[0, 0])
                sure.append(self.inverter.sure(features, scores).mean())
        tokens_GPBL = torch.stack(tokens).unflatten(0, v_GPM.shape[:2])
        sure_GP = torch.stack(sure).view(v_GPM.shape[:2])
        sure_GPB = sure_GP[..., None].expand(tokens_GPBL.shape[:3])
        return tokens_GPBL.transpose(0, 1).flatten(1, 2), sure_GPB.transpose(0, 1).flatten(1)

    @cached_property
    def candidates(self) -> Tensor:
        """The tokens among which sureness is measured: the most frequent in public texts."""
        # Scores of the whole vocabulary would dominate the cost of the search.
        public = self.known.auxiliary
        assert public is not None, "refused without when the scenario is read"
        counts = torch.zeros(self.vocabulary.size, dtype=torch.int64)
        for rows in public.part.split(256):
            tokens = self._labels(public.batcher.batch(rows)).flatten().cpu()
            counts += tokens[tokens != NOTHING].bincount(minlength=len(counts))
        if self.inverter.reads_padding:
            # Padding is left out of the counts, but an inverter that reads it needs it as a
            # candidate.
            counts[self.vocabulary.pad] = counts.max() + 1
        count = min(self.config.tokens or len(counts), len(counts))
        return counts.argsort(descending=True, stable=True)[:count].to(self.known.device)


def _join(peaks: Iterable[Peaks]) -> Peaks:
    """Join the peaks of groups of texts."""
    tokens, sure = zip(*peaks, strict=True)
    return torch.cat(tokens, 1), torch.cat(sure, 1)


class Sureness:
    """An inverter's sureness of directions in the spans of groups of texts.

    Only the scores of the two best tokens are differentiated; the search for them is not.
    """

    def __init__(
        self, inverter: Inverter, basis_GMBLD: Tensor, places_N: Tensor, tokens_V: Tensor
    ) -> None:
        self.inverter = inverter
        self.basis_GMBLD = basis_GMBLD
        self.places_N = places_N
        self.tokens_V = tokens_V

    def of_all(self, v_GSM: Tensor) -> Tensor:
        """Compute the sureness of any number of directions, part by part: G x S."""
        with torch.no_grad():
            return torch.cat([self.of(v_GSM[:, part]) for part in self.parts(v_GSM)], 1)

    def parts(self, v_GSM: Tensor) -> Iterator[slice]:
        """Yield slices of the directions whose scores are computed at once."""
        each = len(v_GSM) * len(self.places_N) * len(self.tokens_V)
        per = max(1, SCORES // each)
        yield from (slice(first, first + per) for first in range(0, v_GSM.shape[1], per))

    def of(self, v_GSM: Tensor) -> Tensor:
        """Compute the sureness of a few directions, all at once: G x S."""
        features = compute_features(self.inverter, self.basis_GMBLD, v_GSM).flatten(2, 3)
        features = features[:, :, self.places_N]
        with torch.no_grad():
            best = self.inverter.scores(features, self.tokens_V).topk(2).indices
        return self.inverter.sureness(features, self.tokens_V[best]).mean(-1)


class GaussianSureness(Sureness):
    """A Gaussian inverter's sureness, from sums that are computed once per basis.

    Its scores are linear in the state, so the scores of a direction are combinations of the basis
    vectors' scores.
    """

    inverter: GaussianInverter

    def __init__(
        self, inverter: GaussianInverter, basis_GMBLD: Tensor, places_N: Tensor, tokens_V: Tensor
    ) -> None:
        super().__init__(inverter, basis_GMBLD, places_N, tokens_V)
        self.fit = fit = inverter.fit
        self.row_N = places_N // basis_GMBLD.shape[3]
        self.offset_V = fit.offset[tokens_V]
        sent_GNMD = basis_GMBLD.flatten(2, 3)[:, :, places_N].transpose(1, 2)
        self.score_GNMV = sent_GNMD @ fit.weight[tokens_V].T
        self.of_mean_GNM1 = (sent_GNMD @ fit.weight_of_mean)[..., None]
        self.square_GNMM = sent_GNMD @ fit.precision @ sent_GNMD.mT
        self.size_GBLMM = torch.einsum("gmbld,gnbld->gblmn", basis_GMBLD, basis_GMBLD)

    def of(self, v_GSM: Tensor) -> Tensor:
        # No gradient through the level, as in `divide_by_level`.
        level_GNS = self._levels(v_GSM.detach())[..., self.row_N].mT
        v_GNSM = v_GSM[:, None] / level_GNS[..., None]
        with torch.no_grad():
            best_GNS = (v_GNSM @ self.score_GNMV).add_(self.offset_V).argmax(-1)
        groups, places = (torch.arange(n, device=v_GSM.device) for n in self.score_GNMV.shape[:2])
        by_message = self.score_GNMV.mT[groups[:, None, None], places[:, None], best_GNS]
        score_GNS = (v_GNSM * by_message).sum(-1) + self.offset_V[best_GNS]
        square_GNS = ((v_GNSM @ self.square_GNMM) * v_GNSM).sum(-1)
        of_mean_GNS = (v_GNSM @ self.of_mean_GNM1).squeeze(-1) + self.fit.offset_of_mean
        return measure_explained_share(score_GNS, of_mean_GNS, square_GNS).mean(1)

    def _levels(self, v_GSM: Tensor) -> Tensor:
        """Compute the levels of each direction's rows, as `levelled` does: G x S x B."""
        square = torch.einsum("gsm,gblmn,gsn->gsbl", v_GSM, self.size_GBLMM, v_GSM)
        rms_GSBL = (square.clamp_min(0) / self.basis_GMBLD.shape[-1]).sqrt()
        return level(rms_GSBL)


def compute_features(inverter: Inverter, basis_GMBLD: Tensor, v_GSM: Tensor) -> Tensor:
    """Compute the inverter's features of directions: G x S x B x L x E."""
    x_GSBLD = torch.einsum("gsm,gmbld->gsbld", v_GSM, basis_GMBLD)
    # cuDNN differentiates recurrent layers in training mode only; the mode changes no values here.
    features = inverter.train().features(divide_by_level(x_GSBLD.flatten(0, 2)))
    apart: Tensor = features.unflatten(0, x_GSBLD.shape[:3])
    return apart


def whiten(x_GMBLD: Tensor) -> Tensor:
    """Combine messages into a basis that is orthonormal if every position weighs the same.

    Where the messages span fewer dimensions than m, zeros fill the basis.
    """
    weights = x_GMBLD.square().mean((1, 4), keepdim=True).clamp_min(1e-20).rsqrt()
    # The product squares singular values, so float32 would lose the small ones.
    even_GMN = (x_GMBLD * weights).flatten(2).double()
    values_GM, vectors_GMM = torch.linalg.eigh(even_GMN @ even_GMN.mT)
    there_GM = values_GM > FLAT * values_GM[:, -1:]
    scale_GM = torch.where(there_GM, values_GM.clamp_min(1e-30).rsqrt(), 0.0)
    turn_GMM = (vectors_GMM * scale_GM[:, None]).mT.to(x_GMBLD)
    basis_GMBLD: Tensor = torch.einsum("gnm,gmbld->gnbld", turn_GMM, x_GMBLD)
    return basis_GMBLD


def pick_distinct(v_GSM: Tensor, sure_GS: Tensor, count: int) -> Tensor:
    """Pick the surest directions, no two of them alike, surest first.

    If there are fewer than `count`, the surest one is repeated.
    """
    left_GS, chosen = sure_GS.clone(), []
    for _ in range(count):
        best_G = torch.where(left_GS.isinf().all(1), sure_GS.argmax(1), left_GS.argmax(1))
        best_GM = v_GSM[torch.arange(len(v_GSM), device=v_GSM.device), best_G]
        chosen.append(best_GM)
        alike_GS = torch.einsum("gsm,gm->gs", v_GSM, best_GM).abs() > ALIKE
        left_GS = left_GS.masked_fill(alike_GS, -torch.inf)
    return torch.stack(chosen, 1)
