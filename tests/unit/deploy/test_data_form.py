"""The form of the data is decided by the scenario or the majority, never by who comes first."""

from typing import Any

import pytest
from builders import TINY
from gists import says

from simsplit.deploy.data_form import choose_form, refuse_undescribed
from simsplit.deploy.terms import describe_data
from simsplit.errors import ProtocolError, RunFailedError
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge


def scenario(**data: Any) -> Scenario:
    return parse(merge(TINY, {"data": data}))


DATA = (
    {},
    {"normalise": "unit"},
    {"normalise": "symmetric"},
    {"validation": 0.1, "auxiliary": 0.25},
    {"classes": ["3", "8"]},
    {"test_samples": None},
)
FORM = describe_data(scenario().prepare_data())
OTHER: dict[str, Any] = {
    "sample": [3, 28, 28],
    "classes": ["a", *FORM["classes"][1:]],
    "texts": True,
    "images": False,
    "mean": [0.7],
    "std": [9.0],
    "held_out": {"test": 7},
}


class TestTheScenario:
    @pytest.mark.parametrize("data", DATA, ids=str)
    def test_describes_what_its_own_data_are(self, data):
        given = scenario(**data)
        form = describe_data(given.prepare_data())
        refuse_undescribed(form, given, given.data.describe())
        refuse_undescribed(form, given, None)

    @pytest.mark.parametrize(
        ("data", "other"),
        [
            ({}, {"sample": [3, 28, 28]}),
            ({}, {"images": False}),
            ({}, {"texts": True}),
            ({}, {"held_out": {"test": 7}}),
            ({}, {"held_out": {"test": 40, "validation": 4}}),
            ({"validation": 0.1}, {"held_out": {"test": 40}}),
            ({"validation": 0.1}, {"held_out": {"test": 40, "validation": 10}}),
            ({"normalise": "unit"}, {"mean": [0.7]}),
            ({"normalise": "symmetric"}, {"std": [1.0]}),
            ({"classes": ["3", "8"]}, {"classes": ["8", "3"]}),
        ],
        ids=str,
    )
    def test_refuses_others_by_field(self, data, other):
        given = scenario(**data)
        form = {**describe_data(given.prepare_data()), **other}
        with pytest.raises(ProtocolError) as refused:
            refuse_undescribed(form, given, given.data.describe())
        assert next(iter(other)) in str(refused.value)

    def test_leaves_to_the_majority_what_it_does_not_know(self):
        given = scenario()
        for name in ("mean", "std", "classes"):
            refuse_undescribed({**FORM, name: OTHER[name]}, given, given.data.describe())
        own = scenario(source={"kind": "npz", "path": "away.npz"})
        refuse_undescribed({**FORM, "held_out": {"test": 7}}, own, own.data.describe())


class TestTheMajority:
    @pytest.mark.parametrize("liar", range(3))
    @pytest.mark.parametrize("field", OTHER)
    def test_decides_whoever_greets_first(self, field, liar):
        lie = {**FORM, field: OTHER[field]}
        forms = {client: lie if client == liar else FORM for client in (liar, *range(3))}
        assert choose_form(forms) == FORM

    def test_of_all_clients_and_not_of_the_largest_group(self):
        forms = {n: FORM if n < 2 else {**FORM, "mean": [float(n)]} for n in range(5)}
        with pytest.raises(RunFailedError) as raised:
            choose_form(forms)
        assert says(str(raised.value), "mean ... clients 0, 1; 2; 3; 4")

    def test_is_more_than_half(self):
        with pytest.raises(RunFailedError):
            choose_form({0: FORM, 1: {**FORM, "std": [9.0]}})
        assert choose_form({0: FORM}) == FORM
