"""SplitGuard (Erdogan et al., WPES 2022): a client's way to notice that it is trained for another's
end.

Now and then a client sends labels that are wrong and does not learn from what comes back. The
gradient of the task takes offence at wrong labels, in direction and in size; one that was forged,
by FSHA, does not know of labels at all. With F the mean gradient of the head's first weights over
fake batches, R1 and R2 over two random halves of the regular ones, R = (R1 + R2) / 2, and f, r1,
r2, r the means of the single gradients' norms:

    x = angle(F, R) |f - r| / S - angle(R1, R2) |r1 - r2| / S,   score = sigmoid(5 x)^2,

S being the sum of both gaps: near one where the server is honest. Angles are of means, sizes are
means of sizes, as in the published code: the norm of a mean falls with the number of gradients in
it, so it would tell few fakes from many regular batches whatever the labels. The score stands in
the `clients` table, where the training figures count fake batches too. What is summed travels with
a head that is shared.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.methods.base import Method, MethodConfig, Site, Step
from simsplit.seeds import rng_for

WIDTH = 1024
"""How many values of a gradient are kept; longer gradients are projected at random."""


class SplitguardConfig(MethodConfig):
    """Trains on fake batches now and then, and scores how the server's gradients react."""

    kind: Literal["splitguard"] = "splitguard"
    probability: float = Field(default=0.1, ge=0, le=1)
    """Probability that a batch is fake."""
    after: int = Field(default=20, ge=0)
    """A client's batches before the first one that may be fake; refused if it has no more."""
    begins: ClassVar[str | None] = "after"
    reported: ClassVar[tuple[str, ...]] = ("splitguard",)
    once: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        """The client's half; the server knows nothing of it."""
        return Splitguard(self, site) if site.side == "client" else Method()


class Kept(nn.Module):
    """Of gradients (fake, and two halves of the regular) sums, sums of norms and counts; and the
    largest label.
    """

    sums: Tensor
    norms: Tensor
    counts: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(3, WIDTH))
        self.register_buffer("norms", torch.zeros(3))
        self.register_buffer("counts", torch.zeros(3))
        self.register_buffer("largest", torch.tensor(1))


class Splitguard(Method):
    """Sends fake batches, and compares the gradients of fake and real ones."""

    def __init__(self, config: SplitguardConfig, site: Site) -> None:
        self.config, self.seed = config, site.seed
        self.kept = Kept()
        self.module = self.kept

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Sometimes make the batch fake: all labels shifted by the same amount."""
        if not step.training or step.number < self.config.after:
            return batch
        self.kept.largest.copy_(torch.maximum(self.kept.largest, batch.labels.max()))
        rng = step.rng("splitguard")
        chance, half = torch.rand(2, generator=rng).tolist()
        fake = chance < self.config.probability
        step.memo[self] = 0 if fake else 1 + int(half < 0.5)
        if not fake:
            return batch
        classes = self.kept.largest + 1
        shift = 1 + int(torch.randint(int(classes) - 1, (), generator=rng))
        return Batch(batch.inputs, (batch.labels + shift) % classes, batch.indices)

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Add the gradient to its sum; learn from it unless the batch was fake."""
        if self not in step.memo:
            return True
        which: int = step.memo.pop(self)
        first = next((p.grad for p in head.parameters() if p.grad is not None), None)
        if first is not None:
            gradient = first.flatten().float()
            self.kept.sums[which] += self._sketch(gradient)
            self.kept.norms[which] += gradient.norm()
            self.kept.counts[which] += 1
        return which > 0

    def report(self) -> dict[str, float]:
        """The score, once there are gradients of each kind."""
        if not self.kept.counts.all():
            return {}
        counts = self.kept.counts
        return {
            "splitguard": float(score(self.kept.sums / counts[:, None], self.kept.norms / counts))
        }

    def _sketch(self, gradient: Tensor) -> Tensor:
        short = min(WIDTH, len(gradient))
        if len(gradient) > WIDTH:
            rng = rng_for(self.seed, "splitguard", len(gradient))
            onto = torch.randn(len(gradient), WIDTH, generator=rng) / WIDTH**0.5
            gradient = gradient @ onto.to(gradient)
        return nn.functional.pad(gradient[:short], (0, WIDTH - short))


def score(means_3D: Tensor, norms_3: Tensor) -> Tensor:
    """SplitGuard's score from mean gradients and mean norms: fake, and two regular halves."""
    (fake, one, other), (minded, first, second) = means_3D, norms_3
    minds = (minded - (first + second) / 2).abs()
    varies = (first - second).abs()
    total = (minds + varies).clamp_min(1e-12)
    apart, noise = _angle(fake, (one + other) / 2), _angle(one, other)
    return torch.sigmoid(5 * (apart * minds - noise * varies) / total) ** 2


def _angle(one: Tensor, other: Tensor) -> Tensor:
    cosine = nn.functional.cosine_similarity(one, other, dim=0)
    return torch.acos(cosine.clamp(-1, 1))
