"""A transcript of any size is audited by parts: reads are counted, and what is held is bounded."""

from pathlib import Path

import pytest
import torch
from gists import gist

import simsplit
from simsplit.auditing import recordings
from simsplit.auditing.recordings import TRAIN, list_steps, load_targets
from simsplit.errors import RunError
from simsplit.wires.facts import TranscriptFacts
from simsplit.wires.tensor_file import TensorFile
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter

WIDTH, BATCH, STEPS = 64, 50, 40
ROW = 4 * WIDTH


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty steps of training on two thousand samples: half a megabyte of smashed data."""
    path = tmp_path_factory.mktemp("large") / "wire"
    writer = TranscriptWriter(path, TranscriptFacts(modality="table"))
    rng = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        rows = torch.rand(BATCH, WIDTH, generator=rng)
        ids = range(step * BATCH, (step + 1) * BATCH)
        writer.add("smashed", [rows], step=step, ids=ids)
        writer.add_truth(ids, rows[:, :3].clone())
    writer.close()
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that is read."""
    counted: list[int] = []
    real = TensorFile._read_values

    def count(self, name, stored):
        counted.append(stored.nbytes)
        return real(self, name, stored)

    monkeypatch.setattr(TensorFile, "_read_values", count)
    return counted


def test_no_more_is_read_than_is_attacked_or_known(
    wire: Path, read: list[int], tmp_path: Path
) -> None:
    knows = {"pairs": 100}
    made = simsplit.audit(wire, tmp_path / "a", knows=knows, attacks=["ridge"], targets=10)
    assert (made.facts["targets"], made.facts["pairs"]) == (10, 100)
    smashed = [each for each in read if each % ROW == 0]
    # The targets, and whole packets of known inputs until there are 100.
    assert sum(smashed) <= (10 + 4 * BATCH) * ROW
    assert sum(read) < STEPS * BATCH * ROW / 4


def test_known_inputs_fit_in_their_memory(
    wire: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MOST_PAIR_BYTES", 70 * ROW)
    made = simsplit.audit(wire, tmp_path / "a", attacks=["ridge"], targets=10)
    assert made.facts["pairs"] == 70


@pytest.mark.parametrize(("latest", "first"), [(True, STEPS - 4), (False, 0)])
def test_a_part_of_the_steps_is_held_and_the_others_are_counted(
    wire: Path, latest: bool, first: int
) -> None:
    most = 4 * BATCH - (0 if latest else 1)
    listed = list_steps(Transcript.open(wire), TRAIN, 0, latest=latest, most=most)
    assert [each.rows[0].step for each in listed] == [*range(first, first + 4)]
    assert listed.left_out == (STEPS - 4) * BATCH


def test_what_is_left_out_is_noted(
    wire: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(list_steps.__kwdefaults__, "most", 5 * BATCH)
    made = simsplit.audit(wire, tmp_path / "a", attacks=["ridge"], targets=10)
    (note,) = [each for each in made.notes if "1,750" in each]
    assert "last 250 samples" in note


def test_of_a_large_packet_the_first_rows_are_read(tmp_path: Path, read: list[int]) -> None:
    rows = torch.arange(1000.0).view(500, 2)
    simsplit.transcribe(tmp_path / "w", smashed=rows, labels=torch.arange(500) % 2, batch_size=500)
    opened = Transcript.open(tmp_path / "w")
    (step,) = list_steps(opened, "targets", 0)
    step.ids = step.ids[:7]
    ((packet,),), misfits = load_targets(opened, [step])
    assert not misfits
    assert torch.equal(packet.tensors[0], rows[:7])
    assert sum(read) == 8 * 8, "and one row to see that it has one for each sample"


def test_rows_that_are_no_samples_are_not_cut(tmp_path: Path) -> None:
    """Two messages for each sample: the first three rows are no three samples."""
    writer = TranscriptWriter(tmp_path / "w", TranscriptFacts())
    writer.add("smashed", [torch.zeros(8, 2)], ids=range(4))
    writer.close()
    opened = Transcript.open(tmp_path / "w")
    (step,) = list_steps(opened, TRAIN, 0)
    step.ids = step.ids[:3]
    ((packet,),), misfits = load_targets(opened, [step])
    assert misfits == {"smashed"}
    assert len(packet.tensors[0]) == 8
    assert recordings.find_sample_legs([[packet]], [3]) == frozenset()


@pytest.mark.parametrize("count", [64, 48])
def test_rows_that_mix_samples_are_none_of_single_ones(tmp_path: Path, count: int) -> None:
    """Of 128 samples in 64 rows, 64 are attacked: as many, and not the same."""
    writer = TranscriptWriter(tmp_path / "w", TranscriptFacts())
    writer.add("smashed", [torch.randn(64, 2)], ids=range(128))
    writer.add_truth(range(128), torch.randn(128, 2))
    writer.close()
    with pytest.raises(RunError, match=gist("row ... each sample")):
        simsplit.audit(tmp_path / "w", tmp_path / "a", targets=count)
