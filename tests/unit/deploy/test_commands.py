"""The commands of a deployment: what they say to a user who makes a mistake."""

import importlib.util
import os
import platform
import sys

import pytest
from builders import TINY
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.deploy import commands
from simsplit.deploy.keys import make_keys
from simsplit.errors import RunError, SimsplitError
from simsplit.results import CHECKPOINTS
from simsplit.results.locking import lock
from simsplit.scenario import parse
from simsplit.scenario.files import merge


def invoke(*words: str) -> BaseException | None:
    return CliRunner().invoke(app, list(words)).exception


@pytest.fixture
def file(tmp_path):
    given = parse(merge(TINY, {"cohort": {"dropout": 0.5}}))
    (tmp_path / "scenario.yaml").write_text(given.yaml())
    return str(tmp_path / "scenario.yaml")


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "FILE", "--listen", "127.0.0.1:0", "--keys", "keys"),
        ("join", "127.0.0.1:1", "--client", "0", "--keys", "keys", "--approve", "FILE"),
        ("deploy", "check", "127.0.0.1:1", "--client", "0", "--keys", "keys", "--approve", "FILE"),
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_deployed_is_refused_by_path_on_both_sides(file, words):
    error = invoke(*(file if word == "FILE" else word for word in words))
    assert str(error).startswith("scenario.cohort.dropout: ")


def test_keys_that_are_not_there(file, tmp_path):
    words = ("--client", "0", "--keys", str(tmp_path), "--approve", file)
    error = invoke("join", "127.0.0.1:1", *words, "--set", "cohort.dropout=0")
    assert "simsplit deploy keys" in str(error)


@pytest.mark.parametrize("more", [(), ("--resume",)], ids=str)
def test_a_second_join_in_one_folder(file, tmp_path, more):
    make_keys(tmp_path / "keys", 3, 1)
    words = ("--client", "0", "--keys", str(tmp_path / "keys"), "--approve", file)
    site = tmp_path / "site"
    with lock(site):
        error = invoke(
            *(
                "join",
                "127.0.0.1:1",
                "--patience",
                "0",
                *words,
                "--set",
                "cohort.dropout=0",
                "--out",
                str(site),
            ),
            *more,
        )
    assert isinstance(error, RunError)
    assert f"process {os.getpid()} on {platform.node()} (" in str(error)
    assert not (site / CHECKPOINTS).exists()


def test_a_missing_package(monkeypatch, tmp_path):
    known = importlib.util.find_spec
    monkeypatch.setattr(commands, "find_spec", lambda n: None if n == "grpc" else known(n))
    error = invoke("deploy", "keys", str(tmp_path / "keys"), "--clients", "1")
    assert isinstance(error, SimsplitError)
    assert "needs grpc" in str(error)
    assert "pip install '.[deploy]'" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "FILE", "--listen", "127.0.0.1:1", "--keys", "keys"),
        ("join", "127.0.0.1:1", "--client", "0", "--keys", "keys", "--approve", "FILE"),
        ("deploy", "check", "127.0.0.1:1", "--client", "0", "--keys", "keys", "--approve", "FILE"),
    ],
    ids=["serve", "join", "check"],
)
def test_a_missing_package_is_named_before_it_is_imported(words, monkeypatch, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("name: own\n")
    for name in [each for each in sys.modules if each.startswith(("simsplit.deploy.", "cryptogr"))]:
        if name != commands.__name__:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    error = invoke(*(str(file) if word == "FILE" else word for word in words))
    assert isinstance(error, SimsplitError)
    assert "pip install '.[deploy]'" in str(error)
