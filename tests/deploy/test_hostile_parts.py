"""A hostile client costs itself its place under every method, topology, aggregation, kind of data.

The cases come from the registries (`hostile_cases.py`), and none is missing
(`tests/contracts/test_hostile_cases.py`). Each runs through the real server on the loopback
address.
"""

from pathlib import Path

import pytest
from hostile import Stage, assert_nobody_noticed
from hostile_cases import CASES, HONEST, Case, choose_ways

pytestmark = pytest.mark.deploy
LOUD, SLY = 2, 1
QUICK = [(number, case) for number, case in CASES if not case.is_slow]
MORE = 6
"""Hostile clients of a slow case."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    made = Stage(tmp_path_factory.mktemp("hostile"), MORE + HONEST)
    for _, case in (CASES[0], CASES[-1]):  # so that memory has all that torch and Flower load
        made.run(case.read(made.folder, 0), made.folder / str(case), {})
    return made


@pytest.mark.parametrize(("number", "case"), QUICK, ids=str)
def test_nobody_notices(stage: Stage, number: int, case: Case, tmp_path: Path) -> None:
    given = case.read(stage.folder, LOUD + SLY)
    assert_nobody_noticed(stage, given, tmp_path, choose_ways(given, number, LOUD, SLY))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "case"), CASES, ids=str)
def test_nobody_notices_more(stage: Stage, number: int, case: Case, tmp_path: Path) -> None:
    given = case.read(stage.folder, MORE)
    ways = choose_ways(given, number, MORE - 2 * SLY, 2 * SLY)
    assert_nobody_noticed(stage, given, tmp_path, ways)
