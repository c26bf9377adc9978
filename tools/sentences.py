"""The sentences of simsplit in one list, tests/golden/sentences.txt, and tests that repeat them.

    python tools/sentences.py --write    write the list anew from the code
    python tools/sentences.py --frozen   show the strings of tests that repeat a sentence

A sentence is a string of the package with two ordinary words in a row, or a docstring that is shown
as help: of a command, a config or a config's field. Assertions and other docstrings are for
developers. A test that repeats a sentence freezes it: the words cannot be improved in one place.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "sentences.txt"
HEADING = "# The sentences of simsplit, by file. Written by: python tools/sentences.py --write"
WORD = r"(?<![\w./'\\[-])[a-z]+(?![\w/'\\-]|\.\w)"
PHRASE = re.compile(rf"{WORD}(?:[,;]? {WORD})+")
FROZEN = 4  # words in a row: fewer are in many sentences by chance
Found = Iterator[tuple[str, list[ast.AST]]]


@cache
def write_list() -> str:
    """Return the list of sentences as it follows from the code."""
    blocks = [HEADING]
    for file in sorted((ROOT / "simsplit").rglob("*.py")):
        if sentences := dict.fromkeys(list_sentences(file)):
            blocks.append("\n  ".join([file.relative_to(ROOT).as_posix(), *sentences]))
    return "\n\n".join(blocks) + "\n"


def list_sentences(file: Path) -> Iterator[str]:
    """Yield the sentences of a file, in the order of its lines."""
    for text, owners in read_strings(file):
        if isinstance(owners[0], ast.Expr):
            shown = is_help(owners[1], commands="commands" in (file.parent.name, file.stem))
        else:
            shown = not any(isinstance(each, ast.Assert) for each in owners)
        if shown and PHRASE.search(text):
            yield " ".join(text.split())


def is_help(owner: ast.AST, *, commands: bool) -> bool:
    """Return whether users see a docstring of `owner`: a command's, a config's, a field's."""
    if isinstance(owner, ast.ClassDef):
        return any("Config" in ast.unparse(base) for base in owner.bases)
    return commands and isinstance(owner, ast.FunctionDef)


def list_frozen(folder: Path = ROOT / "tests") -> list[str]:
    """List the strings of tests that repeat words of a sentence."""
    known = {words for line in write_list().splitlines() for words in read_runs(line)}
    return [
        f"{file.relative_to(folder).as_posix()}: {text!r}"
        for file in sorted(folder.rglob("*.py"))
        for text, owners in read_strings(file)
        if not is_label(owners[0]) and not known.isdisjoint(read_runs(text.replace("\\", "")))
    ]


def is_label(owner: ast.AST) -> bool:
    """Return whether a string below `owner` is a docstring, an assertion's text or a case's id."""
    return isinstance(owner, ast.Expr | ast.Assert) or getattr(owner, "arg", None) == "id"


def read_runs(text: str) -> Iterator[tuple[str, ...]]:
    """Read every run of as many ordinary words as freeze a sentence."""
    for phrase in PHRASE.findall(text):
        words = re.findall(r"[a-z]+", phrase)
        yield from zip(*(words[start:] for start in range(FROZEN)), strict=False)


def read_strings(file: Path) -> Found:
    """Read each string of a file with the nodes that it stands in, the innermost first."""
    return visit(ast.parse(file.read_text(encoding="utf-8")), [])


def visit(node: ast.AST, owners: list[ast.AST]) -> Found:
    """Read each string below a node; an f-string is one string, with {name} for placeholders."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value, owners
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.JoinedStr):
        yield "".join(map(read_piece, node.values)), owners
        children = (piece for piece in node.values if isinstance(piece, ast.FormattedValue))
    for child in children:
        yield from visit(child, [node, *owners])


def read_piece(piece: ast.expr) -> str:
    """Read a piece of an f-string: its text, or the last name in a placeholder."""
    if isinstance(piece, ast.Constant):
        return str(piece.value)
    nodes = list(ast.walk(piece))
    owners = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in nodes if node not in owners]
    return f"{{{next(filter(None, reversed(names)), '')}}}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text(write_list(), encoding="utf-8")
    elif sys.argv[1:] == ["--frozen"]:
        print(*list_frozen(), sep="\n")  # noqa: T201 - a tool's output
    else:
        sys.exit(__doc__)
