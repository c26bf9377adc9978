"""ADMI (PIDI's paper, 2026, section 5): a defence of both ends of a split language model.

An adapter (see `adapters`) takes what the head knows past the server to the tail; a variational
bottleneck behind the head draws what is sent towards N(0, I); and a term in the loss draws tail and
trunk away from the tail as it was before training, which the server knows:

    T' = adapter(T, H);  L = L_T + alpha L_MI + beta ada L_D
    L_MI = mean over tokens of the sum over the width of KL( N(mu, sigma^2) || N(0, 1) )
    L_D = 1 / CE( pretrained_tail(T), tail(T') )
    ada = min( |dL_D/dE|, 0.1 |dL_T/dE| ) / ( |dL_D/dE| + 1e-8 ),  E what the head embeds

In the warm-up the client sends no gradient and gets none: the trunk only computes, and the head
learns through the adapter, without bottleneck and L_MI. Then all learn.

No code of it is public, and the paper leaves much open; here stands ours. Attention is causal in
both halves of the adapter, or T' would know later tokens; layers are pre-norm. Both tails' cross
entropy is of the pretrained one's predictions, under the probabilities of the own one, at the
places that the loss is of. In training proper the gradient at E is that of the way through the
adapter: what comes by way of the trunk is known only after the loss has been sent. Without an
adapter norms are taken at T. Padding counts in L_MI, as in `mid`, whose code the bottleneck
follows (sigma = softplus(s - 0.5)), but for the decoder, which is linear; alpha multiplies a sum
over the width, and is not told. In evaluation the bottleneck sends means. The tail has the head's
rate in the warm-up.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError, ScenarioError
from simsplit.methods.adapters import Adapter
from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Shape, Site, Step, Trait
from simsplit.methods.mid import mean_divergence
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg
from simsplit.phases import WARM_UP, Phase, warming_up
from simsplit.seeds import isolated


class AdmiConfig(MethodConfig):
    """An adapter past the server, a bottleneck, and a tail unlike the pretrained one."""

    kind: Literal["admi"] = "admi"
    beta: float = Field(default=10.0, ge=0)
    """Weight of the distance from the pretrained tail; published runs use 1, 5, 10 and 50."""
    alpha: float = Field(default=1e-4, ge=0)
    """Weight of the bottleneck's divergence, which is summed over the width; not published."""
    adaptive: bool = True
    """Whether beta is scaled so that the distance moves embeddings a tenth as much as the task;
    if not, 1 / CE is as large as it is."""
    adapter: bool = True
    """Whether there is an adapter. Without one the head learns nothing in the warm-up."""
    bottleneck: bool = True
    """Whether there is a variational bottleneck behind the head."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of the adapter's layers."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds in which nothing returns to the server; published: two epochs."""
    warm_up_lr: float | None = Field(default=2e-5, gt=0)
    """Learning rate of head and tail in the warm-up; null: that of `train.client`."""
    adapter_lr: float = Field(default=2e-4, gt=0)
    """The adapter's learning rate, for AdamW; `train.lr_schedule` holds for it too."""
    bottleneck_lr: float = Field(default=4e-4, gt=0)
    """The bottleneck's."""
    inference: Literal["mean", "sample"] = "mean"
    """What the bottleneck sends in evaluation: its mean, or a sample as in training."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES, Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.ALONE})
    once: ClassVar[bool] = True
    reads_tail: ClassVar[bool] = True
    passes: ClassVar[bool] = True
    reported: ClassVar[tuple[str, ...]] = ("admi_kl", "admi_ce", "admi_ada")
    requires: ClassVar[Needs] = (
        needs_leg(Leg.FEATURES),
        Need(Given.CAUSAL),
        Need(Given.KNOWN_TAIL),
    )

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The same shape; raises ScenarioError if `heads` does not divide its width."""
        if self.adapter and shape[-1] % self.heads:
            raise ScenarioError(
                f"{where}.heads", f"must divide the width of {shape[-1]}, got {self.heads}"
            )
        return shape

    def build(self, site: Site) -> Method:
        """All of it on the client; the server knows nothing of it."""
        return Admi(self, site) if site.side == "client" else Method()


class Bottleneck(nn.Module):
    """From a token's vector to a normal distribution, and from a sample of it back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def parted(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each value of a token's code."""
        mean, spread = relu(self.encoder(z)).chunk(2, dim=-1)
        return mean, softplus(spread - 0.5)


class Admi(Method):
    """The client's part, which is all of it; a step's memo has the adapter's memory of H."""

    def __init__(self, config: AdmiConfig, site: Site) -> None:
        self.config, self.known = config, site.tail
        width = site.shape[-1]
        with isolated(site.seed, "admi"):
            self.adapter = Adapter(width, config.heads) if config.adapter else None
            self.bottleneck = Bottleneck(width) if config.bottleneck else None
        parts = {"adapter": self.adapter, "bottleneck": self.bottleneck}
        self.module = nn.ModuleDict({n: part for n, part in parts.items() if part is not None})
        self.reaches_head = config.adapter

    def plan(self, rounds: int) -> list[Phase]:
        """The warm-up: the trunk computes, and no gradient crosses."""
        if not self.config.warm_up:
            return []
        return [warming_up(self.config.warm_up, lr=self.config.warm_up_lr)]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The adapter's and the bottleneck's own, whatever the client's is."""
        rates = (
            (self.adapter, self.config.adapter_lr),
            (self.bottleneck, self.config.bottleneck_lr),
        )
        groups = [{"params": [*part.parameters()], "lr": lr} for part, lr in rates if part]
        return torch.optim.AdamW(groups)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Remember z for the adapter; send a code of it, after the warm-up."""
        if self.adapter is not None:
            step.memo[self] = self.adapter.remembered(z, step)
        if self.bottleneck is None or step.stage == WARM_UP:
            return z
        code, sigma = self.bottleneck.parted(z)
        if step.training:
            divergence = code.shape[-1] * mean_divergence(code, sigma)
            step.told["admi_kl"] = divergence.detach()
            step.memo[self, "divergence"] = divergence
        if step.training or self.config.inference == "sample":
            noise = torch.randn(code.shape, generator=step.rng("admi", step.phase))
            code = code + sigma * noise.to(code)
        sent: Tensor = self.bottleneck.decoder(code)
        return sent

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """What the adapter makes of the features; these are kept for the pretrained tail."""
        if step.training:
            step.memo[self, "features"] = u
        if self.adapter is None or self not in step.memo:
            return u
        return self.adapter.refined(u, step.memo.pop(self), step)

    def loss(self, step: Step) -> Tensor | None:
        """The divergence, times alpha."""
        divergence: Tensor | None = step.memo.pop((self, "divergence"), None)
        return (
            self.config.alpha * divergence if self.config.alpha and divergence is not None else None
        )

    def tail_loss(self, step: Step) -> Tensor | None:
        """The inverse distance from the pretrained tail, times beta and ada."""
        u: Tensor | None = step.memo.pop((self, "features"), None)
        if not self.config.beta or u is None or step.outputs is None or step.task is None:
            return None
        if not step.task.requires_grad:  # a phase of another method's, in which none is learned
            return None
        if self.known is None:
            raise ProtocolError("admi was not given the tail as it was before training")
        context = () if step.mask is None else (step.mask,)
        asked = slice(None) if step.labels is None else step.labels != IGNORED
        entropy = crossed(self.known(u, *context)[asked], step.outputs[asked])
        inverse = 1 / entropy
        step.told["admi_ce"] = entropy.detach()
        if not self.config.adaptive:
            return self.config.beta * inverse
        at = step.embedded if self.adapter is not None else u
        scale = weight(inverse, step.task, at)
        step.told["admi_ada"] = scale
        return self.config.beta * scale * inverse


def crossed(predicted: Tensor, wanted: Tensor) -> Tensor:
    """The mean cross entropy of predictions under probabilities, both given as logits."""
    return nn.functional.cross_entropy(predicted.float(), wanted.float().softmax(-1))


def weight(inverse: Tensor, task: Tensor, at: Tensor | None) -> Tensor:
    """ada: how much the distance may count, so as to move `at` a tenth as much as the task does."""
    if at is None:
        raise ProtocolError("admi needs a head that embeds tokens")
    grads = [
        torch.autograd.grad(each, at, retain_graph=True, materialize_grads=True)[0]
        for each in (inverse, task)
    ]
    far, near = (grad.norm() for grad in grads)
    scale: Tensor = torch.minimum(far, 0.1 * near) / (far + 1e-8)
    return scale
