"""A challenge gives away no truth, and its maker cannot change the truth afterwards."""

import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gists import gist, says
from numbered_images import NUM_SAMPLES, draw_images

from simsplit.attacking import sealed_challenges
from simsplit.attacking.sealed_challenges import make_challenge, score_challenge
from simsplit.errors import RunError
from simsplit.wires import array_rows
from simsplit.wires.facts import check_facts
from simsplit.wires.transcribing import transcribe
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter
from simsplit.wires.truth import Truth


@pytest.fixture
def challenge(tmp_path: Path) -> Path:
    """Return a challenge whose samples were rows 100, 99, ... of some public data."""
    transcribe(
        tmp_path / "wire",
        smashed=torch.ones(NUM_SAMPLES, 3),
        inputs=draw_images(),
        labels=torch.arange(NUM_SAMPLES) % 4,
        ids=range(100, 100 - NUM_SAMPLES, -1),
        batch_size=7,
    )
    make_challenge(tmp_path / "wire", tmp_path / "challenge")
    return tmp_path / "challenge"


def test_what_is_published_has_no_truth_and_new_ids(challenge: Path) -> None:
    wire = Transcript.open(challenge / "wire")
    ids = [each for row in wire.rows() for each in row.ids]
    assert ids == list(range(NUM_SAMPLES))
    assert Truth.open(challenge / "wire") is None
    published = b"".join(each.read_bytes() for each in challenge.rglob("*") if each.is_file())
    assert draw_images()[5].numpy().tobytes() not in published
    key = (challenge.parent / "challenge-truth" / "key").read_text()
    assert key.encode() not in published


def test_guesses_are_scored_in_the_order_of_ids(challenge: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(NUM_SAMPLES) % 4)
    scored = score_challenge(challenge, str(tmp_path / "labels.npy"), what="labels")
    assert (scored.value, scored.floor, scored.samples) == (1.0, 0.25, NUM_SAMPLES)
    np.save(tmp_path / "labels.npy", np.arange(NUM_SAMPLES) % 4 * (np.arange(NUM_SAMPLES) < 10))
    assert score_challenge(challenge, str(tmp_path / "labels.npy"), what="labels").value < 1
    np.save(tmp_path / "images.npy", draw_images().numpy())
    scored = score_challenge(challenge, str(tmp_path / "images.npy"))
    assert (scored.figure, scored.value) == ("mse", 0)
    assert scored.floor > 0.01
    assert scored.interval == (0, 0)
    images = draw_images()
    images[::2] += 0.3
    np.save(tmp_path / "images.npy", images.clamp(0, 1).numpy())
    scored = score_challenge(challenge, str(tmp_path / "images.npy"))
    low, high = scored.interval
    assert 0 < low < scored.value < high


def test_a_challenge_that_cannot_be_made_whole_leaves_nothing(
    challenge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "disk")

    monkeypatch.setattr(sealed_challenges, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        make_challenge(tmp_path / "wire", tmp_path / "two")
    assert {each.name for each in tmp_path.glob("two*")} == set()
    assert challenge.is_dir()


def test_guesses_of_strangers_cannot_fill_the_memory(
    challenge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(NUM_SAMPLES) % 4
    np.savez_compressed(tmp_path / "labels.npz", guesses=labels)
    assert score_challenge(challenge, str(tmp_path / "labels.npz"), what="labels").value == 1
    with zipfile.ZipFile(tmp_path / "bytes.npz", "w") as file:
        file.writestr("guesses", b"no array")
    with pytest.raises(RunError, match=gist("guesses ... bytes.npz ... 'guesses'")):
        score_challenge(challenge, str(tmp_path / "bytes.npz"), what="labels")
    monkeypatch.setattr(array_rows, "MOST_UNPACKED", 99)
    with pytest.raises(RunError, match=gist("guesses ... labels.npz ... 'guesses' ... 99")):
        score_challenge(challenge, str(tmp_path / "labels.npz"), what="labels")
    with pytest.raises(RunError, match=gist("guesses ... npy")):
        score_challenge(challenge, "a" * 300, what="labels")


def test_a_truth_that_was_changed_is_refused(challenge: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(NUM_SAMPLES))
    sealed = tmp_path / "challenge-truth"
    (file,) = (sealed / "truth").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunError, match=gist("challenge-truth ... digest")):
        score_challenge(challenge, str(tmp_path / "labels.npy"), what="labels")


def test_another_key_is_refused(challenge: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(NUM_SAMPLES))
    (tmp_path / "challenge-truth" / "key").write_text("00" * 32)
    with pytest.raises(RunError, match=gist("challenge-truth ... digest")):
        score_challenge(challenge, str(tmp_path / "labels.npy"), what="labels")


def test_the_commands_make_and_score(
    challenge: Path, tmp_path: Path, simsplit: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = simsplit("challenge", "make", tmp_path / "wire", "--out", tmp_path / "two")
    assert (code, "two-truth" in out) == (0, True)
    code, _, err = simsplit("challenge", "make", tmp_path, "--out", tmp_path / "three")
    assert code == 2
    assert says(err, "observers=[{kind: transcript}]")
    np.save(tmp_path / "few.npy", np.zeros(3))
    code, _, err = simsplit("challenge", "score", challenge, tmp_path / "few.npy")
    assert code == 2
    assert says(err, f"guesses ... {NUM_SAMPLES} ... 3")
    np.save(tmp_path / "labels.npy", np.zeros(NUM_SAMPLES))
    options = ("--what", "labels", "--json")
    code, out, _ = simsplit("challenge", "score", challenge, tmp_path / "labels.npy", *options)
    assert json.loads(out)["value"] == 0.25


def test_a_session_is_not_published_under_the_id_of_its_text(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "wire", check_facts({"modality": "texts"}))
    for number in (4711, 4712):
        writer.add("smashed", [torch.ones(1, 3, 4)], ids=[number], session=number)
        writer.add_truth([number], torch.arange(3)[None])
    writer.close()
    make_challenge(tmp_path / "wire", tmp_path / "challenge")
    rows = [*Transcript.open(tmp_path / "challenge/wire").rows()]
    assert [(row.session, row.ids) for row in rows] == [(0, (0,)), (1, (1,))]


def test_truths_that_cannot_be_guessed_are_a_sentence(challenge: Path, tmp_path: Path) -> None:
    facts = check_facts({"modality": "texts"})
    for name, inputs in (("ragged", torch.arange(5)), ("lacking", None)):
        writer = TranscriptWriter(tmp_path / name, facts)
        writer.add("smashed", [torch.ones(2, 3)], ids=[0, 1])
        writer.add_truth([0], torch.arange(3)[None])
        given = (None, torch.ones(1)) if inputs is None else (inputs[None], None)
        writer.add_truth([1], *given)
        writer.close()
        with pytest.raises(RunError, match=gist("truth")):
            make_challenge(tmp_path / name, tmp_path / f"{name}-challenge")
    file = challenge / "challenge.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "has": []}))
    with pytest.raises(RunError, match=gist("challenge.json ... has")):
        score_challenge(challenge, "none.npy")


def test_images_that_are_no_pixels_and_have_no_scale_are_refused(tmp_path: Path) -> None:
    """All values above 1 would be white, and so would a guess without an attack."""
    sent, images = torch.ones(NUM_SAMPLES, 3), 255 * draw_images()
    transcribe(tmp_path / "wire", smashed=sent, inputs=images)
    with pytest.raises(RunError, match=gist("images ... mean and std")):
        make_challenge(tmp_path / "wire", tmp_path / "challenge")
    transcribe(tmp_path / "scaled", smashed=sent, inputs=images, mean=[0], std=[1 / 255])
    make_challenge(tmp_path / "scaled", tmp_path / "challenge")
    np.save(tmp_path / "images.npy", draw_images().numpy())
    assert score_challenge(tmp_path / "challenge", str(tmp_path / "images.npy")).value < 1e-9


def test_labels_that_are_numbers_are_no_classes(tmp_path: Path) -> None:
    """Cut to whole numbers, all of these would be the same class."""
    labels = torch.linspace(0, 0.9, NUM_SAMPLES)
    transcribe(tmp_path / "wire", smashed=torch.ones(NUM_SAMPLES, 3), labels=labels)
    make_challenge(tmp_path / "wire", tmp_path / "challenge")
    np.save(tmp_path / "labels.npy", labels.numpy() + 0.1)
    scored = score_challenge(tmp_path / "challenge", str(tmp_path / "labels.npy"))
    assert (scored.what, scored.figure) == ("labels", "mse")
    assert scored.value == pytest.approx(0.01)
    assert scored.floor == pytest.approx(float(labels.var(correction=0)))


def test_a_guess_between_two_classes_is_none_of_them(challenge: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(NUM_SAMPLES) % 4 + 0.9)
    assert score_challenge(challenge, str(tmp_path / "labels.npy"), what="labels").value == 0
