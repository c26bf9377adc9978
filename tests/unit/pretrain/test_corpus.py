import sysconfig
from pathlib import Path

import pandas as pd
import pytest
from gists import says

from simsplit.errors import DataError
from simsplit.pretrain import corpus


@pytest.fixture(scope="module")
def default():
    return corpus.read_default_text()


@pytest.mark.slow
@pytest.mark.slow
def test_python_brings_more_than_a_megabyte_of_english(default):
    whole = "\n\n".join(default)
    assert len(whole.encode()) > 1_000_000
    assert len(default) > 200
    for known in ('The "assert" statement', "Return a list of", "Base class for"):
        assert known in whole
    letters = sum((each.isalpha() and each.isascii()) or each.isspace() for each in whole)
    assert letters / len(whole) > 0.75


@pytest.mark.slow
def test_it_is_the_same_whenever_it_is_read(default, monkeypatch):
    first = corpus._list_library()[:60]
    monkeypatch.setattr(corpus, "_list_library", lambda: first)
    again = corpus.read_default_text()
    assert len(again) > 100
    assert again == default[: len(again)]
    assert corpus.compute_fingerprint(None) == corpus.compute_fingerprint(None)


@pytest.mark.slow
def test_it_has_each_paragraph_once(default):
    paragraphs = [part for document in default for part in document.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))


def test_it_leaves_out_what_others_installed_and_tests():
    root = Path(sysconfig.get_paths()["stdlib"])
    rooms = {part for file in corpus._list_library() for part in file.relative_to(root).parts[:-1]}
    assert "email" in rooms
    assert rooms & {"site-packages", "dist-packages", "test", "idlelib", "__pycache__"} == set()


def test_a_python_without_sources_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="library's sources"):
        corpus.read_default_text()


def test_files_of_every_kind_are_read_in_order(tmp_path):
    (tmp_path / "b.md").write_text("# Zweite\n\nMit Umlauten: äöü", encoding="utf-8")
    (tmp_path / "a.txt").write_text("\ufefffirst\r\n\r\nand more", encoding="utf-8")
    (tmp_path / "deep").mkdir()
    rows = {"number": [1, 2, 3], "title": ["one", None, ""], "body": ["a\n\nb", "c", None]}
    pd.DataFrame(rows).to_parquet(tmp_path / "deep" / "c.parquet")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    expected = ["first\n\nand more", "# Zweite\n\nMit Umlauten: äöü", "one\na\n\nb", "c"]
    assert corpus.read_documents(tmp_path) == expected
    assert corpus.read_documents(tmp_path / "a.txt") == expected[:1]


def test_a_long_file_becomes_documents_that_lose_nothing(tmp_path):
    paragraphs = [f"paragraph {number} " + "word " * (number % 90) for number in range(200)]
    paragraphs.insert(50, "x" * 20_001)
    (tmp_path / "long.txt").write_text("\n\n".join(paragraphs))
    documents = corpus.read_documents(tmp_path / "long.txt")
    assert len(documents) > 20
    assert max(map(len, documents)) < 10_000
    assert "".join(documents).replace("\n", "") == "".join(paragraphs)


def test_the_fingerprint_follows_the_content_and_not_the_place(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("one")
    first = corpus.compute_fingerprint(tmp_path / "a.txt")
    assert corpus.compute_fingerprint(tmp_path / "other") == first
    (tmp_path / "a.txt").write_text("two")
    assert corpus.compute_fingerprint(tmp_path / "a.txt") != first
    assert corpus.compute_fingerprint(None) != first


def test_the_held_out_part_is_drawn_from_the_seed():
    documents = [f"document {number} " * 20 for number in range(400)]
    kept, out = corpus.hold_out(documents, 0.05, seed=0)
    assert sorted(kept + out) == sorted(documents)
    assert len(out) == pytest.approx(20, abs=2)
    assert corpus.hold_out(documents, 0.05, seed=0) == (kept, out)
    assert corpus.hold_out(documents, 0.05, seed=1)[1] != out
    assert [len(part) for part in corpus.hold_out(["a", "b"], 0.05, 0)] == [1, 1]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.txt", None, "none.txt ... .txt, .md, .parquet"),
        ("a.pdf", b"%PDF", "end ... .txt, .md, .parquet"),
        ("a.txt", b"\xff\xfe\x00", "a.txt is not UTF-8"),
        ("a.txt", b" \n\n ", "a.txt ... no text"),
        ("a.parquet", b"PAR1", "a.parquet ... read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        corpus.read_documents(tmp_path / name)
    assert says(str(caught.value), reason)


def test_folders_and_tables_without_text_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"files must.*\.txt"):
        corpus.read_documents(tmp_path)
    pd.DataFrame({"a": [1], "b": [2.0]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"strings.*a, b"):
        corpus.read_documents(tmp_path)
    with pytest.raises(DataError, match=r"two documents.*one"):
        corpus.hold_out(["one"], 0.05, 0)
