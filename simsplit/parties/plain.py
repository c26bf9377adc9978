"""The bytes that a step would send without methods: those of a plain cut, leg by leg.

They are computed from what the client sees of a step: the batch that the methods were given, the
head's output for the batch that they made of it, and the shape of the trunk's output. Hand-overs
and broadcasts are left out, here and in the bytes that these are compared with.
"""

from torch import Size, Tensor

from simsplit.data.batches import Batch
from simsplit.packets import Leg


def count_plain_bytes(given: Batch, made: Tensor, features: tuple[int, ...]) -> dict[Leg, int]:
    """Count the bytes of a raw step on the batch `given`, on each leg that a topology may have.

    `made` is the head's output for the batch that methods made of `given`. It may have other rows
    or longer texts, but has as many values for each. `features` is the shape of the trunk's output
    per sample; its type is the head's, since autocast narrows both or neither.
    """
    lead = 1 if given.inputs.is_floating_point() else 2  # a text has values for each of its tokens
    count = given.inputs.shape[:lead].numel() * made.element_size()
    up = count * made.shape[lead:].numel()
    # `count` has the tokens of these texts, so the length in `features` is left out.
    down = count * Size(features[lead - 1 :]).numel()
    return {
        Leg.SMASHED: up + sum(tensor.nbytes for tensor in given.context),
        Leg.LABELS: given.labels.nbytes,
        Leg.FEATURES: down,
        Leg.FEATURES_GRAD: down,
        Leg.SMASHED_GRAD: up,
    }
