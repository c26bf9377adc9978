"""MID (Zou et al., 2023): a variational information bottleneck between head and trunk.

What the head puts out, H, becomes the parameters of a normal distribution; a sample of it, decoded,
is sent. A term in the loss draws the distributions towards N(0, I), and so bounds what the sample
tells of H:

    mu, s = ReLU(Linear(H)) halved;  sigma = softplus(s - 0.5);  Z = mu + sigma * noise
    sent = ReLU(Linear(Z));  term = weight * mean KL( N(mu, sigma^2) || N(0, 1) )

As in the published code of VFLAIR-LLM: both layers are the client's, and act on each token (here
also on each place of an image, by its channels, and on a row of a table). Divergences are averaged
over batch, length and width, padding included; that code divides by the width once more, so its
weight is this one times the width. Samples are drawn in training. In evaluation the mean is sent,
which is ours; that code draws there too (`inference: sample`).

Both layers start at random, so a pretrained model has to learn anew what its head puts out.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from simsplit.methods.base import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.seeds import isolated


class MidConfig(MethodConfig):
    """Sends a noisy code of the head's output, and learns to leave out what is not needed."""

    kind: Literal["mid"] = "mid"
    weight: float = Field(default=1e-4, ge=0)
    """Weight of the divergence in the loss; published runs use 1e-6 to 1e-2. 0: no term."""
    inference: Literal["mean", "sample"] = "mean"
    """What is sent in evaluation: the mean of the distribution, or a sample as in training."""
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True
    passes: ClassVar[bool] = True
    reported: ClassVar[tuple[str, ...]] = ("mid_kl",)

    def build(self, site: Site) -> Method:
        """Both layers on the client; nothing on the server."""
        return Mid(self, site) if site.side == "client" else Method()


class Mid(Method):
    """Encoder, sample and decoder; of a round, `mid_kl` is the mean divergence."""

    def __init__(self, config: MidConfig, site: Site) -> None:
        self.weight, self.samples = config.weight, config.inference == "sample"
        self.images = len(site.shape) == 3
        width = site.shape[0] if self.images else site.shape[-1]
        with isolated(site.seed, "mid"):
            self.encoder = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU())
            self.decoder = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.module = nn.ModuleList([self.encoder, self.decoder])

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Draw a code of z, and decode it; the divergence is kept for the loss."""
        parted = self.encoder(z.movedim(1, -1) if self.images else z)
        mean, spread = parted.chunk(2, dim=-1)
        sigma = softplus(spread - 0.5)
        if step.training:
            divergence = mean_divergence(mean, sigma)
            step.told["mid_kl"] = divergence.detach()
            if self.weight:
                step.memo[self] = divergence
        code = mean
        if step.training or self.samples:
            noise = torch.randn(mean.shape, generator=step.rng("mid", step.phase))
            code = mean + sigma * noise.to(mean)
        sent: Tensor = self.decoder(code)
        return sent.movedim(-1, 1) if self.images else sent

    def loss(self, step: Step) -> Tensor | None:
        """The mean divergence, times its weight."""
        return self.weight * step.memo.pop(self) if self in step.memo else None


def mean_divergence(mean: Tensor, sigma: Tensor) -> Tensor:
    """Of N(mean, sigma^2) from N(0, 1), averaged over all values."""
    mean, sigma = mean.float(), sigma.float()
    return (0.5 * (mean.square() + sigma.square() - 1) - sigma.log()).mean()
