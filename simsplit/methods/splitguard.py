"""This module implements SplitGuard (Erdogan et al., WPES 2022), which detects hijacked training.

From time to time a client sends wrong labels, and does not learn from the returned gradient. A
gradient of the task changes in direction and size when labels are wrong; a gradient forged by FSHA
does not depend on labels at all. Let F be the mean gradient of the head's first weights over fake
batches, R1 and R2 the means over two random halves of the regular batches, R = (R1 + R2) / 2, and
f, r1, r2, r the means of the single gradients' norms. Then

    x = angle(F, R) |f - r| / S - angle(R1, R2) |r1 - r2| / S,   score = sigmoid(5 x)^2,

where S is the sum of both gaps |f - r| and |r1 - r2|. The score is near one if the server is
honest. As in the published code, angles are between means, and sizes are means of norms. The norm
of a mean falls with the number of gradients in it, so it would separate few fake batches from many
regular ones whatever the labels. The score is a column of the `clients` table, whose training
figures count fake batches too. If clients share a head, the sums move with it.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.methods.method import Method, MethodConfig, Site, Step
from simsplit.seeds import rng_for

WIDTH = 1024
"""The number of stored values of a gradient; longer gradients are projected at random."""


class SplitguardConfig(MethodConfig):
    """Fake batches at random, and a score of how the server's gradients react to them."""

    kind: Literal["splitguard"] = "splitguard"
    probability: float = Field(default=0.1, ge=0, le=1)
    """Probability that a batch is fake."""
    after: int = Field(default=20, ge=0)
    """Number of a client's batches before the first one that may be fake. It must be smaller than
    the number of batches of the client that has most."""
    start_field = "after"
    columns = ("splitguard",)
    once = True

    def build(self, site: Site) -> Method:
        return Splitguard(self, site) if site.side == "client" else Method()


class Splitguard(Method):
    """The client's half, which sends fake batches and compares gradients."""

    def __init__(self, config: SplitguardConfig, site: Site) -> None:
        self.config, self.seed = config, site.seed
        self.module = self.kept = nn.Module()
        # Of three kinds of gradients: fake, and two halves of the regular ones.
        self.kept.register_buffer("sums", torch.zeros(3, WIDTH))
        self.kept.register_buffer("norms", torch.zeros(3))
        self.kept.register_buffer("counts", torch.zeros(3))
        # The largest label so far.
        self.kept.register_buffer("largest", torch.tensor(1))

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Make the batch fake at random: shift all labels by the same amount."""
        if not step.training or step.number < self.config.after:
            return batch
        largest = self.kept.get_buffer("largest")
        largest.copy_(torch.maximum(largest, batch.labels.max()))
        rng = step.make_rng("splitguard")
        chance, half = torch.rand(2, generator=rng).tolist()
        is_fake = chance < self.config.probability
        step.memo[self] = 0 if is_fake else 1 + int(half < 0.5)
        if not is_fake:
            return batch
        classes = largest + 1
        shift = 1 + int(torch.randint(int(classes) - 1, (), generator=rng))
        return Batch(batch.inputs, (batch.labels + shift) % classes, batch.indices)

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Add the gradient to the sum of its kind; return False if the batch was fake."""
        if self not in step.memo:
            return True
        which: int = step.memo.pop(self)
        first = next((p.grad for p in head.parameters() if p.grad is not None), None)
        if first is not None:
            gradient = first.flatten().float()
            sums, norms, counts = map(self.kept.get_buffer, ("sums", "norms", "counts"))
            sums[which] += self._sketch(gradient)
            norms[which] += gradient.norm()
            counts[which] += 1
        return which > 0

    def report(self) -> dict[str, float]:
        sums, norms, counts = map(self.kept.get_buffer, ("sums", "norms", "counts"))
        if not counts.all():
            return {}
        return {"splitguard": float(compute_score(sums / counts[:, None], norms / counts))}

    def _sketch(self, gradient: Tensor) -> Tensor:
        """Project a gradient to `WIDTH` values, or pad it to them."""
        short = min(WIDTH, len(gradient))
        if len(gradient) > WIDTH:
            # The stream has no step in its name: all gradients share one projection.
            rng = rng_for(self.seed, "splitguard", len(gradient))
            onto = torch.randn(len(gradient), WIDTH, generator=rng) / WIDTH**0.5
            gradient = gradient @ onto.to(gradient)
        return nn.functional.pad(gradient[:short], (0, WIDTH - short))


def compute_score(means_3D: Tensor, norms_3: Tensor) -> Tensor:
    """Return SplitGuard's score from mean gradients and mean norms (fake, two regular halves)."""
    (fake, one, other), (f, r1, r2) = means_3D, norms_3
    fake_gap, regular_gap = (f - (r1 + r2) / 2).abs(), (r1 - r2).abs()
    total = (fake_gap + regular_gap).clamp_min(1e-12)
    fake_angle = _compute_angle(fake, (one + other) / 2)
    regular_angle = _compute_angle(one, other)
    return torch.sigmoid(5 * (fake_angle * fake_gap - regular_angle * regular_gap) / total) ** 2


def _compute_angle(one: Tensor, other: Tensor) -> Tensor:
    cosine = nn.functional.cosine_similarity(one, other, dim=0)
    return torch.acos(cosine.clamp(-1, 1))
