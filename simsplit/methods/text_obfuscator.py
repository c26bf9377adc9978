"""TextObfuscator (Zhou et al., Findings of ACL 2023): noise, and tokens of a cluster made alike.

Tokens fall into clusters, and two terms in the client's loss draw what is sent of a token towards
its cluster's centre, and centres apart; Laplace noise of scale 1 / epsilon then tells less of which
token of a cluster it was:

    L = L_T + 0.1 mean (H - centre)^2 - 0.5 mean |centre_i - centre_j|
    sent = H + Laplace(1 / epsilon)

As in the published code of VFLAIR-LLM: k-means on the embeddings of tokens, centres that learn, the
mean distance over n (n + 1) / 2 pairs, and noise on every value, in evaluation too. Ours: tokens
that never occur belong to the nearest centre (there, to the first one), and k-means weighs tokens
by how often they occur in training, where that code takes each once. Noise falls on padding too.
Nothing bounds H, so noise of this size has no guarantee; what it hides depends on the model.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.methods.noise import laplace


class TextObfuscatorConfig(MethodConfig):
    """Adds noise, and learns to send tokens of a cluster alike."""

    kind: Literal["text_obfuscator"] = "text_obfuscator"
    epsilon: float = Field(default=5.0, gt=0)
    """The noise's scale is 1 / epsilon; PIDI's runs use 10 (weakest) to 1."""
    clusters: int = Field(default=100, ge=2)
    """Number of clusters; of a vocabulary with fewer tokens, as many as it has."""
    close: float = Field(default=0.1, ge=0)
    """Weight of the mean square of what parts a token from its centre."""
    away: float = Field(default=0.5, ge=0)
    """Weight of the mean distance between centres."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES, Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.ALONE})
    once: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True
    passes: ClassVar[bool] = True

    def build(self, site: Site) -> Method:
        """Centres and noise on the client; nothing on the server."""
        return TextObfuscator(self, site) if site.side == "client" else Method()


class TextObfuscator(Method):
    """Keeps what is sent of a batch, and of which clusters it is, for the loss."""

    def __init__(self, config: TextObfuscatorConfig, site: Site) -> None:
        self.config, self.known = config, site.tokens
        width = site.shape[-1]
        start = torch.zeros(config.clusters, width)
        self.module = self.centres = nn.Embedding(config.clusters, width, _weight=start)
        if site.tokens is not None:
            centres = site.tokens.clusters(config.clusters).centres
            with torch.no_grad():
                self.centres.weight[: len(centres)] = centres

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Keep each token's cluster for the loss; those of padding are left out."""
        if step.training and self.known is not None:
            real = batch.real if batch.mask is None else batch.mask
            of = self.known.clusters(self.config.clusters).of
            step.memo[self] = [of[batch.inputs[real]], real]
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Add noise; z is kept for the loss."""
        if self in step.memo:
            step.memo[self].append(z)
        noise = laplace(z.shape, step.rng("text_obfuscator", step.phase)) / self.config.epsilon
        return z + noise.to(z)

    def loss(self, step: Step) -> Tensor | None:
        """What draws tokens to their centres, and centres apart."""
        if self.known is None:
            raise ProtocolError("text_obfuscator was not told the model's vocabulary")
        if self not in step.memo:
            return None
        of_N, real_BL, z = step.memo.pop(self)
        count = len(self.known.clusters(self.config.clusters).centres)
        near = nn.functional.mse_loss(z[real_BL], self.centres(of_N))
        far = torch.pdist(self.centres.weight[:count]).sum() / (count * (count + 1) / 2)
        term: Tensor = self.config.close * near - self.config.away * far
        return term
