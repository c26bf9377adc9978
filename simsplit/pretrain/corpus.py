"""This module reads text to pretrain on: Python's own documentation, or a user's files.

The default is English that every Python installation has: the topics of `help()` and the standard
library's docstrings, parsed from its sources without importing them, each paragraph once. It
differs a little between versions of Python, so models made from it are named by its fingerprint.

It trains a tokenizer on the text too: byte-level BPE, which encodes and decodes any text exactly.
"""

import ast
import gc
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import DataError
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


_EDITION = 1
"""Version of the rules by which text becomes documents; it is part of every fingerprint."""
_PASSED_OVER = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages"}
_PASSED_OVER |= {"test", "tests", "turtledemo"}
_SUFFIXES = (".txt", ".md", ".parquet")
_SENTENCE = 25
"""Smallest number of characters of a sentence."""
_LEAST = 2_000
"""Smallest number of characters of a document, for which a file's paragraphs are joined."""
_MOST = 8_000
"""Largest number of characters of a paragraph; a longer one is cut into pieces."""
PAD, START, END = range(3)
"""Ids of the special tokens."""
SPECIAL = ("<pad>", "<s>", "</s>")
"""The special tokens, in the order of their ids."""
_AT_ONCE = 1_000
"""Number of documents that are encoded at once."""


def read_default_text() -> list[str]:
    """Return Python's own documentation: a document per topic and per module."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    texts = [text for _, text in sorted(topics.items())]
    collects = gc.isenabled()
    gc.disable()  # it would visit every syntax tree repeatedly
    try:
        texts += ["\n\n".join(_read_docstrings(file)) for file in _list_library()]
    finally:
        if collects:
            gc.enable()
    return [document for text in texts if (document := _keep_unseen(text, seen))]


@cache
def read_sentences(module: str) -> tuple[str, ...]:
    """Return the first paragraphs of the docstrings of a standard library's module or package.

    They are parsed once in a process: a board's or a sweep's cells read the same ones.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [root / f"{module}.py"] if (root / f"{module}.py").is_file() else []
    if (root / module).is_dir():
        files = list(_list_modules(root / module))
    every = (_split_paragraphs(text) for file in files for text in _read_docstrings(file))
    firsts = (" ".join(paragraphs[0].split()) for paragraphs in every if paragraphs)
    return tuple(first for first in dict.fromkeys(firsts) if len(first) >= _SENTENCE)


def read_documents(path: Path | None) -> list[str]:
    """Read the documents of a .txt, .md or .parquet file, or of all such files below a folder.

    Without a path, read the default text.
    """
    if path is None:
        return read_default_text()
    documents = [document for file in _list_files(path) for document in _read(file)]
    if not documents:
        raise DataError(f"text: {path} has no text; name another file or folder")
    return documents


def compute_fingerprint(path: Path | None) -> str:
    """Return a digest of what `read_documents` would read, without parsing it."""
    return _digest_default_text() if path is None else _digest(_list_files(path))


@cache
def _digest_default_text() -> str:
    """Return the digest of Python's own documentation, which does not change in a process."""
    return _digest(_list_sources())


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(str(_EDITION).encode(), digest_size=16)
    for file in files:
        digest.update(hashlib.blake2b(_read_bytes(file)).digest())
    return digest.hexdigest()


def hold_out(documents: list[str], share: float, seed: int) -> tuple[list[str], list[str]]:
    """Draw `share` of the text for validation; return the documents kept and those drawn."""
    if len(documents) < 2:
        raise DataError("text: must have two documents or more, since a part is held out, got one")
    order = numpy_rng_for(seed, "pretrain", "held out").permutation(len(documents))
    lengths = np.array([len(documents[number]) for number in order]).cumsum()
    count = 1 + int(np.searchsorted(lengths, share * lengths[-1]))
    drawn = set(order[: min(count, len(documents) // 2)].tolist())
    kept = [text for number, text in enumerate(documents) if number not in drawn]
    return kept, [documents[number] for number in sorted(drawn)]


def _keep_unseen(text: str, seen: set[str]) -> str:
    """Return the paragraphs of a text that are not in `seen`, and add them to it."""
    fresh = list(dict.fromkeys(part for part in _split_paragraphs(text) if part not in seen))
    seen.update(fresh)
    return "\n\n".join(fresh)


def _split_paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip("\n")) if part.strip()]


def _list_sources() -> Iterator[Path]:
    """Yield the files that the default text is made of."""
    root = Path(sysconfig.get_paths()["stdlib"])
    yield root / "pydoc_data" / "topics.py"
    yield from _list_library()


def _list_library() -> list[Path]:
    """Return the standard library's modules in a fixed order, without tests and other packages."""
    modules = list(_list_modules(Path(sysconfig.get_paths()["stdlib"])))
    if not modules:
        raise DataError(
            "text: this Python comes without its library's sources; name a text of your own"
        )
    return modules


def _list_modules(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in _PASSED_OVER:
            yield from _list_modules(entry)
        elif entry.suffix == ".py":
            yield entry


def _read_docstrings(file: Path) -> list[str]:
    """Return a module's docstrings from top to bottom; none if this Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parsing warns of escapes that Python deprecates
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    # an escape may stand for half a surrogate pair, which cannot be encoded
    return [text.encode("utf-8", "replace").decode() for text in _collect_docstrings(tree)]


def _collect_docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[str]:
    own = ast.get_docstring(node)
    below = [
        text
        for child in node.body
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for text in _collect_docstrings(child)
    ]
    return [own, *below] if own else below


def _list_files(path: Path) -> list[Path]:
    """Return the files to read, in a fixed order; raise DataError if there are none."""
    allowed = ", ".join(_SUFFIXES)
    if not path.exists():
        raise DataError(f"text: {path} does not exist; name a file ({allowed}) or a folder of them")
    if path.is_dir():
        below = path.rglob("*")
        files = sorted(file for file in below if file.suffix in _SUFFIXES and file.is_file())
        if not files:
            raise DataError(f"text: no text in {path}; files must end in one of {allowed}")
        return files
    if path.suffix not in _SUFFIXES:
        raise DataError(f"text: {path} cannot be read; files must end in one of {allowed}")
    return [path]


def _read(file: Path) -> Iterable[str]:
    if file.suffix == ".parquet":
        return _read_rows(file)
    try:
        text = _read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"text: {file} is not UTF-8 ({error}); convert it first") from error
    return _join_paragraphs(text.replace("\r\n", "\n"))


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"text: {file} cannot be read ({error.strerror})") from error


def _join_paragraphs(text: str) -> Iterator[str]:
    """Yield documents of joined paragraphs, each of some length, so that a part can be held out."""
    joined: list[str] = []
    for part in (piece for whole in _split_paragraphs(text) for piece in _cut(whole)):
        joined.append(part)
        if sum(map(len, joined)) >= _LEAST:
            yield "\n\n".join(joined)
            joined = []
    if joined:
        yield "\n\n".join(joined)


def _cut(paragraph: str) -> list[str]:
    size = len(paragraph) if len(paragraph) <= _MOST else _LEAST
    return [paragraph[start : start + size] for start in range(0, len(paragraph), size)]


def _read_rows(file: Path) -> list[str]:
    """Return a document per row of a parquet file, made of all columns of strings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
        are_text = pa.types.is_string, pa.types.is_large_string
        names = [field.name for field in schema if any(each(field.type) for each in are_text)]
        columns = pq.ParquetFile(file).read(names).to_pydict() if names else {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"text: {file} cannot be read ({error}); download it again") from error
    if not names:
        raise DataError(
            f"text: {file} has no column of strings; columns: {', '.join(schema.names)}"
        )
    rows = ("\n".join(filter(None, row)) for row in zip(*columns.values(), strict=True))
    return [row for row in rows if row.strip()]


def train_tokenizer(documents: Sequence[str], vocabulary: int) -> "Tokenizer":
    """Train byte-level BPE of at most `vocabulary` tokens; encoding adds no special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_stream(tokenizer: "Tokenizer", documents: Sequence[str]) -> Tensor:
    """Encode all documents as one stream, each between its special tokens."""
    tokenizer.encode_special_tokens = True  # encode a document's own "<s>" as plain text
    parts: list[np.ndarray] = []
    for first in range(0, len(documents), _AT_ONCE):
        for encoded in tokenizer.encode_batch(documents[first : first + _AT_ONCE]):
            parts.append(np.array([START, *encoded.ids, END], dtype=np.int32))
    tokenizer.encode_special_tokens = False
    return torch.from_numpy(np.concatenate(parts))


def to_transformers(tokenizer: "Tokenizer", context: int) -> "PreTrainedTokenizerFast":
    """Convert a tokenizer to one of transformers, which can save and load it."""
    from transformers import PreTrainedTokenizerFast

    pad, start, end = SPECIAL
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=start,
        eos_token=end,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
