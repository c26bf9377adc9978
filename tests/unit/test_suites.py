"""Of dear tests each run takes a part: over the turns each of them once, and in `whole` all."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import suites

ROOT = Path(__file__).parents[2]
COSTS = {
    "tests/a.py::test_product": suites.Cost(3.0, 31),
    "tests/a.py::test_cheap": suites.Cost(0.1),
    "tests/a.py::test_too_dear": suites.Cost(3.0),
    "tests/b.py@trained": suites.Cost(1.0),
}
SUITE = suites.Suite(dear=0.5, most=2.0, seldom=21)


@dataclass(frozen=True)
class Item:
    nodeid: str
    fixturenames: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def iter_markers(self):
        return [SimpleNamespace(name=name) for name in self.marks]


PRODUCT = [Item(f"tests/a.py::test_product[{n}]") for n in range(30)]
CHEAP = [Item("tests/a.py::test_cheap"), Item("tests/a.py::test_without_a_line")]
SHARING = [Item(f"tests/b.py::test_{n}", ("trained", "tmp_path")) for n in range(4)]
ALWAYS = [Item("tests/a.py::test_product[vital]", marks=("always",))]
SELDOM = [Item(f"tests/c.py::test_{n}", marks=("slow",)) for n in range(42)]
TOO_DEAR = [Item("tests/a.py::test_too_dear")]
EVERY = [*PRODUCT, *CHEAP, *SHARING, *ALWAYS, *SELDOM, *TOO_DEAR]


def take(turn, suite=SUITE):
    taken, others = suites.choose(EVERY, suite, turn, COSTS)
    assert sorted(taken + others, key=EVERY.index) == EVERY
    return taken


def test_over_seven_turns_each_dear_test_is_taken_once_and_the_cheap_ones_always():
    turns = Counter(item for turn in range(7) for item in take(turn))
    assert {turns[item] for item in [*PRODUCT, *SHARING]} == {1}
    assert {turns[item] for item in [*CHEAP, *ALWAYS]} == {7}
    assert turns[TOO_DEAR[0]] == 0
    assert {len({*take(turn)} & {*PRODUCT}) for turn in range(7)} == {4, 5}


def test_tests_of_one_dear_fixture_are_taken_together():
    assert {len({*take(turn)} & {*SHARING}) for turn in range(7)} == {0, len(SHARING)}


def test_seldom_ones_have_turns_of_their_own():
    turns = [{*take(turn)} & {*SELDOM} for turn in range(21)]
    assert {len(each) for each in turns} == {2}
    assert set().union(*turns) == {*SELDOM}


def test_the_whole_suite_leaves_out_nothing():
    assert take(3, suites.SUITES["whole"]) == EVERY


def test_the_usual_suite_and_the_rest_are_all_tests_once():
    usual, rest = (suites.select(EVERY, name, 3, COSTS)[0] for name in ("usual", "rest"))
    assert rest
    assert sorted(usual + rest, key=EVERY.index) == EVERY


@pytest.mark.parametrize(
    ("named", "keyword", "suite"),
    [(False, "", "quick"), (True, "", "whole"), (False, "a", "whole")],
    ids=["all", "a file", "a keyword"],
)
def test_who_names_a_test_has_all_of_its_cases(named, keyword, suite):
    source = pytest.Config.ArgsSource
    option = SimpleNamespace(suite=None, turn=5, keyword=keyword)
    config = SimpleNamespace(option=option, args_source=source.ARGS if named else source.TESTPATHS)
    suites.settle(config)
    assert (option.suite, option.turn) == (suite, 5)


def test_the_commit_chooses_and_without_a_repository_the_first_part_is_taken(tmp_path):
    assert suites.read_commit(tmp_path) == 0


def test_costs_are_of_tests_and_fixtures_that_there_are():
    gone = [name for name in suites.read_costs() if not suites.is_there(name)]
    assert not gone, "python -m pytest --costs tests/unit/test_suites.py takes them out"
    assert not suites.is_there("tests/unit/test_suites.py::test_that_never_was")


def test_ci_runs_make_test_and_then_the_others():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == [
        "make test",
        "make test-all SUITE=rest",
    ]
    makefile = (ROOT / "Makefile").read_text()
    for target, suite in (("tests", "usual"), ("test-all", "$(or $(SUITE),whole)")):
        (line,) = re.findall(rf"^{target}:.*\n\t(.+)\n\n", makefile, re.M)
        assert line == f'$(PYTEST) -m "" --suite {suite}'
