"""Docstrings of fields stand below their field: elsewhere a text documents nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simsplit

PACKAGE = Path(simsplit.__file__).parent
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FIELD = "class A:\n    x = 1\n"


def orphans(source: str) -> Iterator[int]:
    """Yield the lines of texts that are neither first in a body nor below an assignment."""
    for node in ast.walk(ast.parse(source)):
        bodies = (getattr(node, name, ()) for name in ("body", "orelse", "finalbody"))
        for body in (each for each in bodies if isinstance(each, list)):
            for before, here in zip([None, *body], body, strict=False):
                is_text = isinstance(here, ast.Expr) and isinstance(here.value, ast.Constant)
                if before is None and isinstance(node, OWNERS):
                    continue
                if is_text and not isinstance(before, ast.Assign | ast.AnnAssign):
                    yield here.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f'{FIELD}    """Of x."""\n', []),
        (f'{FIELD}    def f(self):\n        """Of f."""\n    """Of x."""\n', [5]),
        ('if True:\n    """Of nothing."""\n', [2]),
    ],
)
def test_what_an_orphan_is(source, lines):
    assert list(orphans(source)) == lines


def test_no_docstring_is_an_orphan():
    files = sorted(PACKAGE.rglob("*.py"))
    results = {file.name: list(orphans(file.read_text(encoding="utf-8"))) for file in files}
    assert {name: lines for name, lines in results.items() if lines} == {}
