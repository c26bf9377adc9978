"""This module implements MID (Zou et al., 2023), an information bottleneck behind the head.

A layer maps the head's output H to the parameters of a normal distribution; a sample of it is
decoded and sent. A loss term pulls the distributions towards N(0, I), and so bounds the information
about H in the sample:

    (mu, s) = ReLU(Linear(H));  sigma = softplus(s - 0.5);  Z = mu + sigma * noise
    sent = ReLU(Linear(Z));  term = weight * mean KL( N(mu, sigma^2) || N(0, 1) )

As in the published code of VFLAIR-LLM, both layers belong to the client and act on each token (here
also on the channels at each position of an image, and on a row of a table). Divergences are
averaged over batch, length and width, including padding; the published code divides by the width
once more, so its weight is ours times the width. Training sends samples. Evaluation sends the mean
(ours), or samples as in the published code (`inference: sample`).

Both layers start from random weights, so a pretrained model must first learn to pass information
through them.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from simsplit.methods.method import ANYTHING, Method, MethodConfig, Site, Step, Trait
from simsplit.seeds import isolate


class MidConfig(MethodConfig):
    """A variational bottleneck behind the head, which learns to drop unneeded information."""

    kind: Literal["mid"] = "mid"
    weight: float = Field(default=1e-4, ge=0)
    """Weight of the divergence in the loss. Published runs use 1e-6 to 1e-2; 0: no term."""
    inference: Literal["mean", "sample"] = "mean"
    """Whether evaluation sends the mean of the distribution, or a sample as in training."""
    modalities = ANYTHING
    required_traits = frozenset({Trait.VALUES})
    once = True
    works_in_sessions = True
    columns = ("mid_kl",)

    def build(self, site: Site) -> Method:
        return Mid(self, site) if site.side == "client" else Method()


class Mid(Method):
    """Encoder and decoder of the client; the column `mid_kl` has a round's mean divergence."""

    def __init__(self, config: MidConfig, site: Site) -> None:
        self.weight, self.samples = config.weight, config.inference == "sample"
        self.images = len(site.shape) == 3
        width = site.shape[0] if self.images else site.shape[-1]
        with isolate(site.seed, "mid"):
            self.encoder = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU())
            self.decoder = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.module = nn.ModuleList([self.encoder, self.decoder])

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Draw a code of z and decode it; store the divergence for the loss."""
        parameters = self.encoder(z.movedim(1, -1) if self.images else z)
        mean, spread = parameters.chunk(2, dim=-1)
        sigma = softplus(spread - 0.5)
        if step.training:
            divergence = compute_mean_divergence(mean, sigma)
            step.figures["mid_kl"] = divergence.detach()
            if self.weight:
                step.memo[self] = divergence
        code = mean
        if step.training or self.samples:
            noise = step.draw_rows(torch.randn, mean.shape, "mid", step.phase, device=mean.device)
            code = mean + sigma * noise.to(mean)
        sent: Tensor = self.decoder(code)
        return sent.movedim(-1, 1) if self.images else sent

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        return self.weight * step.memo.pop(self) if self in step.memo else None


def compute_mean_divergence(mean: Tensor, sigma: Tensor) -> Tensor:
    """Return the divergence of N(mean, sigma^2) from N(0, 1), averaged over all values."""
    # In fp32, since squares and logarithms lose precision or overflow under autocast.
    mean, sigma = mean.float(), sigma.float()
    return (0.5 * (mean.square() + sigma.square() - 1) - sigma.log()).mean()
