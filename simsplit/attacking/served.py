"""What a server of an API can compute by itself from what crossed: it has the whole transformer."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from simsplit.attacks import Knowledge
from simsplit.packets import Leg, Packet
from simsplit.seeds import rng_for

SKETCHED = 1024
"""Numbers that a sample's gradient of adapters is kept as; a text's would take megabytes."""


class ServedReplay:
    """A batch's calls, made again without what clients trained, or for a sample at a time."""

    def __init__(self, trunk: nn.Module, seed: int) -> None:
        self.trunk, self.seed = trunk, seed
        self._bases: dict[bytes, Tensor] = {}

    def base(self, batch: Mapping[Leg, Packet]) -> Tensor:
        """The features without any adapters, N x D; made once, for they stay as they are."""
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        key = torch.cat([ids, mask]).cpu().numpy().tobytes()
        if key not in self._bases:
            with torch.no_grad():
                self._bases[key] = self.trunk(torch.empty(0, 0), ids, mask)[:, 0]
        return self._bases[key]

    def adapter_gradients(self, known: Knowledge, batch: Mapping[Leg, Packet]) -> Tensor:
        """Of each sample and adapter, N x n x SKETCHED: what its row of the message comes to alone.

        Sketched by random signs into random places, which keeps norms and angles on average.
        """
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        adapters = batch[Leg.ADAPTERS].tensors[0].requires_grad_()
        message = known.message(batch[Leg.FEATURES_GRAD])
        places, signs = self._sketch(adapters.shape[1])
        rows = []
        for grad in self._apart(adapters, (ids, mask), message):
            kept = grad.new_zeros(len(grad), SKETCHED)
            rows.append(kept.index_add_(1, places, grad * signs))
        return torch.stack(rows)

    def replies(self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor) -> Tensor:
        """What each sample's row of a message comes to alone, N x n x P."""
        own = adapters.detach().requires_grad_()
        return torch.stack(list(self._apart(own, inputs, message)))

    def _apart(
        self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor
    ) -> Iterator[Tensor]:
        for each in torch.arange(len(message)).split(1):
            with torch.enable_grad():
                states = self.trunk(adapters, *(given[each] for given in inputs))
                (grad,) = torch.autograd.grad(states, adapters, message[each])
            yield grad

    def _sketch(self, numbers: int) -> tuple[Tensor, Tensor]:
        rng = rng_for(self.seed, "sketch")
        places = torch.randint(SKETCHED, (numbers,), generator=rng)
        return places, torch.randint(2, (numbers,), generator=rng) * 2.0 - 1
