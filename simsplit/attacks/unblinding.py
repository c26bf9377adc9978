"""Undoing `private_backprop` at a server that gets several messages (see `singular_direction`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

RELATIVE = 1e-5
"""The least singular value of stacked rows, relative to the largest, that is no rounding error."""
ROUNDS = 10
"""Number of passes over the batches' signs, which rarely change after the second."""


def find_smallest_combination(messages_MBD: Tensor, *, mixed: bool = True) -> Tensor:
    """Return the combination of messages, with weights of length 1, that is smallest.

    `mixed`: whether the noise is sums of the gradient's own rows. Then all directions that these
    rows span count the same: a gradient is long in a few directions only, in which chance alone
    makes noise resemble it.
    """
    # In double precision: published noise is thousands of times as large as the gradient.
    rows = messages_MBD.flatten(2).double()
    if mixed:
        basis, lengths, _ = torch.linalg.svd(rows.flatten(0, 1), full_matrices=False)
        kept = lengths > RELATIVE * lengths[0]
        rows = basis[:, kept].unflatten(0, rows.shape[:2])
    weights = torch.linalg.svd(rows.flatten(1), full_matrices=False)[0][:, -1]
    combined: Tensor = torch.tensordot(weights, messages_MBD.double(), 1)
    return combined.to(messages_MBD.dtype)


def align_signs(features: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[float]:
    """Choose each batch's sign so that features and gradients go together alike in all batches.

    Both are one row per sample. Two batches agree by the inner product of their matrices F^T G,
    which is computed from products of samples, since F^T G itself can be large.
    """
    if not features:
        return []
    mean = torch.cat(list(features)).double().mean(0)
    centred = [(each.double() - mean).flatten(1) for each in features]
    rows = [each.double().flatten(1) for each in gradients]
    agreement = torch.tensor(
        [
            [float(((f @ g.T) * (r @ s.T)).sum()) for g, s in zip(centred, rows, strict=True)]
            for f, r in zip(centred, rows, strict=True)
        ]
    )
    # A batch agrees with itself under either sign.
    agreement.fill_diagonal_(0)
    signs = torch.linalg.eigh(agreement).eigenvectors[:, -1].sign()
    signs[signs == 0] = 1
    for _ in range(ROUNDS):
        for place in range(len(signs)):
            signs[place] = 1.0 if agreement[place] @ signs >= 0 else -1.0
    return [float(sign) for sign in signs]
