"""Vocabulary matching by hand: an exact reading, a planted wrong guess, noise, padding."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from simsplit.attacks.vocabulary_matching import (
    VocabularyMatchingConfig,
    WholeVocabulary,
    match_tokens,
    measure_distance,
)
from simsplit.data.samples import Vocabulary
from simsplit.legs import Leg
from simsplit.models.language import CausalLM
from simsplit.needs import Given
from simsplit.packets import Packet
from simsplit.seeds import rng_for

WORDS, WIDTH = 40, 16


class Running(nn.Module):
    """A causal head: the output at a position is of all tokens up to there."""

    def __init__(self):
        super().__init__()
        self.table = torch.randn(WORDS, WIDTH, generator=rng_for(0, "table"))
        self.calls = 0

    def forward(self, ids, mask=None):
        self.calls += ids.shape[0]
        embedded = self.table[ids]
        if mask is not None:
            embedded = embedded * mask[..., None]
        weights = 1.0 / torch.arange(1, ids.shape[1] + 1)
        return torch.tanh(embedded + 0.5 * (embedded * weights[:, None]).cumsum(1))


def texts(rows=3, length=9):
    return torch.randint(0, WORDS, (rows, length), generator=rng_for(1, "texts"))


def rank_at_random(rows, length, kept=WORDS):
    order = [
        torch.randperm(WORDS, generator=rng_for(2, row, place))[:kept]
        for row in range(rows)
        for place in range(length)
    ]
    return torch.stack(order).view(rows, length, kept)


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_every_text_is_read_to_the_letter_whatever_its_scale(scale):
    head, right = Running(), texts()
    found = match_tokens(head, scale * head(right), rank_at_random(3, 9))
    assert torch.equal(found.tokens, right)
    assert found.error.max() < 1e-5


def test_where_the_likeliest_tokens_fit_nothing_is_tried():
    head, right = Running(), texts()
    sent = head(right)
    ranked = torch.cat([right[..., None], rank_at_random(3, 9)], -1)
    head.calls = 0
    assert torch.equal(match_tokens(head, sent, ranked).tokens, right)
    assert head.calls == 3


def test_a_token_that_is_no_candidate_is_missed_and_the_next_ones_are_tried_after_the_nearest():
    head, right = Running(), texts(1)
    ranked = rank_at_random(1, 9)
    ranked[0, 4][ranked[0, 4] == right[0, 4]] = (right[0, 4] + 1) % WORDS
    found = match_tokens(head, head(right), ranked)
    assert torch.equal(found.tokens[0, :4], right[0, :4])
    assert found.tokens[0, 4] != right[0, 4]
    assert found.error[0] > 1e-3


def test_noise_is_read_by_the_nearest_and_much_noise_is_not_read():
    head, right = Running(), texts(20)
    sent = head(right)
    noise = torch.randn(sent.shape, generator=rng_for(3, "noise"))
    for size, least, most in ((0.1, 0.95, 1.0), (30.0, 0.0, 0.2)):
        found = match_tokens(head, sent + size * noise, rank_at_random(20, 9))
        assert least <= (found.tokens == right).float().mean() <= most


def test_padding_on_the_left_is_not_searched():
    head, right = Running(), texts()
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, :4] = False
    sent = head(right, mask)
    sent[1, :4] = torch.randn(4, WIDTH, generator=rng_for(4, "padding"))
    found = match_tokens(head, sent, rank_at_random(3, 9), mask)
    assert torch.equal(found.tokens[mask], right[mask])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_comes_before_is_computed_once_and_changes_no_reading(family):
    model = CausalLM(
        sizes={"family": family, "width": WIDTH, "layers": 4, "public": True}, head=2, tail=1
    )
    head = model.segment("head", (30,), 2, 0).eval()
    right = torch.randint(0, 30, (3, 8), generator=rng_for(5, "texts"))
    sent = head(right) + 0.3 * torch.randn(3, 8, head(right).shape[-1], generator=rng_for(6, "n"))
    ranked = torch.stack([torch.arange(30).expand(8, 30)] * 3)
    cached = match_tokens(head, sent, ranked)
    whole = match_tokens(head, sent, ranked, torch.ones(3, 8, dtype=torch.bool))
    assert torch.equal(cached.tokens, whole.tokens)
    assert torch.equal(match_tokens(head, head(right), ranked).tokens, right)


def test_the_opposite_direction_is_farther_than_a_right_angle():
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    near, far, opposed = (float(measure_distance(east, other)) for other in (east, north, -east))
    assert near < far < opposed


def build_head(family, layers):
    """Build a pretrained head with so many layers, and weights that tell texts apart."""
    sizes = {"family": family, "width": WIDTH, "layers": 4, "public": True}
    head = CausalLM(sizes=sizes, head=layers, tail=1).segment("head", (WORDS,), 2, 0).eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=rng_for(0, "weights")))
    return head


def rank_public(right, kept=8):
    """Rank candidates as a reader of public texts does: no token of the upper half among them."""
    ranked = rank_at_random(*right.shape)[..., :kept] % (WORDS // 2)
    known = right < WORDS // 2
    ranked[..., -1] = torch.where(known, right, ranked[..., -1])
    return ranked


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_tokens_that_no_public_text_has_are_read_at_any_depth(family, layers):
    """Half of the vocabulary never occurs in public texts; of an exact head all of it is read.

    Without the whole vocabulary a text is lost from the first such token on.
    """
    head, right = build_head(family, layers), texts()
    assert (right >= WORDS // 2).any(1).all()
    ranked, sent = rank_public(right), head(right)
    found = match_tokens(head, sent, ranked, words=WholeVocabulary(head, WORDS))
    assert torch.equal(found.tokens, right)
    assert (match_tokens(head, sent, ranked).tokens == right).float().mean() < 0.8


def test_without_layers_noise_is_read_by_the_nearest_of_all_tokens():
    head, right = build_head("llama", 0), texts(20)
    sent = head(right) + 0.1 * torch.randn(20, 9, WIDTH, generator=rng_for(3, "noise"))
    found = match_tokens(head, sent, rank_public(right), words=WholeVocabulary(head, WORDS))
    assert (found.tokens == right).float().mean() > 0.95


@pytest.mark.parametrize("layers", [1, 2])
def test_behind_layers_what_fits_nowhere_is_read_as_before(layers):
    """Noise, or a head that was trained: no reading changes, and the vocabulary is tried once."""
    head, right, tries = build_head("llama", layers), texts(6), []
    sent = head(right) + 0.05 * torch.randn(6, 9, WIDTH, generator=rng_for(3, "noise"))
    ranked, words = rank_public(right), WholeVocabulary(head, WORDS)
    choose = words.choose
    words.choose = lambda here: tries.append(here.prefix.shape) or choose(here)
    found = match_tokens(head, sent, ranked, words=words)
    assert torch.equal(found.tokens, match_tokens(head, sent, ranked).tokens)
    assert tries == [(6, 0)]


def test_left_padding_changes_no_reading_of_unknown_tokens():
    head, right = build_head("llama", 2), texts()
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, :4] = False
    found = match_tokens(
        head, head(right, mask), rank_public(right), mask, words=WholeVocabulary(head, WORDS)
    )
    assert torch.equal(found.tokens[mask], right[mask])


class TableKnowledge(SimpleNamespace):
    """What an attacker has of a wire: the public head, and no public texts."""

    def __init__(self, head):
        pretrained = SimpleNamespace(segment=lambda owner: head, embeddings=torch.empty(WORDS, 1))
        super().__init__(
            pretrained=pretrained,
            auxiliary=None,
            vocabulary=Vocabulary(WORDS, 0, frozenset(), None),
            methods=(),
            stack=SimpleNamespace(get_context=lambda tensors: ()),
            lift_smashed=lambda packet: packet.tensors[0],
        )


@pytest.mark.parametrize("layers", [0, 1])
def test_a_public_table_alone_reads_every_token_without_public_texts(layers):
    head, right = build_head("llama", layers), texts(4)
    attack = VocabularyMatchingConfig(candidates=None).build(TableKnowledge(head))
    packets = [Packet(0, Leg.SMASHED, 1, n, (3 * head(right[n : n + 1]),)) for n in range(4)]
    for _ in attack.work(packets):
        pass
    assert torch.equal(attack.recovered, right)
    assert attack.sureness.min() > -1e-5


def test_noise_beside_the_table_is_read_by_the_nearest_of_all_tokens():
    head, right = build_head("llama", 0), texts(20)
    sent = head(right) + 0.1 * torch.randn(20, 9, WIDTH, generator=rng_for(3, "noise"))
    attack = VocabularyMatchingConfig(candidates=None).build(TableKnowledge(head))
    for _ in attack.work([Packet(0, Leg.SMASHED, 1, 0, (sent,))]):
        pass
    assert (attack.recovered == right).float().mean() > 0.95
    assert attack.sureness.max() < -1e-4


def test_public_texts_are_needed_unless_all_tokens_are_candidates():
    (need,) = [each for each in VocabularyMatchingConfig().needs if each.what is Given.PUBLIC]
    assert need.field == "candidates"
    needs = VocabularyMatchingConfig(candidates=None).needs
    assert Given.PUBLIC not in {each.what for each in needs}
