"""Known inputs of another transcript: its truth is public, so an attacker can learn from both."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from simsplit.auditing.grounds import Ground
from simsplit.auditing.recordings import TARGETS, TRAIN, list_steps, load_pairs
from simsplit.data.samples import Samples
from simsplit.errors import SimsplitError
from simsplit.packets import Packet
from simsplit.phases import EVALUATE
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

Known = tuple[list[list[Packet]], list[int]]
"""Packets in batches, and the ids of their samples."""


def load_pairs_elsewhere(
    path: Path, size: int, most: int, make: Callable[..., Samples], *, reference: bool
) -> tuple[Known, Callable[[Sequence[int]], Samples]]:
    """Load at most `most` pairs of a transcript, and return them with a function of its truth.

    `reference`: those that were sent without the defence, where these were recorded apart.
    """
    transcript, truth = Transcript.open(path), Truth.open(path)
    if reference:
        transcript = transcript.open_reference() or transcript
    if truth is None or not truth.has("inputs"):
        raise SimsplitError(f"--knows: pairs: {path} has no inputs in its truth")
    clients = transcript.summarise().clients
    steps = chain.from_iterable(
        list_steps(transcript, phase, client)
        for phase in (TRAIN, TARGETS, EVALUATE)
        for client in clients
    )
    known = [step for step in steps if np.isin(step.ids, truth.ids).all()]
    return load_pairs(transcript, known, (), size, most), partial(make, transcript, truth)


def refuse_other_pairs(path: Path, batches: Sequence[Sequence[Packet]], ground: Ground) -> None:
    """Raise SimsplitError if known inputs, or what was sent for them, have another form."""
    if ground.pairs is None:
        raise SimsplitError(f"--knows: pairs: {path} has too few samples to learn from")
    own, sent = ground.data.info.shape, ground.cut
    shapes = tuple(ground.pairs.inputs.shape[1:]), tuple(batches[0][0].tensors[0].shape[1:])
    for what, got, wanted in zip(("inputs", "packets"), shapes, (own, sent), strict=True):
        if got != wanted:
            raise SimsplitError(
                f"--knows: pairs: {path} has {what} of shape {list(got)}; the recorded ones have "
                f"{list(wanted)}"
            )
