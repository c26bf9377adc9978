"""A transcript is made of arrays here: of what somebody exported from any other system."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from simsplit.errors import RunError, format_list
from simsplit.wires.array_rows import ArrayRows, open_array
from simsplit.wires.facts import (
    MOST_CLASSES,
    Content,
    Modality,
    TranscriptFacts,
    check_facts,
    check_number,
)
from simsplit.wires.transcript import Transcript
from simsplit.wires.transcript_writer import TranscriptWriter, parse_size

LEGS = ("smashed", "features", "features_grad", "smashed_grad")
"""The legs of which arrays are taken, in the order in which they cross."""


def transcribe(
    path: Path | str,
    *,
    smashed: Any = None,  # noqa: ANN401 - an array of any library, or a file with one
    features: Any = None,  # noqa: ANN401
    features_grad: Any = None,  # noqa: ANN401
    smashed_grad: Any = None,  # noqa: ANN401
    inputs: Any = None,  # noqa: ANN401
    labels: Any = None,  # noqa: ANN401
    ids: Sequence[int] | None = None,
    sends_labels: bool = False,
    modality: Modality | None = None,
    content: Mapping[str, Content] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    batch_size: int = 64,
    client: int = 0,
    phase: str = "targets",
    most: int | str | None = None,
) -> Transcript:
    """Write a transcript from arrays with a row for each sample, and return it, opened.

    Arrays are numpy arrays, torch tensors, or paths of `.npy` and `.safetensors` files (with one
    tensor, or `FILE:NAME`). `inputs` and `labels` are the truth, which judges alone read;
    `sends_labels`: the labels cross, too. Packets have `batch_size` rows; gradients must be of
    batches of that size.

    >>> import numpy as np
    >>> pixels = np.random.default_rng(0).random((8, 1, 4, 4), np.float32)
    >>> wire = transcribe("wire", smashed=pixels * 2, inputs=pixels)  # doctest: +SKIP
    """
    named = dict(zip(LEGS, (smashed, features, features_grad, smashed_grad), strict=True))
    legs = {leg: open_array(each, leg) for leg, each in named.items() if each is not None}
    given = {"inputs": inputs, "labels": labels}
    truth = {name: open_array(each, name) for name, each in given.items() if each is not None}
    count = _count_rows({**legs, **truth}, ids, legs)
    check_number("client", client)
    for each in () if ids is None else ids:
        check_number("ids", each)
    if batch_size < 1:
        raise RunError(f"batch_size: must be at least 1, got {batch_size}")
    if sends_labels and "labels" not in truth:
        raise RunError("sends_labels: needs labels")
    sent = {**legs, "labels": truth["labels"]} if sends_labels else legs
    facts = describe_samples(
        "transcribe",
        inputs=truth.get("inputs"),
        legs=[*sent],
        recorder="simsplit.transcribe",
        modality=modality,
        content=content or {},
        classes=_count_classes(truth.get("labels")),
        mean=mean,
        std=std,
    )
    writer = TranscriptWriter(path, facts, None if most is None else parse_size(most))
    numbers = range(count) if ids is None else [int(each) for each in ids]
    for step, start in enumerate(range(0, count, batch_size)):
        rows = slice(start, min(start + batch_size, count))
        own = numbers[rows]
        for leg, array in sent.items():
            writer.add(leg, [array.read(rows)], client=client, step=step, ids=own, phase=phase)
        if truth:
            writer.add_truth(own, **{name: array.read(rows) for name, array in truth.items()})
    writer.close()
    return Transcript.open(path)


def describe_samples(
    where: str,
    *,
    inputs: "ArrayRows | Tensor | None",
    legs: Sequence[str],
    recorder: str,
    modality: Modality | None,
    content: Mapping[str, Content],
    classes: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> TranscriptFacts:
    """Return the facts of samples, whose modality follows from the inputs unless it is named."""
    shape = () if inputs is None else tuple(inputs.shape)
    kind = modality or _guess_modality(inputs)
    facts: dict[str, Any] = {
        "modality": kind,
        "legs": list(legs),
        "content": dict(content),
        "classes": classes,
        "recorder": f"{recorder} {version('simsplit')}",
    }
    if kind == "images":
        if len(shape) != 4:
            raise RunError(
                "modality: images need inputs of N x channels x height x width, got "
                f"{list(shape) or 'none'}"
            )
        facts["image"] = {
            "channels": shape[1],
            "size": list(shape[2:]),
            "mean": list(mean),
            "std": list(std),
        }
    return check_facts(facts, where)


def _guess_modality(inputs: "ArrayRows | Tensor | None") -> Modality:
    """Return the kind of samples that inputs seem to be: four axes are images, ids are texts."""
    axes = 0 if inputs is None else len(inputs.shape)
    if inputs is None or axes not in (2, 4):
        return "vectors"
    floating = inputs.is_floating_point() if isinstance(inputs, Tensor) else inputs.is_floating
    return "images" if axes == 4 else "table" if floating else "texts"


def _count_classes(labels: ArrayRows | None) -> int | None:
    if labels is None or labels.is_floating or not len(labels) or len(labels.shape) > 1:
        return None
    return bound_classes(int(labels.read(slice(0, len(labels))).max()) + 1)


def bound_classes(count: int) -> int | None:
    """Return a number of classes; None where labels are no classes, but below 0 or very large."""
    return count if 1 <= count <= MOST_CLASSES else None


def _count_rows(
    arrays: Mapping[str, Any], ids: Sequence[int] | None, legs: Mapping[str, Any]
) -> int:
    """Return the number of samples; raise RunError unless all arrays have as many rows."""
    if not legs:
        raise RunError(f"nothing crossed: give at least one of {', '.join(LEGS)}")
    counts = {name: len(array) for name, array in arrays.items()}
    if ids is not None:
        counts["ids"] = len(ids)
    if len(set(counts.values())) > 1:
        every = format_list(f"{name}: {count:,}" for name, count in counts.items())
        raise RunError(f"all arrays need a row for each sample, got {every}")
    return next(iter(counts.values()))
