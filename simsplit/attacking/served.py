"""A server of an API has the whole transformer, so it can repeat a batch's calls by itself."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from simsplit.attacks import Knowledge
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.seeds import rng_for

SKETCHED = 1024
"""The size of the sketch of a sample's gradient of adapters; a text's gradient takes megabytes."""


class ServedReplay:
    """A batch's calls, repeated without the clients' adapters, or for one sample at a time."""

    def __init__(self, trunk: nn.Module, seed: int) -> None:
        self.trunk, self.seed = trunk, seed
        self._bases: dict[bytes, Tensor] = {}

    def base(self, batch: Mapping[Leg, Packet]) -> Tensor:
        """Return the features without adapters, N x D; they never change, so they are kept."""
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        key = torch.cat([ids, mask]).cpu().numpy().tobytes()
        if key not in self._bases:
            with torch.no_grad():
                self._bases[key] = self.trunk(torch.empty(0, 0), ids, mask)[:, 0]
        return self._bases[key]

    def adapter_gradients(self, known: Knowledge, batch: Mapping[Leg, Packet]) -> Tensor:
        """Return the gradient of each sample and adapter alone, N x n x SKETCHED.

        Gradients are sketched: random signs and places keep norms and angles on average.
        """
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        adapters = batch[Leg.ADAPTERS].tensors[0].requires_grad_()
        message = known.message(batch[Leg.FEATURES_GRAD])
        places, signs = (each.to(adapters.device) for each in self._draw_sketch(adapters.shape[1]))
        rows = []
        for grad in self._compute_each(adapters, (ids, mask), message):
            kept = grad.new_zeros(len(grad), SKETCHED)
            rows.append(kept.index_add_(1, places, grad * signs))
        return torch.stack(rows)

    def replies(self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor) -> Tensor:
        """Return the gradient of each sample's row of a message alone, N x n x P."""
        own = adapters.detach().requires_grad_()
        return torch.stack(list(self._compute_each(own, inputs, message)))

    def _compute_each(
        self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor
    ) -> Iterator[Tensor]:
        """Yield the gradient of the adapters for one sample after the other."""
        # One by one: of a batch, only the sum over its samples comes out.
        for each in torch.arange(len(message)).split(1):
            with torch.enable_grad():
                states = self.trunk(adapters, *(given[each] for given in inputs))
                (grad,) = torch.autograd.grad(states, adapters, message[each])
            yield grad

    def _draw_sketch(self, numbers: int) -> tuple[Tensor, Tensor]:
        # One sketch for all batches, or their rows could not be compared.
        rng = rng_for(self.seed, "sketch")
        places = torch.randint(SKETCHED, (numbers,), generator=rng)
        return places, torch.randint(2, (numbers,), generator=rng) * 2.0 - 1
