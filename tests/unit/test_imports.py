"""The graph of imports: no circle, a room's `__init__` counted, and no file that knows too many.

`lint-imports` holds which rooms may use which, and that no files of a room import each other.
"""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

LIMIT = 25
"""How many other files of the package one file may import."""
BUSIER = {"simsplit.attacking.run_attacks": 27}
"""Files above the limit, until the kinds of things that attacks recover are data."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each file of the package imports, inside functions and for type checkers included."""
    return _imports_of("simsplit")


def _imports_of(package: str) -> dict[str, set[str]]:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_no_files_import_each_other(imports):
    TopologicalSorter(imports).prepare()


def test_circles_through_type_checking_functions_and_init_are_seen(tmp_path, monkeypatch):
    package = tmp_path / "circling"
    package.mkdir()
    (package / "__init__.py").write_text("from circling import above\n")
    (package / "above.py").write_text("from circling import below\n")
    monkeypatch.syspath_prepend(tmp_path)
    for planted in (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circling.above import A\n",
        "def use():\n    from circling import above\n",
        "from circling import Thing\n",
    ):
        (package / "below.py").write_text("")
        TopologicalSorter(_imports_of("circling")).prepare()
        (package / "below.py").write_text(planted)
        with pytest.raises(CycleError):
            TopologicalSorter(_imports_of("circling")).prepare()


def test_no_file_imports_too_many_others(imports):
    counts = {name: len(results) for name, results in imports.items()}
    most = {name: count for name, count in counts.items() if count > BUSIER.get(name, LIMIT)}
    assert most == {}
