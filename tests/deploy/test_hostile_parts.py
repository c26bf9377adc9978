"""A hostile client costs itself its place under every method, topology, aggregation, kind of data.

The cases come from the registries (`hostile_cases.py`), and none is missing
(`tests/contracts/test_hostile_cases.py`). Each runs through the real server on the loopback
address.
"""

from pathlib import Path

import pytest
from hostile import Stage, assert_nobody_noticed
from hostile_cases import HONEST, QUICK, SLOW, Case, count_hostile, plan_ways

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    most = max(sum(count_hostile(case)) for case in SLOW)
    made = Stage(tmp_path_factory.mktemp("hostile"), most + HONEST)
    for case in (QUICK[0], QUICK[-1]):  # so that memory has all that torch and Flower load
        made.run(case.read(made.folder, 0), made.folder / str(case), {})
    return made


def assert_it_costs_nobody_else(stage: Stage, case: Case, out: Path) -> None:
    given = case.read(stage.folder, sum(count_hostile(case)))
    assert_nobody_noticed(stage, given, out, plan_ways()[str(case)])


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_nobody_notices(stage: Stage, case: Case, tmp_path: Path) -> None:
    assert_it_costs_nobody_else(stage, case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_nobody_notices_more(stage: Stage, case: Case, tmp_path: Path) -> None:
    assert_it_costs_nobody_else(stage, case, tmp_path)
