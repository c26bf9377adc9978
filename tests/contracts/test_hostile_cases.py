"""No part that can be deployed lacks cases with hostile clients, on the loopback address.

The cases are run by `tests/deploy/test_hostile_parts.py` and `tests/deploy/test_hostile.py`.
"""

from itertools import product
from typing import get_args

import pytest
from builders import TINY
from contracts.walk import PLAIN, PRODUCT, variants
from deploy.test_expelled import PARTIES
from deploy.test_hostile import TEXTS, WAYS
from hostile_cases import (
    EVERY_CASE,
    MODALITIES,
    QUICK,
    SLOW,
    Case,
    Data,
    count_hostile,
    plan_ways,
)
from hostile_ways import UNDOING, list_sly_ways, list_ways

from simsplit.deploy.call_codecs import ANSWERS
from simsplit.deploy.remote_pool import BACK_TO, KEEP, MARK, UNDO
from simsplit.methods import METHODS
from simsplit.methods.method import Modality
from simsplit.scenario import parse
from simsplit.scenario.files import merge
from simsplit.schedules.aggregation import AGGREGATIONS as REGISTRY
from simsplit.topologies import TOPOLOGIES

UNDEPLOYABLE = {"santext", "custext", "rantext"}
"""The methods that need the vocabulary of all clients' texts, which a server lacks."""


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_has_a_case_for_each_kind_of_its_data_or_is_refused(kind: str) -> None:
    tried = {MODALITIES[case.data] for case in QUICK if case.part and case.part.kind == kind}
    assert tried == (set() if kind in UNDEPLOYABLE else METHODS[kind].modalities)


@pytest.mark.parametrize("kind", sorted(UNDEPLOYABLE))
def test_a_method_without_a_case_is_refused_by_its_path(kind: str) -> None:
    (part,) = variants("method.0", {kind: METHODS[kind]})
    refused = Case(PLAIN, "texts", part).find_refusal()
    assert refused is not None
    assert [each.field for each in refused.problems] == ["method.0.kind"]


def test_each_topology_aggregation_and_kind_of_data_has_a_case_in_all_pairs_that_can_be() -> None:
    tried = {pair for case in QUICK if case.part is None for pair in list_main_pairs(case)}
    can_be = {
        pair
        for axes, data in product(PRODUCT, get_args(Data))
        if not TOPOLOGIES[axes[0]].whole_model or data not in ("classes", "written")
        if (case := Case(axes, data)).find_refusal() is None
        for pair in list_main_pairs(case)
    }
    assert tried == can_be
    alone = {name for name, each in TOPOLOGIES.items() if not each.joint}
    assert {one for pair in tried for one in pair} == {*alone, *REGISTRY, *get_args(Data)}
    # Parties must be as many as the portions of a sample, and have no data of their own as clients
    # of these cases have. tests/deploy/test_expelled.py has a case of hostile parties.
    assert {PARTIES["topology"]} == {*TOPOLOGIES} - alone
    assert parse(merge(merge(TINY, {"schedule": {"rounds": 3}}), PARTIES)).parties
    assert set(MODALITIES.values()) == set(get_args(Modality))


def list_main_pairs(case: Case) -> set[frozenset[str]]:
    topology, _, _, aggregation = case.axes
    three = (topology, aggregation, case.data)
    return {frozenset((one, other)) for one, other in product(three, three) if one != other}


def test_each_pair_of_parts_that_a_case_may_have_is_in_one_that_runs() -> None:
    tried = [case.list_pairs() for case in (*QUICK, *SLOW)]
    assert set().union(*(case.list_pairs() for case in EVERY_CASE)) == set().union(*tried)
    assert len(SLOW) < len([case for case in EVERY_CASE if case.is_slow]) / 2


def test_each_kind_of_answer_is_given_to_each_call_in_a_run() -> None:
    ways = [*UNDOING, *(way for ways in WAYS.values() for way in ways)]
    ways += [way for _, ways in TEXTS.values() for way in ways]
    for case in (*QUICK, *SLOW):
        planned = plan_ways()[str(case)]
        loud, sly = count_hostile(case)
        assert [way.sly for way in planned] == [False] * loud + [True] * sly
        ways += planned
    given = [parse(case.make_values(1)) for case in EVERY_CASE]
    can_be = [way for each in given for way in (*list_ways(each), *list_sly_ways(each))]
    assert {way.name for way in can_be} <= {way.name for way in ways}
    assert {way.call for way in can_be} <= {way.call for way in ways}


def test_each_call_is_answered_in_hostile_ways() -> None:
    ways = [*UNDOING, *(way for ways in WAYS.values() for way in ways)]
    ways += [way for _, ways in TEXTS.values() for way in ways]
    for case in QUICK:
        ways += list_ways(parse(case.make_values(1)))
    asked = {call.__name__ for call in ANSWERS} | {KEEP, BACK_TO, MARK, UNDO}
    assert {way.call for way in ways} == asked
