"""One name stands for one thing: no class name twice in the package, no file name three times."""

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


def test_no_file_name_occurs_three_times() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        homes[file.name].append(str(file.relative_to(PACKAGE)))
    del homes["__init__.py"]
    assert {name: files for name, files in homes.items() if len(files) > 2} == {}
