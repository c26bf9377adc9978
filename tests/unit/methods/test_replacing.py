"""When tokens are replaced, what is left of a text, and which draws belong to it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

VOCABULARY, SPECIAL = 40, frozenset({0, 1})
every_kind = pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("santext", {"sensitive": 1.0}),
        ("custext", {"epsilon": 1.0, "group": 8}),
        ("rantext", {"epsilon": 1.0}),
    ],
)


def tokens() -> Tokens:
    table = torch.randn(VOCABULARY, 5, generator=rng_for(0, "table"))
    return Tokens(table, torch.arange(VOCABULARY) + 1, SPECIAL)


def build(kind: str, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (12, 5), 4, torch.device("cpu"), tokens=tokens())
    return METHODS[kind](**fields).build(site)


def step(number: int = 0, **fields) -> Step:
    return Step(2, 1, number, 5, **fields)


def batch(rows: int = 6, length: int = 12) -> Batch:
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=rng_for(0, "ids"))
    return Batch(ids, ids.roll(-1, 1), torch.arange(rows) + 10)


def transform_ids(ids: Tensor, **fields) -> Batch:
    return replace(batch(), inputs=ids, **fields)


@every_kind
def test_texts_change_and_nothing_else_does(kind, fields):
    given, here = batch(), step()
    sent = build(kind, **fields).transform(given, here)
    changed = (sent.inputs != given.inputs).double().mean()
    assert changed > 0.5
    assert here.figures[f"{kind}_changed"] == pytest.approx(changed.item())
    assert sent.inputs.dtype is torch.int64
    assert sent.labels is given.labels
    assert sent.indices is given.indices
    assert not set(sent.inputs.flatten().tolist()) & SPECIAL


@every_kind
def test_special_tokens_stay(kind, fields):
    given = batch()
    given.inputs[:, 0], given.inputs[2:, 7:] = 1, 0
    sent = build(kind, **fields).transform(given, step())
    special = given.inputs < 2
    assert torch.equal(sent.inputs[special], given.inputs[special])


@every_kind
def test_a_texts_draws_are_its_own(kind, fields):
    """In another epoch, in another batch, beside longer texts and as far as it is written."""
    method, given = build(kind, **fields), batch()
    first = method.transform(given, step()).inputs
    assert torch.equal(method.transform(given, step(7)).inputs, first)
    assert torch.equal(method.transform(given, step(9, training=False)).inputs, first)
    some = Batch(given.inputs[3:, :5], given.labels[3:, :5], given.indices[3:])
    assert torch.equal(method.transform(some, step(8)).inputs, first[3:, :5])
    again = build(kind, **fields)
    assert torch.equal(again.transform(some, step()).inputs, first[3:, :5])
    other = Step(3, 1, 0, 5)
    assert not torch.equal(method.transform(given, other).inputs, first)


@every_kind
def test_padding_on_the_left_moves_no_draw(kind, fields):
    method, given = build(kind, **fields), batch()
    plain = method.transform(given, step()).inputs
    ids = torch.cat([torch.zeros(6, 3, dtype=torch.int64), given.inputs], 1)
    sent = method.transform(transform_ids(ids, mask=ids > 0), step()).inputs
    assert torch.equal(sent[:, 3:], plain)


@every_kind
def test_fresh_draws_are_the_steps_in_training_and_the_texts_in_evaluation(kind, fields):
    method, given = build(kind, **fields, fixed=False), batch()
    first = method.transform(given, step(1)).inputs
    assert torch.equal(method.transform(given, step(1)).inputs, first)
    assert not torch.equal(method.transform(given, step(2)).inputs, first)
    one, two = (method.transform(given, step(each, training=False)).inputs for each in (1, 2))
    assert torch.equal(one, two)


@every_kind
def test_a_single_text_of_special_tokens_is_no_trouble(kind, fields):
    given = Batch(
        torch.ones(1, 4, dtype=torch.int64), torch.zeros(1, 4).long(), torch.zeros(1).long()
    )
    here = step()
    assert torch.equal(build(kind, **fields).transform(given, here).inputs, given.inputs)
    assert here.figures[f"{kind}_changed"] == 0


@every_kind
def test_who_does_not_know_the_vocabulary_cannot_replace(kind, fields):
    site = Site("client", Leg.SMASHED, (12, 5), 4, torch.device("cpu"))
    method = METHODS[kind](**fields).build(site)
    with pytest.raises(ProtocolError, match="vocabulary"):
        method.transform(batch(), step())
