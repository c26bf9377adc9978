"""ADMI (PIDI's paper, 2026, section 5): a defence of both ends of a split language model.

It has three parts. An adapter (see `adapters`) passes the head's output around the server to the
tail. A variational bottleneck after the head pulls the sent codes towards N(0, I). A loss term
pushes tail and trunk away from the tail before training, which the server knows:

    T' = adapter(T, H);  L = L_T + alpha L_MI + beta ada L_D
    L_MI = mean over tokens of the sum over the width of KL( N(mu, sigma^2) || N(0, 1) )
    L_D = 1 / CE( pretrained_tail(T), tail(T') )
    ada = min( |dL_D/dE|, 0.1 |dL_T/dE| ) / ( |dL_D/dE| + 1e-8 ),  E what the head embeds

In the warm-up the client sends no gradient and gets none: the trunk only computes, and the head
learns through the adapter, without the bottleneck and L_MI. Afterwards everything learns.

No code of ADMI is public, and the paper leaves much open. These choices are ours:

- Attention is causal in both halves of the adapter, since T' would otherwise contain later tokens.
  Layers are pre-norm.
- The cross-entropy compares the predictions of the pretrained tail with the probabilities of the
  client's tail, at the labelled tokens.
- In training proper the gradient at E is the one through the adapter only: the gradient through the
  trunk is known only after the loss has been sent. Without an adapter, norms are taken at T.
- The bottleneck follows `mid` (sigma = softplus(s - 0.5); padding counts in L_MI), but its decoder
  is linear, and it sends means in evaluation.
- alpha multiplies a sum over the width; the paper does not give its value.
- In the warm-up the tail has the head's learning rate.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError, ScenarioError
from simsplit.legs import Leg
from simsplit.methods.adapters import Adapter
from simsplit.methods.method import TEXTS, Method, MethodConfig, Shape, Site, Step, Trait
from simsplit.methods.mid import compute_mean_divergence
from simsplit.needs import Given, Need, need_leg
from simsplit.phases import WARM_UP, Phase, build_warm_up
from simsplit.seeds import isolate


class AdmiConfig(MethodConfig):
    """An adapter around the server, a bottleneck, and a tail unlike the pretrained one."""

    kind: Literal["admi"] = "admi"
    beta: float = Field(default=10.0, ge=0)
    """Weight of the distance from the pretrained tail; published runs use 1, 5, 10 and 50."""
    alpha: float = Field(default=1e-4, ge=0)
    """Weight of the bottleneck's divergence, which is summed over the width. No published value."""
    adaptive: bool = True
    """Whether beta is scaled so that the gradient of the distance term at the embeddings is at most
    a tenth of the task's; if not, the term is beta / CE."""
    adapter: bool = True
    """Whether there is an adapter. Without it, the head does not learn in the warm-up."""
    bottleneck: bool = True
    """Whether there is a variational bottleneck after the head."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of the adapter's layers. They must divide the width of the model."""
    warm_up: int = Field(default=2, ge=0)
    """Rounds in which clients send no gradients to the server; published: two epochs."""
    warm_up_lr: float | None = Field(default=2e-5, gt=0)
    """Learning rate of head and tail in the warm-up; null: as in `train.client`."""
    adapter_lr: float = Field(default=2e-4, gt=0)
    """The adapter's learning rate, for AdamW; `train.lr_schedule` applies to it too."""
    bottleneck_lr: float = Field(default=4e-4, gt=0)
    """The bottleneck's learning rate, for AdamW; `train.lr_schedule` applies to it too."""
    inference: Literal["mean", "sample"] = "mean"
    """What the bottleneck sends in evaluation: the mean, or a sample as in training."""
    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES, Trait.VALUES})
    ended_traits = frozenset({Trait.ALONE})
    once = True
    reads_tail = True
    works_in_sessions = True
    columns = ("admi_kl", "admi_ce", "admi_ada")
    requires = (
        need_leg(Leg.FEATURES),
        Need(Given.CAUSAL),
        Need(Given.KNOWN_TAIL),
    )

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return the same shape, or raise ScenarioError if `heads` does not divide its width."""
        if self.adapter and shape[-1] % self.heads:
            raise ScenarioError(
                f"{where}.heads", f"must divide the model's width of {shape[-1]}, got {self.heads}"
            )
        return shape

    def build(self, site: Site) -> Method:
        return Admi(self, site) if site.side == "client" else Method()


class Bottleneck(nn.Module):
    """The layers that turn a token's vector into a normal distribution, and a sample back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def encode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation of each value of a token's code."""
        mean, spread = relu(self.encoder(z)).chunk(2, dim=-1)
        return mean, softplus(spread - 0.5)


class Admi(Method):
    """The client's half; the server has none. A step's memo has the adapter's encoding of H."""

    def __init__(self, config: AdmiConfig, site: Site) -> None:
        self.config, self.public_tail = config, site.tail
        width = site.shape[-1]
        with isolate(site.seed, "admi"):
            self.adapter = Adapter(width, config.heads) if config.adapter else None
            self.bottleneck = Bottleneck(width) if config.bottleneck else None
        parts = {"adapter": self.adapter, "bottleneck": self.bottleneck}
        self.module = nn.ModuleDict({n: part for n, part in parts.items() if part is not None})
        self.reaches_head = config.adapter

    def plan_phases(self, rounds: int) -> list[Phase]:
        """Return the warm-up, in which the trunk computes and no gradient crosses."""
        if not self.config.warm_up:
            return []
        return [build_warm_up(self.config.warm_up, lr=self.config.warm_up_lr)]

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimizer of adapter and bottleneck, which does not depend on the client's."""
        rates = (
            (self.adapter, self.config.adapter_lr),
            (self.bottleneck, self.config.bottleneck_lr),
        )
        groups = [{"params": [*part.parameters()], "lr": lr} for part, lr in rates if part]
        return torch.optim.AdamW(groups)

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Encode z for the adapter; after the warm-up, replace z by a code of it."""
        if self.adapter is not None:
            step.memo[self] = self.adapter.encode(z, step)
        if self.bottleneck is None or step.stage == WARM_UP:
            return z
        code, sigma = self.bottleneck.encode(z)
        if step.training:
            divergence = code.shape[-1] * compute_mean_divergence(code, sigma)
            step.figures["admi_kl"] = divergence.detach()
            if self.config.alpha:
                step.memo[self, "divergence"] = divergence
        if step.training or self.config.inference == "sample":
            noise = step.draw_rows(torch.randn, code.shape, "admi", step.phase, device=code.device)
            code = code + sigma * noise.to(code)
        sent: Tensor = self.bottleneck.decoder(code)
        return sent

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Refine the features with the adapter; keep them for the pretrained tail."""
        if step.training:
            step.memo[self, "features"] = u
        if self.adapter is None or self not in step.memo:
            return u
        return self.adapter.refine(u, step.memo.pop(self), step)

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        divergence: Tensor | None = step.memo.pop((self, "divergence"), None)
        return None if divergence is None else self.config.alpha * divergence

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the inverse distance from the pretrained tail, times beta and ada."""
        u: Tensor | None = step.memo.pop((self, "features"), None)
        if not self.config.beta or u is None or step.outputs is None or step.task is None:
            return None
        if not step.task.requires_grad:  # a phase of another method, which does not learn the task
            return None
        if self.public_tail is None:
            raise ProtocolError("admi: the client has no copy of the tail before training")
        context = () if step.mask is None else (step.mask,)
        labelled = slice(None) if step.labels is None else step.labels != IGNORED
        entropy = soft_cross_entropy(
            self.public_tail(u, *context)[labelled], step.outputs[labelled]
        )
        inverse = 1 / entropy
        step.figures["admi_ce"] = entropy.detach()
        if not self.config.adaptive:
            return self.config.beta * inverse
        at = step.embedded if self.adapter is not None else u
        scale = compute_ada(inverse, step.task, at)
        step.figures["admi_ada"] = scale
        return self.config.beta * scale * inverse


def soft_cross_entropy(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of predictions with target probabilities, both as logits."""
    # In float32: the sum over a vocabulary would lose too much in a narrower type.
    return nn.functional.cross_entropy(predicted.float(), wanted.float().softmax(-1))


def compute_ada(inverse: Tensor, task: Tensor, at: Tensor | None) -> Tensor:
    """Return ada, which limits the inverse's gradient at `at` to a tenth of the task's."""
    if at is None:
        raise ProtocolError("admi: the head gives no embeddings of its tokens")
    # The graph is kept for the step's own backward pass; a loss that does not depend on `at`
    # has the gradient 0.
    grads = [
        torch.autograd.grad(each, at, retain_graph=True, materialize_grads=True)[0]
        for each in (inverse, task)
    ]
    far, near = (grad.norm() for grad in grads)
    scale: Tensor = torch.minimum(far, 0.1 * near) / (far + 1e-8)
    return scale
