"""A transcript reads back what was written, by parts, and never the truth."""

import gc
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gists import gist, says
from numbered_images import NUM_SAMPLES, draw_images

import simsplit
from simsplit.errors import RunError
from simsplit.wires import tensor_file, transcript_writer
from simsplit.wires.facts import TranscriptFacts
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter
from simsplit.wires.truth import Truth


def test_packets_come_back_in_order_with_their_ids(wire: Path) -> None:
    opened = Transcript.open(wire)
    crossings = list(opened.crossings(legs=["smashed"]))
    assert torch.equal(torch.cat([each.packet.tensors[0] for each in crossings]), draw_images())
    assert [number for each in crossings for number in each.ids] == list(range(NUM_SAMPLES))
    assert [each.packet.step for each in crossings] == [0, 1, 2]
    summary = opened.summarise()
    assert summary.by_leg == {"smashed": 3, "features": 3, "labels": 3}
    assert (opened.facts.modality, opened.facts.classes) == ("images", 4)
    assert opened.facts.image is not None
    assert opened.facts.image.size == (4, 4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn],
)
def test_every_type_comes_back_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.arange(12).reshape(3, 4) % 2).to(dtype)
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts())
    writer.add("smashed", [values, values[0], values[0, 0]])
    writer.close()
    (packet,) = Transcript.open(tmp_path / "wire").packets()
    assert [each.dtype for each in packet.tensors] == [dtype] * 3
    assert [tuple(each.shape) for each in packet.tensors] == [(3, 4), (4,), ()]
    assert torch.equal(packet.tensors[0].view(torch.uint8), values.view(torch.uint8))


def test_files_are_those_of_the_library(wire: Path) -> None:
    """Others read and write packets with safetensors itself."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(wire / "packets-00000.safetensors")
    assert torch.equal(tensors["0.0"], draw_images()[:8])
    save_file({"all": draw_images()}, wire / "own.safetensors")
    lines = (wire / "packets.csv").read_text().splitlines()
    (wire / "packets.csv").write_text(f"{lines[0]}\n0,1,0,smashed,,,,own.safetensors,all,4,2,4 5\n")
    (crossing,) = Transcript.open(wire).crossings()
    assert torch.equal(crossing.packet.tensors[0], draw_images()[4:6])
    assert (crossing.phase, crossing.ids) == ("train", (4, 5))


def test_truth_is_found_by_ids(wire: Path) -> None:
    truth = Truth.open(wire)
    assert truth is not None
    inputs = truth.find_inputs([19, 3])
    assert torch.equal(torch.stack(inputs), draw_images()[[19, 3]])
    assert [int(label) for label in truth.find_labels([19, 3])] == [3, 3]
    with pytest.raises(RunError, match=gist("truth ... 20")):
        truth.find_inputs([20])


def test_packets_lead_to_no_truth(wire: Path) -> None:
    """Nothing that can be reached from packets is a path, a handle, or the truth's numbers."""
    truth = draw_images()
    opened = Transcript.open(wire)
    opened_files: list[str] = []
    before = os.open

    def spy(path: object, *args: object, **kwargs: object) -> int:
        opened_files.append(str(path))
        return before(path, *args, **kwargs)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", spy)
        packets = [packet for packet in opened.packets() if packet.leg != "smashed"]
    assert opened_files
    assert not any("truth" in each or "samples" in each for each in opened_files)
    seen: set[int] = set()
    reached: list[object] = list(packets)
    while reached:
        each = reached.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        assert not isinstance(each, Path | Transcript | Truth)
        assert not (isinstance(each, str) and str(wire) in each)
        assert not (isinstance(each, torch.Tensor) and each.shape == truth.shape)
        reached += gc.get_referents(each) if not isinstance(each, torch.Tensor) else []


def test_a_table_that_names_the_truth_is_refused(wire: Path) -> None:
    """A planted read: the packets' own table tries to bring the truth to an attack."""
    table = wire / "packets.csv"
    for name in ("truth/samples-00000.safetensors", "../wire/truth/samples-00000.safetensors"):
        table.write_text(
            table.read_text().splitlines()[0] + f"\n0,1,0,smashed,,,,{name},0.inputs,,,\n"
        )
        with pytest.raises(RunError, match=gist("samples-00000.safetensors ... folder")):
            list(Transcript.open(wire).packets())
    (wire / "packets-9.safetensors").symlink_to(wire / "truth" / "samples-00000.safetensors")
    table.write_text(
        table.read_text().splitlines()[0] + "\n0,1,0,smashed,,,,packets-9.safetensors,0.inputs,,,\n"
    )
    with pytest.raises(RunError, match=gist("packets-9.safetensors ... link")):
        list(Transcript.open(wire).packets())


def test_a_large_transcript_takes_the_memory_of_a_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts(), part=4 * 2**20)
    row = torch.zeros(64, 4096)  # a MiB
    for step in range(32):
        writer.add("smashed", [row], step=step, ids=range(64))
    writer.close()
    read: list[int] = []
    plain = tensor_file.TensorFile._read_at
    monkeypatch.setattr(
        tensor_file.TensorFile,
        "_read_at",
        lambda self, start, length: read.append(length) or plain(self, start, length),
    )
    opened = Transcript.open(tmp_path / "wire")
    tracemalloc.start()
    for number, packet in enumerate(opened.packets()):
        assert packet.step == number
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * row.nbytes < 32 * row.nbytes / 4
    assert max(read) == row.nbytes


def test_numbers_that_are_not_finite_are_left_out_and_counted(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts())
    writer.add("smashed", [torch.tensor([[1.0, float("inf")]])])
    writer.add("smashed", [torch.tensor([[1.0, 2.0]])], step=1)
    writer.close()
    opened = Transcript.open(tmp_path / "wire")
    assert [packet.step for packet in opened.packets()] == [1]
    assert opened.left_out == 1


@pytest.mark.parametrize("part", [1, 2**20])
def test_a_cap_ends_the_transcript_and_says_so(tmp_path: Path, part: int) -> None:
    """Also where what was taken before it is still held when it comes."""
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts(), most=1000, part=part)
    taken = [writer.add("smashed", [torch.zeros(100)], step=step) for step in range(5)]
    writer.close()
    assert taken == [True, True, False, False, False]
    opened = Transcript.open(tmp_path / "wire")
    assert len(list(opened.packets())) == 2
    assert opened.facts.status == "cut"
    assert "1000 B" in opened.facts.ended


def test_a_transcript_that_has_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    """What fits below the cap again would follow a gap, and the transcript would be complete."""
    for values in (300, 10):
        facts = TranscriptFacts()
        writer = TranscriptWriter(tmp_path / "wire", facts, most=1000, append=True)
        taken = [writer.add("smashed", [torch.zeros(each)]) for each in (10, values)]
        writer.close()
        assert taken == ([True, False] if values == 300 else [False, False])
    opened = Transcript.open(tmp_path / "wire")
    assert len(list(opened.packets())) == 1
    assert opened.facts.status == "cut"
    assert "1000 B" in opened.facts.ended


def test_a_full_disk_ends_the_transcript_and_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts(), part=1)
    writer.add("smashed", [torch.zeros(4)])

    def fill(path: Path, tensors: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transcript_writer, "write_tensors", fill)
    assert not writer.add("smashed", [torch.zeros(4)], step=1)
    assert not writer.add("smashed", [torch.zeros(4)], step=2)
    writer.close()
    opened = Transcript.open(tmp_path / "wire")
    assert [packet.step for packet in opened.packets()] == [0]
    assert opened.facts.status == "cut"
    assert "No space left" in opened.facts.ended
    assert not list((tmp_path / "wire").glob("*.partial"))


def test_a_recorder_that_was_killed_leaves_whole_parts(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts(), part=10)
    writer.add("smashed", [torch.zeros(4)])
    writer.add("smashed", [torch.zeros(1)], step=1)  # still held
    opened = Transcript.open(tmp_path / "wire")
    assert opened.facts.status == "recording"
    assert [packet.step for packet in opened.packets()] == [0]


def test_a_transcript_goes_on_where_it_was(tmp_path: Path) -> None:
    for step in range(2):
        writer = TranscriptWriter(tmp_path / "wire", TranscriptFacts(), append=True)
        writer.add("smashed", [torch.full((1,), step)], step=step)
        writer.add_truth([7, step], torch.tensor([9, step]))
        writer.close()
    values = [int(packet.tensors[0]) for packet in Transcript.open(tmp_path / "wire").packets()]
    assert values == [0, 1]
    truth = Truth.open(tmp_path / "wire")
    assert truth is not None
    assert truth.ids.tolist() == [0, 1, 7]
    with pytest.raises(RunError, match=gist("wire ... empty")):
        TranscriptWriter(tmp_path / "wire", TranscriptFacts())


def test_files_of_arrays_are_transcribed_without_unpickling(tmp_path: Path) -> None:
    pixels = draw_images().numpy()
    np.save(tmp_path / "z.npy", pixels)
    np.savez(tmp_path / "x.npz", pixels=pixels, other=pixels)
    wire = simsplit.transcribe(
        tmp_path / "wire", smashed=tmp_path / "z.npy", inputs=f"{tmp_path / 'x.npz'}:pixels"
    )
    (packet,) = wire.packets()
    assert torch.equal(packet.tensors[0], draw_images())
    torch.save(torch.zeros(3), tmp_path / "z.pt")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, parts in {
        "z.pt": "smashed ... z.pt ... safetensors",
        "objects.npy": "smashed ... objects.npy",
        "x.npz": "smashed ... x.npz ... pixels",
        "none.npy": "smashed ... none.npy",
    }.items():
        with pytest.raises(RunError, match=gist(parts)):
            simsplit.transcribe(tmp_path / "other", smashed=str(tmp_path / name))
    assert not (tmp_path / "other").exists()


def test_arrays_of_other_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=gist("smashed: 3 ... inputs: 2")):
        simsplit.transcribe(tmp_path / "wire", smashed=np.zeros((3, 2)), inputs=np.zeros((2, 2)))
    with pytest.raises(RunError, match=gist("smashed, features")):
        simsplit.transcribe(tmp_path / "wire", inputs=np.zeros((2, 2)))


def test_the_command_transcribes(
    tmp_path: Path, simsplit: Callable[..., tuple[int, str, str]]
) -> None:
    np.save(tmp_path / "z.npy", draw_images().numpy())
    arrays = ("--smashed", "z.npy", "--inputs", "z.npy")
    code, out, _ = simsplit("transcribe", "wire", *arrays, "--json")
    assert code == 0
    about = json.loads(out)
    assert (about["modality"], about["packets"], about["truth"]) == ("images", {"smashed": 1}, True)
    for words, parts in {
        ("--smashed", "z.pt"): "smashed: z.pt",
        ("--smashed", "z.npy", "--modality", "sounds"): "modality ... sounds ... images",
        ("--smashed", "z.npy", "--content", "smashed=spells"): "content.smashed",
        ("--smashed", "z.npy", "--most", "lots"): "most ... lots",
        (): "smashed, features",
    }.items():
        code, _, err = simsplit("transcribe", "other", *words)
        assert code == 2
        assert says(err, parts)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ids": [0, -1]}, "ids ... 0 ... -1"),
        ({"ids": [0, 2**53]}, "ids ... 2**53"),
        ({"ids": [0, 0.5]}, "ids ... whole ... 0.5"),
        ({"client": -1}, "client ... -1"),
    ],
)
def test_numbers_that_no_reader_takes_are_not_written(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunError, match=gist(said)):
        simsplit.transcribe(tmp_path / "wire", smashed=np.zeros((2, 3)), **fields)
    assert not (tmp_path / "wire").exists()
    wire = simsplit.transcribe(tmp_path / "array", smashed=np.zeros((2, 3)), ids=np.array([7, 4]))
    assert next(wire.rows()).ids == (7, 4)
    writer = TranscriptWriter(tmp_path / "own", TranscriptFacts())
    with pytest.raises(RunError, match=gist("round ... -2")):
        writer.add("smashed", [torch.ones(1)], round=-2)


def test_labels_that_name_no_class_are_transcribed(tmp_path: Path) -> None:
    labels = np.array([-1, -2])
    wire = simsplit.transcribe(tmp_path / "wire", smashed=np.zeros((2, 3)), labels=labels)
    assert wire.facts.classes is None


def test_content_of_an_unknown_leg_is_refused(tmp_path: Path) -> None:
    content: Any = {"smashd": "embeddings"}
    with pytest.raises(RunError, match=gist("content ... smashd ... smashed")):
        simsplit.transcribe(tmp_path / "wire", smashed=np.zeros((2, 3)), content=content)


@pytest.mark.parametrize("changed", [("leg", "legg"), (",", ";")])
def test_a_table_without_a_column_names_it(wire: Path, changed: tuple[str, str]) -> None:
    """Such a row had 'client: must be a whole number', whatever its client was."""
    table = wire / "packets.csv"
    table.write_text(table.read_text().replace(*changed))
    with pytest.raises(RunError, match=gist("line 2 ... no column ... columns: client, round")):
        Transcript.open(wire).summarise()
