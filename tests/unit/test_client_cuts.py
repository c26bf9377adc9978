"""Cuts of clients' own are read as a user writes them, and refused by path where there is none."""

from pathlib import Path
from typing import Any

import pytest
from builders import scenario
from texts import CAUSAL, text_scenario

from simsplit.deploy.terms import digest_terms
from simsplit.errors import ScenarioError
from simsplit.scenario.session_rules import writes_in_sessions

MLP: dict[str, Any] = {"kind": "mlp", "widths": [16, 12, 10, 8], "head": 1, "tail": 1}
OWN: dict[str, Any] = {"heads": "per_client"}
MIXED: dict[str, Any] = {"device": {"phone": 1, "workstation": 1}}


def make(**changes: Any) -> Any:
    return scenario(**{"model": MLP, **changes})


def test_a_device_or_a_name_has_a_cut_and_others_have_the_models() -> None:
    made = make(clients={**OWN, "cut": {"workstation": 3}, "count": 6}, network=MIXED)
    assert made.network is not None
    devices = made.network.draw_devices(6, made.seed)
    assert set(devices) == {"phone", "workstation"}
    assert made.places == [3 if device == "workstation" else 1 for device in devices]
    rates = [each.flops_per_s for each in made.network.draw_rates(6, made.seed)]
    assert rates == [2e10 if device == "phone" else 5e11 for device in devices]
    names = ["Bonn", "Graz", "Oslo"]
    assert make(clients={**OWN, "names": names, "cut": {"Graz": 2}}).places == [1, 2, 1]
    # a name says more than a device
    both = make(clients={**OWN, "names": names, "cut": {"laptop": 1, "Graz": 2}}, network={})
    assert both.places == [1, 2, 1]
    assert not make().has_own_cuts
    assert make().places == [1, 1, 1]


def test_a_run_without_such_cuts_has_the_identity_that_it_had() -> None:
    assert "cut" not in make().select_identity()["clients"]
    assert make(clients={**OWN, "cut": [1, 2, 1]}).select_identity()["clients"]["cut"]


UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "outside": ("clients.cut.1", {"clients": {**OWN, "cut": [1, 5, 1]}}),
    "not a layer": ("clients.cut.2", {"clients": {**OWN, "cut": [1, 1, 0]}}),
    "a word": ("clients.cut.0", {"clients": {**OWN, "cut": ["2", 1, 1]}}),
    "true": ("clients.cut", {"clients": {**OWN, "cut": True}}),
    "half": ("clients.cut", {"clients": {**OWN, "cut": [1, 1.5, 1]}}),
    "nothing": ("clients.cut", {"clients": {**OWN, "cut": {}}}),
    "too few": ("clients.cut", {"clients": {**OWN, "cut": [1, 2]}}),
    "a stranger": ("clients.cut.phnoe", {"clients": {"cut": {"phnoe": 1}}, "network": MIXED}),
    "no group": ("clients.cut.phone", {"clients": {"cut": {"phone": 1}}}),
    "nobody's": (
        "clients.cut.edge",
        {
            "clients": {**OWN, "cut": {"edge": 2}},
            "network": {"device": {"phone": 1000, "edge": 1}},
        },
    ),
    "a trunk without a beginning": (
        "model.head",
        {"clients": {**OWN, "cut": [2, 3, 2]}},
    ),
    "before the trunk": ("model.head", {"clients": {**OWN, "cut": 1}, "model": {**MLP, "head": 2}}),
    "another model": ("clients.cut", {"clients": {"cut": 1}, "model": {"kind": "simplecnn"}}),
    "handed on": ("clients.heads", {"clients": {"cut": [1, 2, 1]}}),
    "one batch": (
        "aggregation.kind",
        {
            "clients": {"cut": [1, 2, 1]},
            "aggregation": "fused",
            "schedule": {"kind": "parallel"},
        },
    ),
    "in few bits": (
        "aggregation.bits",
        {"clients": {"cut": [1, 2, 1]}, "aggregation": {"kind": "splitfed_v2", "bits": 4}},
    ),
    "whole updates": (
        "aggregation.strategy",
        {
            "clients": {"cut": [1, 2, 1]},
            "aggregation": {"kind": "splitfed_v2", "strategy": "krum"},
        },
    ),
    "a detector": (
        "detectors.0.kind",
        {
            "clients": {**OWN, "cut": [1, 2, 1]},
            "detectors": [{"kind": "cosine_mad", "signal": "payload"}],
        },
    ),
    "an attack": (
        "attacks.0.kind",
        {
            "clients": {**OWN, "cut": [1, 2, 1]},
            "attacks": [{"kind": "ridge"}],
            "data": {"auxiliary": 0.2},
        },
    ),
    "a method": (
        "method.0.kind",
        {
            "clients": {**OWN, "cut": [1, 2, 1]},
            "method": [{"kind": "cast", "to": "int8"}],
        },
    ),
    "no trunk to evaluate without": (
        "evaluate.controls.0",
        {
            "clients": {**OWN, "cut": [1, 2, 1]},
            "model": {**MLP, "widths": [8, 7, 8, 8]},
            "evaluate": {"controls": ["without_trunk"]},
        },
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_by_path(case: str) -> None:
    field, changes = UNFIT[case]
    with pytest.raises(ScenarioError) as refused:
        make(**changes)
    assert [each.field for each in refused.value.problems] == [field]


def test_the_same_is_allowed_with_one_cut() -> None:
    make(clients={"cut": [1, 1, 1]}, method=[{"kind": "cast", "to": "int8"}])
    make(clients={"cut": 1}, detectors=[{"kind": "cosine_mad", "signal": "payload"}])


def test_parties_of_a_deployment_agree_on_cuts_and_not_on_the_names_they_go_by() -> None:
    cuts = [[1, 2, 1], [1, 1, 2]]
    plain, other = (make(clients={**OWN, "cut": cut}) for cut in cuts)
    named, renamed = (
        make(clients={**OWN, "names": names, "cut": {names[1]: 2}})
        for names in (["Bonn", "Graz", "Oslo"], ["a", "b", "c"])
    )
    terms = [digest_terms(each, "rehearsal") for each in (plain, named, renamed)]
    assert len(set(terms)) == 1
    assert digest_terms(other, "rehearsal") not in terms


def test_texts_have_one_width_but_no_sessions(tmp_path: Path) -> None:
    clients = {**OWN, "cut": [1, 2]}
    words = {**CAUSAL, "sizes": {"width": 16, "layers": 4}}
    made = text_scenario(tmp_path, model=words, clients=clients, method=[{"kind": "cast"}])
    assert not writes_in_sessions(made)
    assert writes_in_sessions(text_scenario(tmp_path, model=words, method=[{"kind": "cast"}]))
    skipped = {**words, "trunk": "skipped"}
    for field, changes in (
        ("model.trunk", {"model": skipped, "clients": clients}),
        ("clients.cut.1", {"model": words, "clients": {**OWN, "cut": [1, 3]}}),
        ("evaluate.sessions", {"model": words, "clients": clients, "evaluate": {"sessions": True}}),
    ):
        with pytest.raises(ScenarioError) as refused:
            text_scenario(tmp_path, **changes)
        assert [each.field for each in refused.value.problems] == [field]
