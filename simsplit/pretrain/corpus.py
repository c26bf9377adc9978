"""Text to pretrain on: English that every Python installation carries, or files of the user's.

The default is the documentation that Python comes with (the topics of `help()`, and the standard
library's docstrings, read from its sources without importing them), each paragraph once. It differs
a little from one Python to the next, so whatever is made from it goes by its fingerprint.
"""

import ast
import gc
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for

_EDITION = 1
"""Of the rules by which text becomes documents; part of every fingerprint."""
_PASSED_OVER = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages"}
_PASSED_OVER |= {"test", "tests", "turtledemo"}
_SUFFIXES = (".txt", ".md", ".parquet")
_SENTENCE = 25
"""Characters below which a docstring's beginning says too little."""
_LEAST = 2_000
"""Characters that paragraphs of a file are gathered to."""
_MOST = 8_000
"""Characters above which a single paragraph is cut."""


def default_text() -> list[str]:
    """What Python documents of itself: a document per topic and per module."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    texts = [text for _, text in sorted(topics.items())]
    with _uncollected():
        texts += ["\n\n".join(_docstrings(file)) for file in _library()]
    return [document for text in texts if (document := _unseen(text, seen))]


def sentences_of(module: str) -> list[str]:
    """What the docstrings of a module of the standard library, or of a package, begin with."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [root / f"{module}.py"] if (root / f"{module}.py").is_file() else []
    if (root / module).is_dir():
        files = list(_modules(root / module))
    texts = [text for file in files for text in _docstrings(file)]
    firsts = (" ".join(_paragraphs(text)[0].split()) for text in texts if _paragraphs(text))
    return [first for first in dict.fromkeys(firsts) if len(first) >= _SENTENCE]


def text_from(path: Path) -> list[str]:
    """The documents of a .txt, .md or .parquet file, or of all such files below a folder."""
    documents = [document for file in _files(path) for document in _read(file)]
    if not documents:
        raise DataError(f"text: {path} has no text in it")
    return documents


def documents_of(path: Path | None) -> list[str]:
    """The documents below `path`, or the default text."""
    return default_text() if path is None else text_from(path)


def fingerprint(path: Path | None) -> str:
    """A digest of what `documents_of` would read, much sooner than reading it."""
    digest = hashlib.blake2b(str(_EDITION).encode(), digest_size=16)
    for file in _sources() if path is None else _files(path):
        digest.update(hashlib.blake2b(_bytes(file)).digest())
    return digest.hexdigest()


def held_out(documents: list[str], share: float, seed: int) -> tuple[list[str], list[str]]:
    """What to train on, and documents drawn for validation: that share of all characters."""
    if len(documents) < 2:
        raise DataError("text: too short; a part of it is held out, so give two pages or more")
    order = numpy_rng_for(seed, "pretrain", "held out").permutation(len(documents))
    lengths = np.array([len(documents[number]) for number in order]).cumsum()
    count = 1 + int(np.searchsorted(lengths, share * lengths[-1]))
    drawn = set(order[: min(count, len(documents) // 2)].tolist())
    kept = [text for number, text in enumerate(documents) if number not in drawn]
    return kept, [documents[number] for number in sorted(drawn)]


def _unseen(text: str, seen: set[str]) -> str:
    """The paragraphs of a text that no text before it had."""
    fresh = list(dict.fromkeys(part for part in _paragraphs(text) if part not in seen))
    seen.update(fresh)
    return "\n\n".join(fresh)


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip("\n")) if part.strip()]


def _sources() -> Iterator[Path]:
    """The files that the default text is made of."""
    root = Path(sysconfig.get_paths()["stdlib"])
    yield root / "pydoc_data" / "topics.py"
    yield from _library()


def _library() -> list[Path]:
    """The standard library's modules in a fixed order, tests and what is no library left out."""
    found = list(_modules(Path(sysconfig.get_paths()["stdlib"])))
    if not found:
        raise DataError(
            "text: this Python comes without its library's sources; name a text of your own"
        )
    return found


def _modules(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in _PASSED_OVER:
            yield from _modules(entry)
        elif entry.suffix == ".py":
            yield entry


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would go through every syntax tree again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _docstrings(file: Path) -> list[str]:
    """A module's docstrings, from the top down; none where this Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    # an escape may stand for half a character, which no text has
    return [text.encode("utf-8", "replace").decode() for text in _of_node(tree)]


def _of_node(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    own = ast.get_docstring(node)
    below = [
        text
        for child in node.body
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for text in _of_node(child)
    ]
    return [own, *below] if own else below


def _files(path: Path) -> list[Path]:
    """The files to read, in a fixed order."""
    allowed = ", ".join(_SUFFIXES)
    if not path.exists():
        raise DataError(f"text: {path} does not exist; name a file ({allowed}) or a folder of them")
    if path.is_dir():
        below = path.rglob("*")
        found = sorted(file for file in below if file.suffix in _SUFFIXES and file.is_file())
        if not found:
            raise DataError(f"text: no text in {path}; files must end in one of {allowed}")
        return found
    if path.suffix not in _SUFFIXES:
        raise DataError(f"text: {path} is no text that can be read; it must end in {allowed}")
    return [path]


def _read(file: Path) -> Iterable[str]:
    if file.suffix == ".parquet":
        return _rows(file)
    try:
        text = _bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"text: {file} is not UTF-8 ({error}); convert it first") from error
    return _gathered(text.replace("\r\n", "\n"))


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"text: {file} cannot be read ({error.strerror})") from error


def _gathered(text: str) -> Iterator[str]:
    """Paragraphs, joined to documents of some length, so that a part can be held out."""
    held: list[str] = []
    for part in (piece for whole in _paragraphs(text) for piece in _cut(whole)):
        held.append(part)
        if sum(map(len, held)) >= _LEAST:
            yield "\n\n".join(held)
            held = []
    if held:
        yield "\n\n".join(held)


def _cut(paragraph: str) -> list[str]:
    size = len(paragraph) if len(paragraph) <= _MOST else _LEAST
    return [paragraph[start : start + size] for start in range(0, len(paragraph), size)]


def _rows(file: Path) -> list[str]:
    """A document per row: all of its columns of strings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
        names = [field.name for field in schema if _is_text(field.type)]
        columns = pq.ParquetFile(file).read(names).to_pydict() if names else {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"text: {file} cannot be read ({error}); download it again") from error
    if not names:
        raise DataError(
            f"text: {file} has no column of strings; columns: {', '.join(schema.names)}"
        )
    rows = ("\n".join(filter(None, row)) for row in zip(*columns.values(), strict=True))
    return [row for row in rows if row.strip()]


def _is_text(kind: object) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))
