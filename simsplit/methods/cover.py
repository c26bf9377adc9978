"""Cover, ours: each private text crosses among k - 1 public ones, all as they are.

The plainest way to hide a text in m messages, and so what every mixture is to be compared with: it
decodes without error, whatever the trunk is, and who reads what crosses reads k texts and knows not
which is private. With `fixed` covers a text has the same company in every epoch; with fresh ones
the text that comes again is the private one.

It hides what is sent forward alone: only the private text's rows have a gradient, so who sees
gradients sees which they are. To send others would teach the trunk what no client wants.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch, padded
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.methods.base import (
    CUT_LEGS,
    TEXTS,
    Method,
    MethodConfig,
    Modality,
    Site,
    Step,
    Stock,
    Trait,
)
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.seeds import seed_for


class CoverConfig(MethodConfig):
    """Sends each private text among public ones, in an order that only the client knows."""

    kind: Literal["cover"] = "cover"
    messages: int = Field(default=3, ge=2)
    """k: how many texts are sent for each private one, itself included."""
    fixed: bool = True
    """Whether a private text has the same covers in every epoch; if not, they are drawn anew."""
    secrets: ClassVar[str] = "sample"
    """Each text has a place of its own."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES, Trait.ALONE})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    once: ClassVar[bool] = True
    superposes: ClassVar[frozenset[Leg]] = CUT_LEGS
    requires: ClassVar[Needs] = (needs_leg(Leg.FEATURES), Need(Given.SUPPORT), Need(Given.UNMASKED))

    def build(self, site: Site) -> Method:
        """All of it on the client; the server knows nothing of it."""
        return Cover(self, site.seed) if site.side == "client" else Method()


@dataclass
class _Covered:
    """What a client keeps of a step."""

    places: Tensor
    """B: which of a text's k rows is its own."""
    own: Tensor


class Cover(Method):
    """The client's part, which is all of it."""

    def __init__(self, config: CoverConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    def transform(self, batch: Batch, step: Step) -> Batch:
        """k batches in one: each row of the given one is in one of them."""
        if step.stock is None:
            raise ProtocolError("cover was given no texts to send along")
        rng, count = step.rng("cover", step.phase), self.config.messages
        covers = self._covers(batch, step, step.stock, rng)
        longest = max(each.shape[1] for each in (batch.inputs, *covers))
        fill = step.stock.pad
        every = torch.stack([padded(each, longest, fill) for each in (*covers, batch.inputs)])
        rows = torch.arange(len(batch.labels))
        places = torch.randint(count, (len(rows),), generator=rng)
        order = torch.arange(count)[:, None].expand(-1, len(rows)).clone()
        order[-1], order[places, rows] = places, count - 1  # the last changes places
        mixed = every[order.to(every.device), rows.to(every.device)]
        own = padded(torch.ones_like(batch.inputs, dtype=torch.bool), longest, 0)
        step.memo[self] = _Covered(places.to(every.device), own)
        labels = padded(batch.labels, longest, IGNORED)
        return Batch(mixed.flatten(0, 1), labels, batch.indices)

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """The rows of the batch's own texts."""
        covered: _Covered | None = step.memo.get(self)
        if covered is None:
            return u
        u_KBLD = u.unflatten(0, (self.config.messages, -1))
        picked: Tensor = u_KBLD[covered.places, torch.arange(len(covered.places), device=u.device)]
        return picked

    def own(self, step: Step) -> Tensor | None:
        """Client: mask of the sent tokens that are no padding of covers."""
        covered: _Covered | None = step.memo.get(self)
        return None if covered is None else covered.own

    def _covers(self, batch: Batch, step: Step, stock: Stock, rng: torch.Generator) -> list[Tensor]:
        count = self.config.messages - 1
        if not self.config.fixed:
            return [each.inputs for each in stock.support(count, len(batch.labels), rng)]
        key = seed_for(self.seed, "covers", step.client)
        drawn = hashed(batch.indices.cpu().numpy(), count, key) % np.uint64(stock.size)
        return [stock.texts(rows).inputs for rows in torch.from_numpy(drawn.astype(np.int64))]


def hashed(indices_B: np.ndarray, count: int, key: int) -> np.ndarray:
    """Numbers that look random and depend on index, slot and key alone (splitmix64): C x B."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64)[:, None] + np.uint64(key)
        x = x + indices_B.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))
