"""One name stands for one thing: no class name and no file name twice in the package."""

import ast
from collections import defaultdict
from pathlib import Path

import simsplit

PACKAGE = Path(simsplit.__file__).parent


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(file.relative_to(PACKAGE)))
    assert len(homes) > 500, "or it looked at nothing"
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_no_two_files_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        homes[file.name].append(str(file.relative_to(PACKAGE)))
    del homes["__init__.py"]
    assert len(homes) > 300, "or it looked at nothing"
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


VERBS = {"seed", "embed", "feed", "need", "proceed", "heed"}
"""Verbs that look like participles."""
IRREGULAR = {
    *("told", "said", "found", "held", "kept", "made", "drawn", "met", "meant", "sent", "given"),
    *("taken", "known", "shown", "seen", "left", "built", "lost", "chosen", "written"),
}
PLOTS = {"recovered", "attacked"}
"""Plots, which notebooks call by what they show: `figures.recovered(run)`."""


def test_no_function_is_named_by_a_participle() -> None:
    named, wrong = 0, []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            named += 1
            first = node.name.strip("_").split("_")[0]
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            looks = first in IRREGULAR or (first.endswith("ed") and first not in VERBS)
            if looks and not is_property and node.name not in PLOTS:
                wrong.append(f"{file.relative_to(PACKAGE)}: {node.name}")
    assert named > 4000, "or it looked at nothing"
    assert not wrong
