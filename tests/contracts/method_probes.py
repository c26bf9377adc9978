"""Small methods for the contracts: between them they override every hook, most of which the
registered methods leave alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.methods import CodecConfig, Method, Phase, Share, Site, Step
from simsplit.phases import Interleaved
from simsplit.seeds import rng_for

NUM_SUPPORT = 2


class Probe(Method):
    """Base of the methods below."""

    def __init__(self, site: Site) -> None:
        self.site = site


class Support(Probe):
    """Support samples ride along behind the batch; the client drops them from what comes back."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        support = batch.inputs.new_full((NUM_SUPPORT, *batch.inputs.shape[1:]), 0.5)
        return replace(batch, inputs=torch.cat([batch.inputs, support]))

    def decode(self, u: Tensor, step: Step) -> Tensor:
        return u[:-NUM_SUPPORT]


class Twice(Probe):
    """Every sample and its label twice."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        pairs = [torch.cat([each, each]) for each in (batch.inputs, batch.labels, batch.indices)]
        return Batch(*pairs)


class TopHalf(Probe):
    """The half of the values that is largest, and where they were."""

    num_side = 1

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        x_BD = x.flatten(1)
        where = x_BD.abs().topk(self.site.size // 2).indices
        return x_BD.gather(1, where), where.int()

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        values, where = tensors
        whole = values.new_zeros(len(values), self.site.size).scatter(1, where.long(), values)
        return whole.unflatten(1, self.site.shape)


class Blur(Probe):
    """Two gradient messages, neither of them the gradient: half their difference is."""

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        count = step.memo["blurs"] = step.memo.get("blurs", 0) + 1
        noise = torch.randn(grad.shape, generator=step.make_rng("blur", count)).to(grad)
        both = torch.stack([noise + grad, noise - grad])  # each message a view of one storage
        return Share(both[0], 0.5), Share(both[1], -0.5)


class Penalty(Probe):
    """Charges for the size of what was decoded."""

    def decode(self, u: Tensor, step: Step) -> Tensor:
        if step.training:
            step.memo[self] = u
        return u

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        return 3 * step.memo.pop(self).square().sum()


class Keyed(Probe):
    """Signs that the server draws and announces; both sides multiply by them."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        if site.side == "server":
            draw = torch.randint(0, 2, site.shape, generator=rng_for(site.seed, "key"))
            self.signs = (draw.float() * 2 - 1).to(site.device)

    def announce(self) -> tuple[Tensor, ...]:
        return (self.signs,)

    def receive_announcement(self, tensors: tuple[Tensor, ...]) -> None:
        (self.signs,) = tensors

    def encode(self, z: Tensor, step: Step) -> Tensor:
        return z * self.signs

    def lift(self, z: Tensor, step: Step) -> Tensor:
        return z * self.signs


class Warm(Probe):
    """A phase before training, in which only the trunk learns."""

    def plan_phases(self, rounds: int) -> Sequence[Phase]:
        return [Phase("warm", rounds // 10, "public", frozenset({"trunk"}))]

    def plan_interleaved_steps(self) -> Interleaved | None:
        return Interleaved(Phase("cool", 0, "public", frozenset({"method"}), gradients=False))


class Fading(Probe):
    """Sends less with each step of training, and so remembers how many there were."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.steps, self.last = 0, -1

    def encode(self, z: Tensor, step: Step) -> Tensor:
        if step.training and step.number != self.last:
            self.steps, self.last = self.steps + 1, step.number
        return z / max(1, self.steps)

    def state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps), "last": torch.tensor(self.last)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.steps, self.last = (int(state[name]) for name in ("steps", "last"))


PROBES = {
    "support": Support,
    "twice": Twice,
    "top_half": TopHalf,
    "blur": Blur,
    "penalty": Penalty,
    "keyed": Keyed,
    "warm": Warm,
    "fading": Fading,
}


class ProbeConfig(CodecConfig):
    """Any of the above."""

    kind: Literal[tuple(PROBES)]

    def build(self, site: Site) -> Method:
        return PROBES[self.kind](site)
