"""What a step would send if methods did nothing: the bytes of a plain cut, leg by leg.

Counted from what the client sees of the step anyway: the batch as it was given to the methods, what
the head makes of theirs, and what the model says of the trunk's output. Hand-overs and broadcasts
are no part of it, nor of what it is held against.
"""

from torch import Size, Tensor

from simsplit.data.batches import Batch
from simsplit.packets import Leg


def plain_bytes(given: Batch, made: Tensor, features: tuple[int, ...]) -> dict[Leg, int]:
    """Of a raw step on the batch `given`, on every leg that a topology may have.

    `made` is what the head puts out for the batch that methods made of it: of other rows, or of
    longer texts, but as many values for each. `features` is the trunk's output per sample, of the
    head's type: an autocast that halves the one halves the other.
    """
    lead = 1 if given.inputs.is_floating_point() else 2  # a text has values for each of its tokens
    count = given.inputs.shape[:lead].numel() * made.element_size()
    up = count * made.shape[lead:].numel()
    down = count * Size(features[lead - 1 :]).numel()
    return {
        Leg.SMASHED: up + sum(tensor.nbytes for tensor in given.context),
        Leg.LABELS: given.labels.nbytes,
        Leg.FEATURES: down,
        Leg.FEATURES_GRAD: down,
        Leg.SMASHED_GRAD: up,
    }
