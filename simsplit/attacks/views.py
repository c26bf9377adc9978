"""The server's views of the samples: features, their shift, gradients, as one row per sample.

Features and gradients are taken from the packets. Images are flattened. A text is reduced to one
vector without its padding: its gradients are summed over positions (padding has none), and its
features are the state at the position with the largest gradient. The loss reads the label there, so
this state leaks the most. A mean over positions would dilute it by all other tokens.

Where clients send adapters (the leg ADAPTERS), packets hold a row for each sample and adapter, and
each adapter has its own views. The shift is the features minus the features without adapters.
Views that a topology does not have are left out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.packets import Leg, Packet

VIEWS: tuple[ViewName, ...] = get_args(ViewName)


def views_of(
    known: Knowledge, targets: Sequence[Packet], names: Collection[ViewName] = VIEWS
) -> list[SeenView]:
    """Return the targets' views with these names; each is computed once per scoring."""
    seen = known.seen.of(targets)
    if missing := [name for name in names if name not in seen]:
        seen |= _compute_views(known, by_batch(targets), missing)
    return [view for name in VIEWS if name in names for view in seen[name]]


def _compute_views(
    known: Knowledge, batches: Sequence["Batch"], names: Sequence[ViewName]
) -> dict[ViewName, list[SeenView]]:
    """Compute the views of all batches, joined over batches."""
    parts: dict[tuple[ViewName, int], list[Tensor]] = {}
    for batch in batches:
        for view in _compute_batch_views(known, batch, names):
            parts.setdefault((view.name, view.adapter), []).append(view.rows.cpu())
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
    texts = known.vocabulary is not None and not by_adapter
    features, grads = known.message(batch[Leg.FEATURES]), None
    if Leg.FEATURES_GRAD in batch:
        grads = known.message(batch[Leg.FEATURES_GRAD])
        grads = grads * len(grads)  # the loss is a mean over the batch, whose size the server knows
    if texts:
        assert grads is not None, "in a U shape they cross"
        features, grads = state_at_gradient(features, grads), grads.sum(1)
    makers = _view_makers(known, batch, features, grads)
    for name in names:
        if name in makers:
            values = makers[name]()
            for adapter, rows in enumerate(values.unbind(1) if by_adapter else (values,)):
                yield SeenView(name, adapter, rows.flatten(1))


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
