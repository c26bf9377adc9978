"""Which dear tests a run of the suite takes: all, or a seventh that the commit chooses.

`costs.txt` names what costs more than 50 ms of processor: a test function with all of its cases, or
a fixture that a file's tests share; each with its seconds and its cases. A suite leaves out most of
what is dear for it, and every commit takes another part. CONTRIBUTING.md says what the suites are
for.
"""

import math
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

SELDOM = {"slow", "ray", "notebook", "deploy"}
COSTS = Path(__file__).parent / "costs.txt"
LEAST = 0.05
"""Seconds of processor from which on a test has a line in `costs.txt`."""


@dataclass(frozen=True)
class Cost:
    """Seconds of processor of a test's cases together."""

    seconds: float
    cases: int = 1


Costs = Mapping[str, Cost]
"""By `file::test` or `file@fixture`."""


@dataclass(frozen=True)
class Suite:
    """Which tests are dear, in seconds of processor, and one in how many of them is taken."""

    dear: float = math.inf
    """Of all cases of a test together."""
    most: float = math.inf
    """Of one case; none beyond is taken."""
    share: int = 7
    seldom: int = 1
    """One in how many is taken of the tests that are marked so."""


SUITES = {
    "quick": Suite(dear=0.05, most=1.0),  # pyproject.toml leaves out all seldom ones
    "usual": Suite(dear=6.0, seldom=21),
    "whole": Suite(),
}
REST = "rest"
"""What the usual suite of the same turn leaves out: CI runs each test once."""
NEVER = 0
"""The share of a test that a suite never takes."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite", choices=[*SUITES, REST], help="quick if no file and no -k, else whole"
    )
    parser.addoption("--turn", type=int, help="which of the dear tests; by default the commit's")
    parser.addoption("--costs", action="store_true", help="write costs.txt anew, for what ran")


def settle(config: pytest.Config) -> None:
    """Choose the suite and the turn where no option does; workers get the options with these."""
    option = config.option
    if option.suite is None:
        named = config.args_source is pytest.Config.ArgsSource.ARGS or option.keyword
        option.suite = "whole" if named else "quick"
    if option.turn is None:
        option.turn = read_commit(config.rootpath)


def read_commit(root: Path) -> int:
    """Return a number from the commit's digest; 0 outside a repository, as in an archive."""
    words = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout[:8], 16)


def read_costs() -> dict[str, Cost]:
    """Return what `costs.txt` says."""
    lines = (line.split() for line in COSTS.read_text().splitlines())
    return {name: Cost(float(seconds), int(cases)) for seconds, cases, name in lines}


def select(
    items: list[pytest.Item], name: str, turn: int, costs: Costs
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that the suite of this name takes, and the others."""
    if name == REST:
        taken, others = choose(items, SUITES["usual"], turn, costs)
        return others, taken
    return choose(items, SUITES[name], turn, costs)


def choose(
    items: list[pytest.Item], suite: Suite, turn: int, costs: Costs
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that a suite takes, and the others. Tests of one fixture stay together."""
    numbers: defaultdict[int, dict[str, int]] = defaultdict(dict)
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        unit = find_unit(item, suite, costs)
        share = find_share(item, unit, suite, costs)
        # Counted one after another, so that each turn has its part of every file's cases.
        number = numbers[share].setdefault(unit, len(numbers[share]))
        taken = share != NEVER and number % share == turn % share
        parts[not taken].append(item)
    return parts


def find_unit(item: pytest.Item, suite: Suite, costs: Costs) -> str:
    """Return what this test is taken or left out with: a dear fixture of its file, or itself."""
    file = item.nodeid.partition("::")[0]
    shared = (f"{file}@{name}" for name in getattr(item, "fixturenames", ()))
    return next((s for s in shared if s in costs and costs[s].seconds > suite.dear), item.nodeid)


def find_share(item: pytest.Item, unit: str, suite: Suite, costs: Costs) -> int:
    """Return in how many turns this test is taken once."""
    marks = {mark.name for mark in item.iter_markers()}
    if marks & SELDOM:
        return suite.seldom
    if "always" in marks:
        return 1
    known = [costs[name] for name in (name_test(item.nodeid), unit) if name in costs]
    if any(cost.seconds / cost.cases > suite.most for cost in known):
        return NEVER
    return suite.share if any(cost.seconds > suite.dear for cost in known) else 1


def name_test(nodeid: str) -> str:
    """Return a test's name without its case.

    >>> name_test("tests/test_a.py::test_b[c-d]")
    'tests/test_a.py::test_b'
    """
    return nodeid.partition("[")[0]


class Meter:
    """Measures seconds of processor by test and by shared fixture, child processes included."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}
        self._inside = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Run a scenario before the first test, which would pay for seconds of imports."""
        from builders import run_to_end, scenario

        with TemporaryDirectory() as folder:
            run_to_end(scenario(schedule={"rounds": 1}), Path(folder) / "run")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        began, self._inside = read_clock(), 0.0
        result = yield
        self._add(name_test(item.nodeid), Cost(read_clock() - began - self._inside))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[Any]:
        began, before = read_clock(), self._inside
        result = yield
        if fixturedef.scope in ("module", "class"):
            took = read_clock() - began - (self._inside - before)
            self._add(f"{request.node.nodeid.partition('::')[0]}@{fixturedef.argname}", Cost(took))
            self._inside += took
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's figures to the process that writes them."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["costs"] = {n: (cost.seconds, cost.cases) for n, cost in self.costs.items()}
        else:
            write_costs(self.costs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, (seconds, cases) in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._add(name, Cost(seconds, cases))

    def _add(self, name: str, more: Cost) -> None:
        had = self.costs.get(name, Cost(0.0, 0))
        self.costs[name] = Cost(had.seconds + more.seconds, had.cases + more.cases)


def read_clock() -> float:
    return sum(os.times()[:4])


def is_there(name: str) -> bool:
    """Return whether a file has such a test, or uses such a fixture: tests are renamed."""
    file, _, last = name.replace("@", "::").partition("::")
    path = COSTS.parents[1] / file
    wanted = last if "@" in name else f"def {last.split('::')[-1]}("
    return path.is_file() and wanted in path.read_text()


def write_costs(measured: Costs) -> None:
    """Write what was measured over what stood there, which stays for tests that did not run."""
    costs = {name: cost for name, cost in {**read_costs(), **measured}.items() if is_there(name)}
    lines = [
        f"{cost.seconds:6.2f} {cost.cases:4} {name}"
        for name, cost in sorted(costs.items())
        if cost.seconds >= LEAST
    ]
    COSTS.write_text("\n".join([*lines, ""]))
