"""What a step would send if methods did nothing: the bytes of a plain cut.

Counted from what the client sees of the step anyway: the batch as it was given to the methods, what
the head makes of theirs, and what the model says of the trunk's output. Hand-overs and broadcasts
are no part of it, nor of what it is held against.
"""

from typing import NamedTuple

from torch import Size, Tensor

from simsplit.data.batches import Batch


class Plain(NamedTuple):
    """Bytes on all legs of the cut, both ways."""

    whole: int
    """Of a step that is answered."""
    abandoned: int
    """Of one in the middle of which the client drops out."""


def plain_step(given: Batch, made: Tensor, features: tuple[int, ...], *, vanilla: bool) -> Plain:
    """A raw step on the batch `given`.

    `made` is what the head puts out for the batch that methods made of it: of other rows, or of
    longer texts, but as many values for each. `features` is the trunk's output per sample, of the
    head's type: an autocast that halves the one halves the other.
    """
    lead = 1 if given.inputs.is_floating_point() else 2  # a text has values for each of its tokens
    count = given.inputs.shape[:lead].numel() * made.element_size()
    up = count * made.shape[lead:].numel()
    sent = up + sum(tensor.nbytes for tensor in given.context)
    if vanilla:
        return Plain(sent + up + given.labels.nbytes, sent)
    down = count * Size(features[lead - 1 :]).numel()
    return Plain(sent + up + 2 * down, sent + down)
