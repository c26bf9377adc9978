"""What the server sees of each sample, as one row of numbers: features, their shift, gradients.

Features and gradients are those that cross. Images are flattened. A text is reduced to one vector
that padding has no part in: its gradients are summed over positions (padding has none), and of its
features the state at the position with the largest gradient is taken. There the loss reads the
label, so this leaks the most; a mean over a text's positions would dilute it by all other tokens.

Where clients send adapters (the leg ADAPTERS), packets hold a row for each sample and adapter, and
each adapter has views of its own; the shift of features is against adapters that are nothing. A
view that a topology does not have is left out.
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
    """The views of these names that the targets' packets give, each made once a judgement."""
    seen = known.seen.of(targets)
    if missing := [name for name in names if name not in seen]:
        seen |= _made(known, by_batch(targets), missing)
    return [view for name in VIEWS if name in names for view in seen[name]]


def _made(
    known: Knowledge, batches: Sequence["Batch"], names: Sequence[ViewName]
) -> dict[ViewName, list[SeenView]]:
    parts: dict[tuple[ViewName, int], list[Tensor]] = {}
    for batch in batches:
        for view in _of_batch(known, batch, names):
            parts.setdefault((view.name, view.adapter), []).append(view.rows.cpu())
    made: dict[ViewName, list[SeenView]] = {name: [] for name in names}
    for (name, adapter), rows in parts.items():
        if len(rows) == len(batches):  # a batch that the client left lacks its gradients
            made[name].append(SeenView(name, adapter, torch.cat(rows)))
    return made


Batch = dict[Leg, Packet]
"""The packets of one batch by leg, the first of each: that of one server."""


def by_batch(targets: Sequence[Packet]) -> list[Batch]:
    """The targets' packets, batch by batch; of several epochs the first."""
    found: dict[int, Batch] = {}
    first = min((packet.round for packet in targets), default=0)
    for packet in targets:
        if packet.round == first:
            found.setdefault(packet.step, {}).setdefault(packet.leg, packet)
    return list(found.values())


def _of_batch(known: Knowledge, batch: Batch, names: Sequence[ViewName]) -> Iterator[SeenView]:
    by_adapter = Leg.ADAPTERS in batch
    texts = known.vocabulary is not None and not by_adapter
    features, grads = known.message(batch[Leg.FEATURES]), None
    if Leg.FEATURES_GRAD in batch:
        grads = known.message(batch[Leg.FEATURES_GRAD])
        grads = grads * len(grads)  # the loss is a mean over the batch, whose size the server knows
    if texts:
        assert grads is not None, "in a U shape they cross"
        features, grads = state_at_gradient(features, grads), grads.sum(1)
    makers = _makers(known, batch, features, grads)
    for name in names:
        if name in makers:
            values = makers[name]()
            for adapter, rows in enumerate(values.unbind(1) if by_adapter else (values,)):
                yield SeenView(name, adapter, rows.flatten(1))


def _makers(
    known: Knowledge, batch: Batch, features: Tensor, grads: Tensor | None
) -> dict[ViewName, Callable[[], Tensor]]:
    """How each view is made that a topology has; a text's gradients of adapters take a while."""
    normalized, served = torch.nn.functional.normalize, known.served
    makers: dict[ViewName, Callable[[], Tensor]] = {"features": lambda: features}
    if grads is not None:
        by_adapter = Leg.ADAPTERS in batch
        makers["gradient"] = lambda: grads
        makers["direction"] = lambda: normalized(grads.flatten(1 + by_adapter), dim=-1)
    if served is not None:
        makers["shift"] = lambda: features - served.base(batch)[:, None]
        if grads is not None:
            makers["adapter_gradient"] = lambda: served.adapter_gradients(known, batch)
    return makers


def state_at_gradient(features_BLD: Tensor, grads_BLD: Tensor) -> Tensor:
    """Each text's state at the position with the largest gradient."""
    place_B = grads_BLD.norm(dim=-1).argmax(1)
    return features_BLD[torch.arange(len(place_B), device=place_B.device), place_B]
