"""The command line in an empty folder, modules of the user's in it, and real data."""

import os
import signal
import sys
from pathlib import Path

import pytest


@pytest.fixture
def simsplit(monkeypatch, capsys, tmp_path):
    """Runs the command line in an empty folder; gives exit code, stdout and stderr."""
    from simsplit.__main__ import main

    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["simsplit", *map(str, words)])
        code = 0
        heeded = signal.getsignal(signal.SIGTERM)
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        finally:
            signal.signal(signal.SIGTERM, heeded)
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module of the user's in the working folder; forgotten afterwards."""
    names = []

    def make(text, name="my_methods"):
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def real_data():
    """A folder of real data sets in parquet; see the skip's message for how to provide one."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("SIMSPLIT_DATA", beside))

    def find(name):
        if not (folder / name / "train.parquet").is_file():
            pytest.skip(f"no {name}/train.parquet in {folder}; set SIMSPLIT_DATA to a folder of it")
        return folder / name

    return find
