"""The graph of imports: no circle, a room's `__init__` counted, and no file that knows too many.

`lint-imports` holds which rooms may use which, and that no files of a room import each other.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import simsplit

LIMIT = 25
"""How many other files of the package one file may import."""
BUSIER = {"simsplit.attacking.run_attacks": 27}
"""Files above the limit."""


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


ROOT = Path(simsplit.__file__).parent
BY_NAME = {
    "__init__.py": "the public names",
    "__main__.py": "asks whether plugins were imported, from above all rooms",
    "plugins/plugin_modules.py": "a user's modules",
}
"""Files in which a string names what is imported."""


def list_named_imports(source: str, modules: set[str]) -> Iterator[str]:
    """Yield what a file could import behind the graph's back: calls by name, and modules' names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in modules:
            yield str(node.value)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            fixed = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if called in ("import_module", "__import__") and not fixed:
                yield ast.unparse(node)


def test_no_file_imports_another_by_a_string(imports):
    modules = {*imports} - {"simsplit"}  # which is the command, too
    named = {}
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        own = {"simsplit." + name.removesuffix(".py").replace("/", ".")}
        if name not in BY_NAME and (many := [*list_named_imports(file.read_text(), modules - own)]):
            named[name] = many
    assert named == {}


@pytest.mark.parametrize(
    "planted",
    [
        'import_module("simsplit.report")',
        'HOME = "simsplit.report"\nimportlib.import_module(HOME)',
        '__import__("simsplit." + room)',
    ],
)
def test_imports_by_a_string_are_seen(planted):
    assert [*list_named_imports(planted, {"simsplit.report"})]
