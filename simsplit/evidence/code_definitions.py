"""A module of code as its definitions, each with the digest of its normalised syntax tree.

Only what a program does counts. Comments, formatting, docstrings, annotations, assertions and the
words of errors are left out, so that prose and types may change. What a definition uses is named
apart from it: a module that is renamed, or code that moves to another, changes no digest.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

PACKAGE = "simsplit"
Target = tuple[str, str]
"""A module and a name in it; an empty name: the module itself."""
_WORDLESS = ("annotation", "returns", "type_comment", "type_params", "ctx", "kind", "type_ignores")
"""Fields of syntax nodes that move no figure."""


@dataclass(frozen=True)
class Definition:
    """A function, class or value of a module."""

    digest: str
    """Of its normalised syntax tree."""
    uses: tuple[str, ...]
    """The names that it reads, each with the attribute that it takes of it: `text.score`."""
    bases: tuple[str, ...] = ()
    """Of a class: the names of its bases."""
    fields: tuple[str, ...] = ()
    """Of a class: the names in the annotations of its fields."""
    bare: str = ""
    """Of a class: its digest without its fields, whose values a scenario has for a config."""
    kinds: tuple[str, ...] = ()
    """Of a class: the values of its field `kind` in a scenario."""
    lists: bool = False
    """Whether it is no more than a list of other definitions, such as a registry."""


@dataclass(frozen=True)
class ModuleCode:
    """The definitions of a module, and what its imports name."""

    definitions: dict[str, Definition]
    loose: Definition
    """All statements that define nothing."""
    imports: dict[str, tuple[Target, ...]]
    """Local name -> where it comes from; functions may import two things by one name."""


def read_module(source: bytes) -> ModuleCode:
    """Parse the source of a module; raise SyntaxError for what is no Python."""
    named: dict[str, list[ast.stmt]] = {}
    loose: list[ast.stmt] = []
    body = ast.parse(source).body
    for statement in body:
        names = [*_list_defined(statement)]
        for name in names:
            named.setdefault(name, []).append(statement)
        if not names and not _is_idle(statement):
            loose.append(statement)
    definitions = {
        name: _define_class(statements[0])
        if isinstance(statements[0], ast.ClassDef)
        else _define(statements)
        for name, statements in named.items()
    }
    imports: dict[str, dict[Target, None]] = {}
    for local, target in _list_imports(body):
        imports.setdefault(local, {})[target] = None
    return ModuleCode(
        definitions, _define(loose), {name: tuple(each) for name, each in imports.items()}
    )


def digest_texts(texts: Iterable[str], size: int = 8) -> str:
    """Return the digest of texts in their order."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=size).hexdigest()


def _define(statements: Sequence[ast.stmt]) -> Definition:
    words: list[str] = []
    uses: dict[str, None] = {}
    for statement in statements:
        _write(statement, words, uses)
    lists = bool(statements) and all(map(_is_list, statements))
    return Definition(digest_texts(words), tuple(sorted(uses)), lists=lists)


def _define_class(node: ast.ClassDef) -> Definition:
    fields = [
        each
        for each in node.body
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in _list_names(each.annotation)
    ]
    annotations = [name for each in fields for name in _list_names(each.annotation)]
    rest = [each for each in node.body if each not in fields]
    bare = ast.ClassDef(node.name, node.bases, node.keywords, rest, node.decorator_list)
    bases = tuple(name for each in node.bases for name in _list_names(each))
    kinds = tuple(kind for each in fields for kind in _list_kinds(each))
    return replace(
        _define([node]),
        bases=bases,
        fields=tuple(dict.fromkeys(annotations)),
        bare=_define([bare]).digest,
        kinds=kinds,
    )


def _list_names(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def _list_defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (
            node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)
        )


def _is_idle(statement: ast.stmt) -> bool:
    """Return whether a statement moves nothing: an import, a docstring, imports for types."""
    return (
        isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Assert)
        or (isinstance(statement, ast.Expr) and _is_idle_value(statement.value))
        or _is_for_types(statement)
    )


def _is_idle_value(value: ast.expr) -> bool:
    """Return whether a value is prose, or calls what may do no more than end a run or warn."""
    return isinstance(value, ast.Constant) or _name_called(value).startswith("refuse")


def _name_called(node: ast.AST) -> str:
    """Return the name of the function that a node calls; empty for what calls none by its name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def _is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _is_list(statement: ast.stmt) -> bool:
    """Return whether a statement lists names: a dict of them, or a union of classes."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    value = statement.value
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(isinstance(v, ast.Name) for v in value.values)
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Name) and value.value.id == "Annotated"
    return _name_called(value) in ("map_kinds", "join_configs")


def _list_kinds(field: ast.AnnAssign) -> Iterator[str]:
    """Yield the values of a field `kind: Literal["sdar"]`."""
    is_kind = isinstance(field.target, ast.Name) and field.target.id == "kind"
    if is_kind and isinstance(field.annotation, ast.Subscript):
        for node in ast.walk(field.annotation.slice):
            if isinstance(node, ast.Constant):
                yield str(node.value)


def _list_imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Target]]:
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, (node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, (alias.name if alias.asname else first, "")
        elif not _is_for_types(node):
            waiting += ast.iter_child_nodes(node)


def _write(node: ast.AST, words: list[str], uses: dict[str, None]) -> None:
    """Write a node in words that no Python version changes, and note the names that it reads."""
    if isinstance(node, ast.stmt) and _is_idle(node):
        return
    if (name := _name_read(node)) is not None:
        uses[name] = None
        words.append(name)
        return
    words.append(type(node).__name__)
    if isinstance(node, ast.Raise):  # without the words: it ends what would have given a figure
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        node = ast.Raise(exc=error, cause=None)
    for field, value in ast.iter_fields(node):
        if field not in _WORDLESS and value is not None and value != []:
            words.append(f".{field}")
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    _write(each, words, uses)
                else:
                    words.append(repr(each))
    words.append(";")


def _name_read(node: ast.AST) -> str | None:
    """Return the name that a node reads, with the attribute that it takes of it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None
