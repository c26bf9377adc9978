"""A challenge lets strangers attack a defence: a transcript without its truth, which is sealed.

The maker publishes the transcript and a digest, and keeps the truth and a key. The digest is a
commitment: the SHA-256 of the key (32 random bytes) and all samples. So the maker cannot change the
truth after guesses have come in, and nobody can search for it without the key.
"""

import hashlib
import hmac
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from simsplit.config import Config
from simsplit.errors import RunError
from simsplit.foreign import MOST_YAML, read_facts, strip_controls
from simsplit.metrics.image_scores import score_images
from simsplit.metrics.intervals import Floats, bootstrap_interval
from simsplit.metrics.leaks import match_equal, measure_share
from simsplit.results.directory import replace
from simsplit.results.read_tables import explain_read_errors
from simsplit.wires.array_rows import open_array
from simsplit.wires.confined import ConfinedFolder
from simsplit.wires.facts import TRUTH, ImageFacts
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter
from simsplit.wires.truth import Truth

WIRE, FACTS, KEY = "wire", "challenge.json", "key"
SEALED = "-truth"
"""Ends the name of the folder that the maker keeps."""
_PART = 256
_BATCHES = 1000
"""Batches of samples, at most, that an interval draws again."""


class ChallengeFacts(Config):
    """What a challenge publishes beside its transcript."""

    version: Literal[1] = 1
    samples: int = Field(ge=1)
    """Samples whose truth is sealed; their ids are 0 and up, in the order in which they cross."""
    has: tuple[Literal["inputs", "labels"], ...] = Field(min_length=1)
    """What may be guessed."""
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    """The commitment to the truth."""


@dataclass(frozen=True)
class ChallengeScore:
    """What guesses are worth, beside a guess that needs no attack."""

    what: str
    figure: str
    value: float
    floor: float
    samples: int
    interval: tuple[float, float] | None = None


def make_challenge(run: Path, out: Path) -> ChallengeFacts:
    """Write a challenge from a run that kept its transcript, or from a transcript's folder."""
    source = _find_transcript(run)
    wire, truth = Transcript.open(source), Truth.open(source)
    if truth is None:
        raise RunError(f"{source} has no truth, so nobody could score guesses")
    sealed = out.with_name(out.name + SEALED)
    for folder in (out, sealed):
        if folder.exists():
            raise RunError(f"{folder} is there already; give another --out")
    if not _list_columns(truth):
        raise RunError(f"{source / TRUTH} lacks inputs and labels of some samples")
    numbers = _renumber(wire, truth)
    if not numbers:
        raise RunError(f"{source} has no packet whose samples are known")
    _refuse_other_pixels(source, wire.facts.image, truth, [*numbers])
    try:
        return _write_challenge(wire, truth, numbers, out, sealed)
    except BaseException:  # half a challenge is none, and its folders would be in the way
        for folder in (out, sealed):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_challenge(
    wire: Transcript, truth: Truth, numbers: Mapping[int, int], out: Path, sealed: Path
) -> ChallengeFacts:
    _copy_packets(wire, out / WIRE, numbers)
    keeper = TranscriptWriter(sealed, wire.facts)
    columns = _list_columns(truth)
    for ids in _split(list(numbers)):
        values = {name: truth.stack(ids, name) for name in columns}
        keeper.add_truth([numbers[each] for each in ids], **values)
    keeper.close()
    key = secrets.token_bytes(32)
    kept = Truth.open(sealed)
    assert kept is not None, "it was written above"
    digest = compute_commitment(key, kept)
    facts = ChallengeFacts(samples=len(numbers), has=columns, digest=digest)
    (sealed / KEY).touch(mode=0o600)
    replace(sealed / KEY, key.hex().encode())
    replace(out / FACTS, json.dumps(facts.model_dump(mode="json"), indent=2).encode())
    return facts


def score_challenge(
    folder: Path, guesses: str, truth: Path | None = None, what: str | None = None
) -> ChallengeScore:
    """Score guesses of a challenge: rows in the order of ids; raise RunError for another truth."""
    facts = _read_facts(folder)
    sealed = truth or folder.with_name(folder.name + SEALED)
    kept = _open_sealed(sealed, facts)
    wanted = what or facts.has[0]
    if wanted not in facts.has:
        raise RunError(f"--what {wanted}: this challenge has {', '.join(facts.has)}")
    rows = open_array(guesses, "guesses")
    if len(rows) != facts.samples:
        raise RunError(f"guesses: need {facts.samples:,} rows, one for each id, got {len(rows):,}")
    values = kept.stack(range(facts.samples), wanted)
    if rows.shape != values.shape:
        raise RunError(
            f"guesses: need the shape {list(values.shape)} of the {wanted}, got {list(rows.shape)}"
        )
    made = rows.read(slice(0, len(rows)))
    if made.is_floating_point() and not bool(made.isfinite().all()):
        raise RunError("guesses: must be finite")
    image = Transcript.open(folder / WIRE).facts.image
    is_whole = not values.is_floating_point() or bool((values == values.floor()).all())
    if is_whole and (wanted == "labels" or (image is None and not values.is_floating_point())):
        return _score_equal(wanted, made, values)
    if wanted == "labels":  # numbers, not classes
        return replace_dataclass(_score_rows(made[:, None], values[:, None]), what=wanted)
    if image is not None:
        return _score_images(made, _make_pixels(values, image))
    return _score_rows(made, values)


def compute_commitment(key: bytes, truth: Truth) -> str:
    """Return the digest of a key and of all samples: types, shapes and bytes, by rising id."""
    digest = hmac.new(key, b"simsplit challenge 1", hashlib.sha256)
    for ids in _split(truth.ids.tolist()):
        for name in _list_columns(truth):
            find = truth.find_inputs if name == "inputs" else truth.find_labels
            for number, value in zip(ids, find(ids), strict=True):
                digest.update(f"\n{number} {name} {value.dtype} {list(value.shape)}\n".encode())
                digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _find_transcript(run: Path) -> Path:
    """Return the folder of a run's transcript, or a transcript's own."""
    for folder in (run, run / "transcript"):
        if (folder / "transcript.yaml").is_file():
            return folder
    raise RunError(
        f"{run} has no transcript; run it with an observer that keeps one: "
        "--set 'observers=[{kind: transcript}]'"
    )


def _refuse_other_pixels(
    source: Path, image: ImageFacts | None, truth: Truth, ids: Sequence[int]
) -> None:
    """Raise RunError for images that are no pixels, and whose scale was not recorded."""
    if image is None or (image.mean and image.std) or not truth.has("inputs"):
        return
    for some in _split(ids):
        values = truth.stack(some)
        # Rounding may leave a pixel a little above 1, where scores cut it.
        are_pixels = values.dtype == torch.uint8 or bool(((values - 0.5).abs() < 0.501).all())
        if not are_pixels:
            raise RunError(
                f"{source} has images with values from {float(values.min()):.3g} to "
                f"{float(values.max()):.3g}, and guesses are pixels between 0 and 1; record it "
                "with the mean and std of each channel, or with pixels as bytes"
            )


def _renumber(wire: Transcript, truth: Truth) -> dict[int, int]:
    """Return new ids of samples; the old ones may be rows of public data, and so name them."""
    known = frozenset(truth.ids.tolist())
    old = dict.fromkeys(each for row in wire.rows() for each in row.ids if each in known)
    return {each: number for number, each in enumerate(old)}


def _copy_packets(wire: Transcript, out: Path, numbers: Mapping[int, int]) -> None:
    writer = TranscriptWriter(out, wire.facts)
    # Anew, as ids are: a session's number may be its text's id.
    sessions: dict[int | None, int | None] = {None: None}
    for crossing in wire.crossings():
        packet = crossing.packet
        ids = [numbers[each] for each in crossing.ids if each in numbers]
        writer.add(
            packet.leg,
            packet.tensors,
            client=packet.client,
            round=packet.round,
            step=packet.step,
            ids=ids if len(ids) == len(crossing.ids) else (),
            phase=crossing.phase,
            session=sessions.setdefault(packet.session, len(sessions) - 1),
            position=packet.position,
            copy=False,
        )
    writer.close()
    if writer.ended:
        raise RunError(f"cannot write {out}: {writer.ended}")


def _read_facts(folder: Path) -> ChallengeFacts:
    with explain_read_errors(folder / FACTS):
        try:
            return ChallengeFacts.model_validate(read_facts(folder / FACTS, MOST_YAML))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(each)[:60] for each in first["loc"])
            raise ValueError(strip_controls(f"{field}: {first['msg']}")) from None


def _open_sealed(sealed: Path, facts: ChallengeFacts) -> Truth:
    """Open a sealed truth; raise RunError unless it is the one of the published digest."""
    kept = Truth.open(sealed)
    if kept is None:
        raise RunError(f"{sealed} has no truth; --truth names the folder that the maker kept")
    text = ConfinedFolder.open(sealed).read_text(KEY, 100).strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise RunError(f"{sealed / KEY} is no key") from None
    if not hmac.compare_digest(compute_commitment(key, kept), facts.digest):
        raise RunError(f"{sealed} is not the truth of the published digest {facts.digest[:16]}...")
    return kept


def _list_columns(truth: Truth) -> tuple[Literal["inputs", "labels"], ...]:
    names: tuple[Literal["inputs", "labels"], ...] = ("inputs", "labels")
    return tuple(name for name in names if truth.has(name))


def _split(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _PART):
        yield ids[start : start + _PART]


def _make_pixels(values: Tensor, image: ImageFacts) -> Tensor:
    """Return pixels between 0 and 1 of inputs as the head gets them, or of bytes."""
    if values.dtype == torch.uint8:
        return values.float() / 255
    if image.mean and image.std:
        std, mean = (torch.tensor(each).view(-1, 1, 1) for each in (image.std, image.mean))
        values = values * std + mean
    return values.float().clamp(0, 1)


def _score_images(made: Tensor, truth: Tensor) -> ChallengeScore:
    pixels = made.float() / 255 if made.dtype == torch.uint8 else made.float().clamp(0, 1)
    mean = truth.mean(0, keepdim=True).expand_as(truth)
    scored, floors = score_images(pixels, truth), score_images(mean, truth)
    figure = "ssim" if "ssim" in scored[0] else "mse"  # small images have no structure
    values, guessed = (np.array([each[figure] for each in rows]) for rows in (scored, floors))
    return _average(figure, values, guessed)


def _score_rows(made: Tensor, truth: Tensor) -> ChallengeScore:
    truth = truth.double().flatten(1)
    values, guessed = (
        (each - truth).square().mean(1).numpy()
        for each in (made.double().flatten(1), truth.mean(0, keepdim=True))
    )
    return _average("mse", values, guessed)


def _average(figure: str, values: Floats, guessed: Floats) -> ChallengeScore:
    """Average a figure of inputs over samples, with the interval of other samples like these."""
    interval = bootstrap_interval([values], -(-len(values) // _BATCHES))
    floor = float(guessed.mean())
    return ChallengeScore("inputs", figure, float(values.mean()), floor, len(values), interval)


def _score_equal(what: str, made: Tensor, truth: Tensor) -> ChallengeScore:
    """Score labels or tokens by the share that is right; the floor is the most frequent one."""
    numbers: Any = truth.flatten().to(torch.int64).numpy()
    # A guess of 0.9 is none of class 0, and equals no number of the truth.
    whole = made.to(torch.int64)
    guesses: Any = torch.where(whole == made, whole, int(numbers.min()) - 1).flatten().numpy()
    share = measure_share(match_equal(guesses, numbers))
    values, counts = np.unique(numbers, return_counts=True)
    floor = measure_share(numbers == values[counts.argmax()])
    return ChallengeScore(
        what, "accuracy", share.value, floor.value, len(truth), (share.low, share.high)
    )
