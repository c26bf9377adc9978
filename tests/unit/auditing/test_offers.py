"""What a transcript offers decides which attacks are tried, and what is wanted for the others."""

import pytest
import torch

from simsplit.attacks import ATTACKS, Knows
from simsplit.attacks.kmeans import KmeansConfig
from simsplit.auditing.grounds import Ground, Shapes, lay_ground
from simsplit.auditing.offers import (
    Offers,
    Untried,
    choose_attacks,
    estimate_cost,
    list_wants,
)
from simsplit.auditing.truths import make_row_samples, make_text_samples
from simsplit.errors import SimsplitError
from simsplit.legs import Leg
from simsplit.models.language import CausalLM
from simsplit.needs import Given

ROWS = frozenset({Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD})


@pytest.fixture(scope="module")
def rows() -> Ground:
    truth = make_row_samples(torch.rand(8, 5), torch.arange(8) % 2)
    shapes = Shapes((3,), (2,), 4, ROWS)
    return lay_ground("rows", shapes, truth, None, 1)


@pytest.fixture(scope="module")
def texts() -> Ground:
    model = CausalLM(name="simsplit/ci", head=0, tail=1, trunk="skipped", learns=("tail",))
    width = model.get_sizes()[0]
    truth = make_text_samples([torch.arange(5), torch.arange(7)], None, 0)
    return lay_ground("texts", Shapes((7, width), None, 1, ROWS), truth, model, 1)


def offer(ground: Ground, *legs: Leg, has: frozenset[Given] = frozenset(), **more: bool) -> Offers:
    things = {*ground.things, *(Knows[name] for name in more)}
    return Offers(ground.scenario, frozenset(legs), frozenset(things), has)


def test_known_inputs_take_the_place_of_public_ones(rows: Ground) -> None:
    ridge = ATTACKS["ridge"]()
    (lack,) = offer(rows, Leg.SMASHED).list_lacks(ridge)
    assert "known inputs" in lack
    assert not offer(rows, Leg.SMASHED, QUERIES=True).list_lacks(ridge)
    assert offer(rows, QUERIES=True).list_lacks(ridge), "and nothing was sent"


def test_labels_are_read_where_gradients_were_recorded(rows: Ground) -> None:
    labelled = frozenset({Given.LABELLED})
    known = {"CLASSES": True, "LABELS": True}
    assert not offer(rows, *ROWS, has=labelled, **known).list_lacks(KmeansConfig())
    (lack,) = offer(rows, Leg.SMASHED, has=labelled, **known).list_lacks(KmeansConfig())
    assert "gradients of features" in lack


def test_a_public_table_is_enough_for_texts(texts: Ground) -> None:
    chosen, untried = choose_attacks(offer(texts, Leg.SMASHED))
    assert [each.title for each in chosen] == ["vocabulary_matching"]
    assert chosen[0].model_dump()["candidates"] is None
    assert {"sip", "span_search"} <= {each.attack for each in untried}
    with_public = frozenset({Given.PUBLIC})
    chosen, _ = choose_attacks(offer(texts, Leg.SMASHED, has=with_public, PUBLIC=True))
    assert {"sip", "vocabulary_matching"} <= {each.title for each in chosen}
    assert all(getattr(each, "candidates", 64) == 64 for each in chosen)


def test_every_attack_of_the_data_is_chosen_or_wanted(rows: Ground, texts: Ground) -> None:
    for ground in (rows, texts):
        chosen, untried = choose_attacks(offer(ground))
        every = {each.title for each in chosen} | {each.attack for each in untried}
        modality = ground.scenario.data.source.modality
        assert every == {k for k, config in ATTACKS.items() if modality in config.modalities}
        assert all(each.wants for each in untried)


def test_the_fewest_iterations_come_first() -> None:
    costs = {kind: estimate_cost(ATTACKS[kind]()) for kind in ("kmeans", "whitebox", "fora")}
    assert costs["kmeans"] < costs["whitebox"] < costs["fora"]


def test_wants_are_joined_and_the_shortest_come_first() -> None:
    lines = list_wants(
        [
            Untried("a", ("x", "y")),
            Untried("b", ("x",)),
            Untried("c", ("x",)),
            Untried("d", (), "d: later"),
        ]
    )
    assert lines == ["with x: b, c", "with x; y: a", "d: later"]


@pytest.mark.parametrize(
    ("named", "said"),
    [("kmens", "kmeans"), ({"kind": "kmeans", "nmae": "x"}, "nmae"), ("fora", "tables")],
)
def test_wrong_attacks_are_named(rows: Ground, named: object, said: str) -> None:
    with pytest.raises(SimsplitError, match=said):
        choose_attacks(offer(rows), [named])  # type: ignore[list-item]


def test_a_model_of_another_width_is_refused() -> None:
    model = CausalLM(name="simsplit/ci", head=0, tail=1, trunk="skipped", learns=("tail",))
    truth = make_text_samples([torch.arange(5)], None, 0)
    with pytest.raises(SimsplitError, match="have 5"):
        lay_ground("texts", Shapes((5, 5), None, 1, ROWS), truth, model, 1)
