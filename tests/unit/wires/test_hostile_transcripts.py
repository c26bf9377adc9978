"""A transcript of others may hold anything: a sentence each, and nothing read outside of it."""

import json
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gists import gist

from simsplit.errors import SimsplitError
from simsplit.wires.array_rows import open_array
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

_SECRET = b"a file of somebody else's"
Mutation = Callable[[Path, random.Random], None]


def _choose_file(wire: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(each for each in wire.rglob("*") if each.is_file()))


def _flip_bytes(wire: Path, rng: random.Random) -> None:
    file = _choose_file(wire, rng)
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 20)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def _cut(wire: Path, rng: random.Random) -> None:
    file = _choose_file(wire, rng)
    os.truncate(file, rng.randrange(file.stat().st_size))


def _link(wire: Path, rng: random.Random) -> None:
    file = _choose_file(wire, rng)
    file.unlink()
    file.symlink_to(wire.parent / "secret")


def _make_folder(wire: Path, rng: random.Random) -> None:
    file = _choose_file(wire, rng)
    file.unlink()
    (os.mkfifo if rng.random() < 0.5 else os.mkdir)(file)


def _change_header(wire: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(wire.rglob("*.safetensors")))
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header[rng.choice(sorted(header))]
    field, value = rng.choice(
        [
            ("shape", [2**40, 2**40]),
            ("shape", [-1, 4]),
            ("shape", [1] * 5000),
            ("shape", "wide"),
            ("shape", [1.5]),
            ("shape", [True]),
            ("dtype", "C64"),
            ("dtype", None),
            ("dtype", ["F32"]),
            ("data_offsets", [0, 2**60]),
            ("data_offsets", [-8, 8]),
            ("data_offsets", [8, 0]),
            ("data_offsets", {}),
        ]
    )
    entry[field] = value
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def _claim_header(wire: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(wire.rglob("*.safetensors")))
    claim = rng.choice([2**63, 2**24, 10**12, 0, 3])
    rest = rng.choice([b"[" * 100_000, b"{}", b"null", b"\xff\xfe", file.read_bytes()[8:]])
    file.write_bytes(claim.to_bytes(8, "little") + rest)


def _change_cell(wire: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(wire.rglob("*.csv")))
    lines = [line.split(",") for line in file.read_text().splitlines()]
    row = rng.randrange(len(lines))
    values = [
        *("", "NaN", "-1", "1e9", "9" * 30, "٣", "inf", "0 0 0", "\x1b[2J", "\x00", '"', "=1+1"),
        *("../secret", str(wire.parent / "secret"), "truth", "/etc/passwd", ".", "a" * 200_000),
    ]
    lines[row][rng.randrange(len(lines[row]))] = rng.choice(values)
    file.write_text("\n".join(",".join(cells) for cells in lines) + "\n")


def _change_facts(wire: Path, rng: random.Random) -> None:
    file = wire / "transcript.yaml"
    text = rng.choice(
        [
            "version: 2\n",
            "legs: [smashed, sideways]\n",
            "legs: smashed\n",
            "modality: sounds\n",
            "image: {channels: .nan, size: [1, 2]}\n",
            "image: {channels: 999999999999, size: [4, 4]}\n",
            "image: {channels: 3, size: [-4, 4]}\n",
            "image: {channels: 3, size: [4, 1e12]}\n",
            "image: {channels: 3, size: [4, 4], std: [0, 1, 1]}\n",
            "image: {channels: 3, size: [4, 4], mean: [.inf, 1, 1]}\n",
            "knows: {model: ../secret}\n",
            "knows: {public: /etc}\n",
            "knows: {auxiliary: a/../../secret}\n",
            "unknown: 1\n",
            "classes: 1e400\n",
            "- 1\n",
            "",
            "a: &a [1]\nb: [*a, *a\n",
            "!!python/object/apply:os.system ['true']\n",
            "x: " + "[" * 500 + "]" * 500,
            "\x00",
            "content: {smashed: spells}\n",
        ]
    )
    file.write_text(text)


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bytes,
    _cut,
    _link,
    _make_folder,
    _change_header,
    _claim_header,
    _change_cell,
    _change_facts,
)


def _read_all(wire: Path) -> None:
    """Read everything that a transcript has, as an audit does."""
    opened = Transcript.open(wire)
    opened.summarise()
    for packet in opened.packets():
        for tensor in packet.tensors:
            assert tensor.nbytes < 2**20
            assert _SECRET[:8] not in bytes(tensor.flatten().view(torch.uint8).tolist()[:64])
    truth = Truth.open(wire)
    if truth is not None:
        few = truth.ids[:8].tolist()
        truth.find_inputs(few)
        truth.find_labels(few)


@pytest.mark.parametrize("part", range(10))
def test_300_mutated_transcripts(wire: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty mutations each: an error of ours in one line, bounded memory, nothing from outside."""
    content = {
        each.relative_to(wire): each.read_bytes() for each in wire.rglob("*") if each.is_file()
    }
    secret = wire.parent / "secret"
    secret.write_bytes(_SECRET)
    inodes: set[int] = set()
    plain = os.open

    def spy(*args: object, **kwargs: object) -> int:
        handle = plain(*args, **kwargs)  # type: ignore[arg-type]
        inodes.add(os.fstat(handle).st_ino)
        return handle

    sentences: list[str] = []
    for number in range(30):
        rng = random.Random(30 * part + number)
        wire = wire.parent / f"wire-{number}"
        for name, each in content.items():
            (wire / name).parent.mkdir(parents=True, exist_ok=True)
            (wire / name).write_bytes(each)
        MUTATIONS[number % len(MUTATIONS)](wire, rng)
        tracemalloc.start()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", spy)
            try:
                _read_all(wire)
            except SimsplitError as error:
                sentences.append(str(error))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 32 * 2**20
    assert len(sentences) >= 20
    for sentence in sentences:
        assert len(sentence.splitlines()) == 1
        assert sentence.isprintable()
        assert len(sentence) < 1000
        assert _SECRET.decode() not in sentence
    assert secret.stat().st_ino not in inodes


@pytest.mark.parametrize(
    "facts",
    [
        "version: 2\n",
        "image: {channels: 3, size: [-4, 4]}\n",
        "image: {channels: 3, size: [4, 4], std: [0, 1, 1]}\n",
        "image: {channels: 3, size: [4, 4], mean: [.inf, 1, 1]}\n",
        "knows: {model: ../secret}\n",
        "knows: {public: /etc}\n",
        "knows: {auxiliary: truth}\n",
        "legs: [smashed, sideways]\n",
    ],
)
def test_facts_that_no_recorder_writes_are_refused_by_field(wire: Path, facts: str) -> None:
    (wire / "transcript.yaml").write_text(facts)
    with pytest.raises(SimsplitError, match=gist(f"transcript.yaml: {facts.split(':')[0]}")):
        Transcript.open(wire)


@pytest.mark.filterwarnings("ignore:unclosed file")  # of numpy, for a file that is no zip file
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["array.npz", "array.npy"])
def test_arrays_that_are_damaged_are_a_sentence(tmp_path: Path, name: str) -> None:
    """A zip file may be cut, claim any size, or be what its name does not say."""
    file = tmp_path / name
    np.savez_compressed(tmp_path / "whole.npz", a=np.arange(1000.0))
    whole = (tmp_path / "whole.npz").read_bytes()
    file.write_bytes(whole[:60] + b"\xff" * 30 + whole[90:])
    with pytest.raises(SimsplitError, match=gist("guesses ... cannot read")):
        open_array(file, "guesses")
    file.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(SimsplitError, match=gist("guesses ... cannot read")):
        open_array(file, "guesses")
    claim = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000, 1000)}\n"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(claim).to_bytes(2, "little") + claim)
    with pytest.raises(SimsplitError, match=gist("guesses ... cannot read")):
        open_array(file, "guesses")
    with file.open("wb") as opened:
        np.save(opened, np.ones((3, 2)))
    assert open_array(file, "guesses").shape == (3, 2)
    with file.open("wb") as opened:
        np.save(opened, np.ones(3, np.longdouble))
    with pytest.raises(SimsplitError, match=gist("guesses ... numbers")):
        open_array(file, "guesses")
