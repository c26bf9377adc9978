"""Labels that are drawn once per sample: how often, which, and that it stays so."""

import math

import pytest
import torch
from builders import scenario

from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Labels, Method, Site, Step
from simsplit.methods.randomised_response import BLOCK, SampleDraws


def build(classes: int, side: str = "client", **fields) -> Method:
    site = Site(side, Leg.SMASHED, (6,), 0, torch.device("cpu"), labels=Labels(classes))
    return METHODS["randomised_response"](**fields).build(site)


def draw_labels(method: Method, labels: torch.Tensor, rows: torch.Tensor, **at) -> torch.Tensor:
    step = Step(at.get("client", 0), at.get("round", 1), 0, 5, labels=labels)
    return method.transform(Batch(torch.zeros(len(rows), 1), labels, rows), step).labels


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 1.0), (4, 2.0), (10, 0.0)])
def test_labels_stay_as_often_as_epsilon_says_and_others_are_alike(classes, epsilon):
    rows = torch.arange(40_000)
    labels = rows % classes
    got = draw_labels(build(classes, epsilon=epsilon), labels, rows)
    kept = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    assert (got == labels).double().mean().item() == pytest.approx(kept, abs=0.01)
    moved = ((got - labels) % classes)[got != labels]
    shares = torch.bincount(moved, minlength=classes)[1:] / len(moved)
    assert (shares - 1 / (classes - 1)).abs().max() < 0.02


def test_a_sample_has_one_draw_whatever_the_batch_and_the_epoch():
    method, rows = build(2, epsilon=0), torch.tensor([5, 2000, 17, BLOCK - 1, BLOCK])
    labels = torch.tensor([0, 1, 0, 1, 1])
    first = draw_labels(method, labels, rows)
    order = torch.tensor([3, 0, 4])
    for again in (method, build(2, epsilon=0)):  # as after a resumption, or on another host
        later = draw_labels(again, labels[order], rows[order], round=7)
        assert torch.equal(later, first[order])
    many = torch.arange(200)
    ones = torch.ones(200, dtype=torch.int64)
    assert not torch.equal(
        draw_labels(method, ones, many), draw_labels(method, ones, many, client=1)
    )


def test_draws_of_rows_do_not_depend_on_the_rows_beside():
    draws, step = SampleDraws("x", 3), Step(0, 1, 0, 5)
    rows = torch.tensor([0, 5000, 3])
    together = draws.get(rows, step)
    for row, alone in zip(rows, together, strict=True):
        assert torch.equal(draws.get(row[None], step)[0], alone)
    assert 0 <= together.min() < together.max() < 1


def test_who_has_no_label_gets_none_and_evaluation_has_the_true_ones():
    method = build(3, epsilon=0)
    labels = torch.full((50,), -100)
    assert torch.equal(draw_labels(method, labels, torch.arange(50)), labels)
    step = Step(0, 1, 0, 5, training=False)
    batch = Batch(torch.zeros(50, 1), torch.zeros(50).long(), torch.arange(50))
    assert method.transform(batch, step) is batch


def test_the_label_of_a_text_stays_in_its_place():
    method, rows = build(3, epsilon=0), torch.arange(60)
    labels = torch.full((60, 5), -100)
    places = rows % 5
    labels[rows, places] = rows % 3
    got = draw_labels(method, labels, rows)
    assert torch.equal(got[rows, places], draw_labels(method, rows % 3, rows))
    assert ((got >= 0) == (labels >= 0)).all()


def test_what_changed_is_reported():
    method, labels = build(2, epsilon=0), torch.zeros(100).long()
    step = Step(0, 1, 0, 5, labels=labels)
    got = method.transform(Batch(torch.zeros(100, 1), labels, torch.arange(100)), step).labels
    assert step.figures["labels_changed"].item() == pytest.approx(got.double().mean().item())


def test_the_server_has_nothing_to_do_and_a_vanilla_cut_is_refused():
    assert type(build(2, side="server")) is Method
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: randomised_response needs clients"):
        scenario(method=["randomised_response"], topology="vanilla")
