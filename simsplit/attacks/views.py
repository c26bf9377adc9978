"""The server's views of the samples: features, their shift, gradients, as one row per sample.

Features and gradients are taken from the packets. Images are flattened. A text is reduced to one
vector without its padding: its gradients are summed over positions (padding has none), and its
features are the state at the position with the largest gradient. The loss reads the label there, so
this state leaks the most. A mean over positions would dilute it by all other tokens.

Where a gradient crosses in several messages, `gradient` is the first of them. `recovered` is what a
server with several of them makes of all (see `singular_direction`), with signs that suit one
another in all batches.

Where clients send adapters (the leg ADAPTERS), packets hold a row for each sample and adapter, and
each adapter has its own views. The shift is the features minus the features without adapters. One
server can hold several sets, and the client's secret mixture of them has to tell labels: so their
differences are views too, and their sum with searched weights (see `combining`).
Views that a topology does not have are left out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from simsplit.attacks.combining import search_sum, subtract_pairs
from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.legs import Leg
from simsplit.methods.private_backprop import PrivateBackpropConfig
from simsplit.packets import Packet

VIEWS: tuple[ViewName, ...] = get_args(ViewName)
DERIVED: dict[ViewName, Callable[[Sequence[Tensor], int], list[Tensor]]] = {
    "difference": subtract_pairs,
    "sum": search_sum,
}
"""Views that are made of the features of all adapter sets and a seed."""
RELATIVE = 1e-5
"""The least singular value of stacked rows, relative to the largest, that is no rounding error."""
ROUNDS = 10
"""Number of passes over the batches' signs, which rarely change after the second."""


def views_of(
    known: Knowledge, targets: Sequence[Packet], names: Collection[ViewName] = VIEWS
) -> list[SeenView]:
    """Return the targets' views with these names; each is computed once per scoring."""
    seen = known.seen.of(targets)
    made = [name for name in names if name not in DERIVED]
    if missing := [name for name in made if name not in seen]:
        seen |= _compute_views(known, by_batch(targets), missing)
    for name in names:
        if name in DERIVED and name not in seen:
            sets = [view.rows for view in views_of(known, targets, ["features"])]
            rows = DERIVED[name](sets, known.seed) if len(sets) > 1 else []
            seen[name] = [SeenView(name, number, each) for number, each in enumerate(rows)]
    return [view for name in VIEWS if name in names for view in seen[name]]


def _compute_views(
    known: Knowledge, batches: Sequence["Batch"], names: Sequence[ViewName]
) -> dict[ViewName, list[SeenView]]:
    """Compute the views of all batches, joined over batches."""
    parts: dict[tuple[ViewName, int], list[Tensor]] = {}
    for batch in batches:
        for view in _compute_batch_views(known, batch, names):
            parts.setdefault((view.name, view.adapter), []).append(view.rows.cpu())
    if "recovered" in names:
        for adapter, recovered in _recover_gradients(known, batches):
            parts.setdefault(("recovered", adapter), []).append(recovered.cpu())
    views: dict[ViewName, list[SeenView]] = {name: [] for name in names}
    for (name, adapter), rows in parts.items():
        if len(rows) == len(batches):  # a batch that the client left lacks its gradients
            views[name].append(SeenView(name, adapter, torch.cat(rows)))
    return views


Batch = dict[Leg, Packet]
"""The packets of one batch by leg. Of several on a leg it holds the first, which one server gets.
"""


def by_batch(targets: Sequence[Packet]) -> list[Batch]:
    """Group the targets' packets of the first epoch by batch."""
    batches: dict[int, Batch] = {}
    first = min((packet.round for packet in targets), default=0)
    for packet in targets:
        if packet.round == first:
            batches.setdefault(packet.step, {}).setdefault(packet.leg, packet)
    return list(batches.values())


def _compute_batch_views(
    known: Knowledge, batch: Batch, names: Sequence[ViewName]
) -> Iterator[SeenView]:
    """Compute one batch's views with these names, as far as the topology has them."""
    by_adapter = Leg.ADAPTERS in batch
    at_values, at_gradients = known.row_legs
    if at_gradients in batch:
        features, grads = _make_rows(known, batch, known.message(batch[at_gradients]))
    else:
        features, grads = known.message(batch[at_values]), None
    makers = _view_makers(known, batch, features, grads)
    for name in names:
        if name in makers:
            values = makers[name]()
            for adapter, rows in enumerate(values.unbind(1) if by_adapter else (values,)):
                yield SeenView(name, adapter, rows.flatten(1))


def _make_rows(known: Knowledge, batch: Batch, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and gradients with a row for each sample, and for each adapter set."""
    features = known.message(batch[known.row_legs[0]])
    grads = grads * len(grads)  # the loss is a mean over the batch, whose size the server knows
    if known.vocabulary is not None and Leg.ADAPTERS not in batch:
        features, grads = state_at_gradient(features, grads), grads.sum(1)
    return features, grads


def _recover_gradients(known: Knowledge, batches: Sequence[Batch]) -> Iterator[tuple[int, Tensor]]:
    """Yield an adapter's number and its gradients, recovered from several messages, by batch."""
    features, grads = [], []
    # Which noise a method adds is public, as all of its options are.
    splitting = [each for each in known.methods if isinstance(each, PrivateBackpropConfig)]
    mixed = all(each.noise == "mixed" for each in splitting)
    for batch in batches:
        leg = known.row_legs[1]
        sent = known.messages(batch[leg]) if leg in batch else []
        if len(sent) > 1:
            smallest = find_smallest_combination(torch.stack(sent), mixed=mixed)
            states, rows = _make_rows(known, batch, smallest)
            features.append(states)
            # One axis for adapter sets, of which a U shape has none.
            grads.append(rows.flatten(2) if Leg.ADAPTERS in batch else rows.flatten(1)[:, None])
    # All adapter sets of a batch have one sign, as they have one secret.
    for rows, sign in zip(grads, align_signs(features, grads), strict=True):
        for adapter, each in enumerate(rows.unbind(1)):
            yield adapter, sign * each


def _view_makers(
    known: Knowledge, batch: Batch, features: Tensor, grads: Tensor | None
) -> dict[ViewName, Callable[[], Tensor]]:
    """Return a function for each view that the topology has.

    Views are functions because some are slow to compute, the gradients of adapters above all.
    """
    normalized, served = torch.nn.functional.normalize, known.served
    makers: dict[ViewName, Callable[[], Tensor]] = {"features": lambda: features}
    if grads is not None:
        by_adapter = Leg.ADAPTERS in batch
        makers["gradient"] = lambda: grads
        # The length of an adapter's row must not depend on the other adapters.
        makers["direction"] = lambda: normalized(grads.flatten(1 + by_adapter), dim=-1)
    if served is not None:
        makers["shift"] = lambda: features - served.base(batch)[:, None]
        if grads is not None:
            makers["adapter_gradient"] = lambda: served.adapter_gradients(known, batch)
    return makers


def state_at_gradient(features_BLD: Tensor, grads_BLD: Tensor) -> Tensor:
    """Return each text's state at the position with the largest gradient."""
    place_B = grads_BLD.norm(dim=-1).argmax(1)
    return features_BLD[torch.arange(len(place_B), device=place_B.device), place_B]


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
