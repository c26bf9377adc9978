"""Damaged run directories and checkpoints: every command ends, soon, with a sentence.

The damage is drawn anew in each run of these tests. SIMSPLIT_MUTATIONS_SEED repeats a draw, and
SIMSPLIT_MUTATIONS sets how many there are.
"""

import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import run_to_end, scenario
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("SIMSPLIT_MUTATIONS_SEED") or secrets.randbits(32))
TIMES = int(os.environ.get("SIMSPLIT_MUTATIONS") or 1)
SOON_S = 60
GIVEN: dict[str, Any] = {
    "data": {"train_samples": 60, "test_samples": 20, "auxiliary": 0.2},
    "clients": {"count": 3, "malicious": {"ids": [1], "poison": [{"kind": "label_flip"}]}},
    "method": [{"kind": "noise"}],
    "detectors": [{"kind": "cosine_mad", "signal": "payload"}],
    "attacks": [{"kind": "whitebox", "iterations": 2}],
    "targets": {"count": 2},
    "schedule": {"rounds": 2},
    "network": {"link": "wifi"},
}
ODD = (-1, 0, 2**63, 10**30, 0.5, float("nan"), float("inf"), True, None, "", "x\x1b[2J", [], {})
WORDS = ("-1", "nan", "1e400", "", "x", '"', "\n", ",", ":", "- ", "{", "[", "&a *a", "\x00", "\t")


@contextmanager
def ends_soon() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"hangs for {SOON_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SOON_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 5))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(WORDS).encode() + content[place:]


def shorten(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[place + rng.randrange(1, 40) :]


def change_cell(rng: random.Random, content: bytes) -> bytes:
    """Replace, drop or repeat what stands between two separators."""
    text = content.decode("utf-8", "replace")
    separator = rng.choice((",", "\n", ": "))
    parts = text.split(separator)
    place = rng.randrange(len(parts))
    parts[place : place + 1] = rng.choice(([], [rng.choice(WORDS)], [parts[place]] * 2))
    return separator.join(parts).encode()


def change_value(rng: random.Random, content: bytes) -> bytes:
    """Replace or drop a value of a JSON file."""
    try:
        values = json.loads(content)
    except ValueError:
        return change_cell(rng, content)
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in list(keys):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                collect(value[key])

    collect(values)
    there, key = rng.choice(places)
    if rng.random() < 0.3:
        del there[key]
    else:
        there[key] = rng.choice(ODD)
    return json.dumps(values).encode()


BYTES: tuple[Callable[[random.Random, bytes], bytes], ...]
BYTES = (cut, flip, insert, shorten, change_cell, change_value, change_value)


def damage(rng: random.Random, file: Path) -> str:
    """Damage a file, and return how."""
    kind = rng.random()
    if kind < 0.85:
        how = rng.choice(BYTES)
        file.write_bytes(how(rng, file.read_bytes()))
        return how.__name__
    file.unlink()
    if kind < 0.9:
        return "removed"
    if kind < 0.95:
        file.mkdir()
        return "a folder"
    if kind < 0.98:
        os.mkfifo(file)
        return "a pipe"
    file.symlink_to(file)
    return "a link to itself"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutations")
    given = scenario(**GIVEN)
    (folder / "given.yaml").write_text(given.yaml())
    run_to_end(given, folder / "run")
    return folder


def copy(whole: Path, folder: Path) -> None:
    """Make a folder a copy of `whole`; it stays, for it is the working folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(whole, folder, dirs_exist_ok=True)


@pytest.fixture
def call(simsplit, monkeypatch):
    """Runs a command; whatever it raises, a hang and another code are collected, and fail."""
    failed: list[str] = []

    class Once:
        """A clock of `watch`, by which it has watched long enough."""

        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

        def time(self) -> float:
            return time.time()

    monkeypatch.setattr("simsplit.terminal.watching.time", Once())

    def run(words: tuple[str, ...], about: str) -> None:
        try:
            with ends_soon():
                code, _, err = simsplit(*words)
        except BaseException:  # noqa: BLE001 - whatever it is, it must not be raised
            failed.append(f"{about}, {words}: {traceback.format_exc()}")
            return
        if code not in (0, 1, 2) or "Traceback" in err:
            failed.append(f"{about}, {words}: exit code {code}: {err}")

    yield run
    if failed:
        message = "\n".join([f"SIMSPLIT_MUTATIONS_SEED={SEED}: {len(failed)} failed", *failed])
        pytest.fail(message, pytrace=False)


READ = (("show", "run"), ("compare", "run"), ("watch", "run"), ("report", "run"))
RESUME = ("run", "given.yaml", "--out", "run", "--resume", "--set", "schedule.rounds=3", "-q")
FEW = ("--set", "iterations=2", "--set", "name=again")
RESTORE = (("export", "run", "--out", "out"), ("attack", "run", "--kind", "whitebox", "-q", *FEW))


@pytest.mark.filterwarnings("ignore")  # of libraries, about what they read
@pytest.mark.parametrize("part", range(4))
def test_a_damaged_run_directory(whole, call, tmp_path, part):
    rng = random.Random(f"{SEED} {part}")
    print(f"SIMSPLIT_MUTATIONS_SEED={SEED}")  # noqa: T201 - it repeats what has failed
    names = [
        file.relative_to(whole)
        for file in sorted((whole / "run").rglob("*"))
        if file.is_file() and file.suffix in (".json", ".csv", ".yaml", ".safetensors")
        if "checkpoints" not in file.parts
    ]
    for number in range(16 * TIMES):
        copy(whole, tmp_path)
        name = rng.choice(names)
        about = f"{part}.{number}: {name}, {damage(rng, tmp_path / name)}"
        call(rng.choice(READ), about)
        # What a damaged scenario asks for may be any amount of work; it is validated elsewhere.
        call(rng.choice((RESUME, RESUME, *RESTORE) if name.suffix != ".yaml" else (RESUME,)), about)


def change_tensors(rng: random.Random, folder: Path) -> str:
    """Change a checkpoint's tensors, and what its facts say of them."""
    file = folder / "state.safetensors"
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    how = rng.choice(("drop", "reshape", "retype", "rename"))
    tensor = tensors.pop(name)
    if how == "reshape":
        tensors[name] = torch.zeros(7, 3, dtype=tensor.dtype)
    elif how == "retype":
        tensors[name] = tensor.to(torch.int8)
    elif how == "rename":
        tensors["client/x/" + name] = tensor
    save_file(tensors, file)
    facts = json.loads((folder / "state.json").read_text())
    digest = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    facts["tensors"] = {"bytes": file.stat().st_size, "blake2b": digest}
    (folder / "state.json").write_text(json.dumps(facts))
    return f"{how} {name}"


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_checkpoint(whole, call, tmp_path):
    rng = random.Random(f"{SEED} checkpoints")
    print(f"SIMSPLIT_MUTATIONS_SEED={SEED}")  # noqa: T201 - it repeats what has failed
    for number in range(16 * TIMES):
        copy(whole, tmp_path)
        newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
        if rng.random() < 0.3:
            how = change_tensors(rng, newest)
        else:
            file = rng.choice(sorted(newest.iterdir()))
            how = f"{file.name}, {damage(rng, file)}"
        call(rng.choice((RESUME, RESUME, *RESTORE)), f"{number}: {how}")
