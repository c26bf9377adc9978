"""The package's graph of imports: no circles, and no file that knows too many others."""

from collections import Counter
from collections.abc import Mapping, Set

import grimp
import pytest

LIMIT = 25
"""How many other files of the package one file may import."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each file of the package imports, inside functions and for type checkers included."""
    graph = grimp.build_graph("simsplit", exclude_type_checking_imports=False, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def find_circles(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """Find the groups of files that import each other, directly or through others."""
    reached = {name: _reach(imports, name) for name in imports}
    circles = {
        tuple(sorted(other for other in found if name in reached.get(other, ())))
        for name, found in reached.items()
        if name in found
    }
    return [list(circle) for circle in sorted(circles)]


def _reach(imports: Mapping[str, Set[str]], start: str) -> set[str]:
    found, waiting = set(), [start]
    while waiting:
        for name in imports.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def test_no_files_import_each_other(imports):
    assert find_circles(imports) == []


def test_circles_are_found_however_long_and_beside_each_other():
    plain = {"a": {"b", "x"}, "b": {"c"}, "c": {"d"}, "d": set(), "x": {"y"}, "y": {"d"}}
    assert find_circles(plain) == []
    assert find_circles({**plain, "d": {"b"}, "y": {"x"}}) == [["b", "c", "d"], ["x", "y"]]


def test_a_planted_circle_is_found(imports):
    assert "simsplit.errors" in imports["simsplit.config"]
    planted = {**imports, "simsplit.errors": {"simsplit.config"}}
    assert find_circles(planted) == [["simsplit.config", "simsplit.errors"]]


def test_imports_for_type_checkers_and_inside_functions_are_counted(tmp_path, monkeypatch):
    package = tmp_path / "circling"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "above.py").write_text("from circling import below\n")
    (package / "below.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circling.above import A\n"
    )
    (package / "later.py").write_text("def use():\n    from circling import above\n")
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("circling", exclude_type_checking_imports=False, cache_dir=None)
    found = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert find_circles(found) == [["circling.above", "circling.below"]]
    assert found["circling.later"] == {"circling.above"}


def test_no_file_imports_too_many_others(imports):
    counts = Counter({name: len(found) for name, found in imports.items()})
    assert {name: count for name, count in counts.items() if count > LIMIT} == {}
