"""Cover (ours): each private text crosses unchanged among k - 1 public ones.

This is the simplest way to hide a text among messages, and so the baseline for every mixture. It
decodes without error for any trunk, and a reader of the packets reads k texts without knowing which
one is private. With `fixed`, a text has the same covers in every epoch. With fresh covers, an
observer finds the private text as the one that comes again.

It protects the forward pass only: just the private text's rows have gradients, so an observer of
gradients knows which rows are private. Made-up gradients for the covers would train the trunk on
them.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch, pad_tokens
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods.method import CUT_LEGS, TEXTS, Method, MethodConfig, Site, Step, Trait
from simsplit.methods.tokens import Stock
from simsplit.needs import Given, Need, need_leg
from simsplit.seeds import derive_seed


class CoverConfig(MethodConfig):
    """Public texts among which each private text is sent, in an order that only clients know."""

    kind: Literal["cover"] = "cover"
    messages: int = Field(default=3, ge=2)
    """k: number of texts that are sent for each private one, itself included."""
    fixed: bool = True
    """Whether a private text has the same covers in every epoch; if not, they are drawn each time.
    """
    secrets: ClassVar[str] = "sample"
    """The private text's place among the covers is drawn per text."""
    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES, Trait.ALONE})
    ended_traits = frozenset({Trait.SAMPLES})
    once = True
    superposes = CUT_LEGS
    requires = (need_leg(Leg.FEATURES), Need(Given.SUPPORT), Need(Given.UNMASKED))

    def build(self, site: Site) -> Method:
        return Cover(self, site.seed) if site.side == "client" else Method()


class Cover(Method):
    """The client's half; a step's memo holds the private texts' places and tokens (a mask)."""

    def __init__(self, config: CoverConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Join k batches in one; each private row is at a random place among its covers."""
        if step.stock is None:
            raise ProtocolError("cover: the client has no public texts to send along")
        rng, count = step.make_rng("cover", step.phase), self.config.messages
        covers = self._draw_covers(batch, step, step.stock, rng)
        longest = max(each.shape[1] for each in (batch.inputs, *covers))
        fill = step.stock.pad
        every = torch.stack([pad_tokens(each, longest, fill) for each in (*covers, batch.inputs)])
        rows = torch.arange(len(batch.labels))
        places = torch.randint(count, (len(rows),), generator=rng)
        order = torch.arange(count)[:, None].expand(-1, len(rows)).clone()
        # The private row, which is the last one, changes places with the row at `places`.
        order[-1], order[places, rows] = places, count - 1
        mixed = every[order.to(every.device), rows.to(every.device)]
        own = pad_tokens(torch.ones_like(batch.inputs, dtype=torch.bool), longest, 0)
        step.memo[self] = places.to(every.device), own
        labels = pad_tokens(batch.labels, longest, IGNORED)
        return Batch(mixed.flatten(0, 1), labels, batch.indices)

    def decode(self, u: Tensor, step: Step) -> Tensor:
        if self not in step.memo:
            return u
        places, _ = step.memo[self]
        u_KBLD = u.unflatten(0, (self.config.messages, -1))
        picked: Tensor = u_KBLD[places, torch.arange(len(places), device=u.device)]
        return picked

    def get_own_tokens(self, step: Step) -> Tensor | None:
        """Return a mask of the private texts' tokens, without the padding up to their covers."""
        own: Tensor | None
        _, own = step.memo.get(self, (None, None))
        return own

    def _draw_covers(
        self, batch: Batch, step: Step, stock: Stock, rng: torch.Generator
    ) -> list[Tensor]:
        count = self.config.messages - 1
        if not self.config.fixed:
            return [each.inputs for each in stock.draw_support(count, len(batch.labels), rng)]
        # The step is not part of the key, so a text has the same covers in every epoch.
        key = derive_seed(self.seed, "covers", step.client)
        drawn = hash_indices(batch.indices.cpu().numpy(), count, key) % np.uint64(stock.size)
        return [stock.get_texts(rows).inputs for rows in torch.from_numpy(drawn.astype(np.int64))]


def hash_indices(indices_B: np.ndarray, count: int, key: int) -> np.ndarray:
    """Return pseudo-random numbers of index, slot and key (splitmix64): C x B."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64)[:, None] + np.uint64(key)
        x = x + indices_B.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))
