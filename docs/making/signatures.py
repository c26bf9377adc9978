"""Signatures and docstrings of the package's classes and functions, as their source has them."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from making.markup import fence, plain


def function(made: Any) -> str:  # noqa: ANN401 - any function
    """Return a function's signature and docstring, as Markdown."""
    return f"{fence(_signature(made), 'py')}\n\n{format_docstring(made)}"


def members(owner: type) -> Iterator[tuple[str, str]]:
    """Yield each public method and property of a class: its name, and what is written of it."""
    for name, made in vars(owner).items():
        inner = _inner(made)
        if not name.startswith("_") and inner is not None and inspect.getdoc(inner):
            yield name, function(inner)


def fields(owner: type) -> Iterator[tuple[str, str, str]]:
    """Yield each documented field of a class: its name, its type and its docstring."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(node, ast.ClassDef)
    for made, after in pairwise(node.body):
        is_words = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_words and isinstance(made, ast.AnnAssign) and isinstance(made.target, ast.Name):
            words = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
            yield made.target.id, ast.unparse(made.annotation), words


def initial(owner: type) -> str:
    """Return the signature by which a class is called, if it has one of its own."""
    own = vars(owner).get("__init__")
    if not inspect.isfunction(own) or "__pydantic_fields__" in vars(owner):
        return ""
    try:
        return fence(_signature(own).replace("__init__", owner.__name__, 1), "py")
    except (OSError, TypeError, SyntaxError):  # made by dataclasses, so in no file
        return ""


def format_docstring(made: Any) -> str:  # noqa: ANN401 - a class or a function
    """Return a docstring as Markdown: arguments as a list, examples as a block."""
    text, _, examples = (inspect.getdoc(made) or "").partition("\n>>> ")
    text, _, arguments = text.partition("Args:\n")
    parts = [plain(text.strip())]
    if arguments:
        parts.append("\n".join(_argument(each) for each in _entries(arguments)))
    if examples:
        examples = examples.replace("# doctest: +SKIP", "").replace("...  \n", "")
        lines = [line.rstrip() for line in f">>> {examples}".splitlines()]
        parts.append(fence("\n".join(line for line in lines if line != "..."), "pycon"))
    return "\n\n".join(parts)


def _inner(made: Any) -> Any:  # noqa: ANN401
    if isinstance(made, property):
        return made.fget
    if isinstance(made, cached_property):
        return made.func
    if isinstance(made, classmethod | staticmethod):
        return made.__func__
    return made if inspect.isfunction(made) else None


def _signature(made: Any) -> str:  # noqa: ANN401
    """Return the line of `def`, with the annotations as they are written."""
    source = textwrap.dedent(inspect.getsource(made))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    given = [*node.args.posonlyargs, *node.args.args]
    if given and given[0].arg in ("self", "cls"):
        owned = node.args.posonlyargs or node.args.args
        del owned[0]
    if _is_property(node):
        return f"{node.name}{returns.replace(' ->', ':')}"
    arguments = ast.unparse(node.args).replace("=", " = ")
    line = f"{node.name}({arguments}){returns}"
    if len(line) <= 100:
        return line
    parts = [f"    {each}," for each in _split(arguments)]
    return "\n".join([f"{node.name}(", *parts, f"){returns}"])


def _is_property(node: ast.FunctionDef) -> bool:
    names = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
    return bool(names & {"property", "cached_property"})


def _split(arguments: str) -> Iterator[str]:
    """Yield arguments one by one; commas within brackets separate none."""
    depth, begin = 0, 0
    for at, mark in enumerate(arguments):
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            yield arguments[begin:at].strip()
            begin = at + 1
    yield arguments[begin:].strip()


def _entries(arguments: str) -> list[str]:
    """Return each argument with its lines joined: a deeper line goes on with the one before."""
    entries: list[str] = []
    for line in textwrap.dedent(arguments).splitlines():
        if line and not line.startswith(" "):
            entries.append(line)
        elif line.strip() and entries:
            entries[-1] += f" {line.strip()}"
    return entries


def _argument(entry: str) -> str:
    name, colon, words = entry.partition(": ")
    return f"- `{name}`: {plain(words)}" if colon else f"- {plain(entry)}"
