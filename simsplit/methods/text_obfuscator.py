"""This module implements TextObfuscator (Zhou et al., Findings of ACL 2023): clusters and noise.

Tokens are divided into clusters. Two terms in the client's loss pull the head's output for a token
towards its cluster's centre, and push centres apart; then Laplace noise of scale 1 / epsilon hides
which token of a cluster was sent:

    L = L_T + 0.1 mean (H - centre)^2 - 0.5 mean |centre_i - centre_j|
    sent = H + Laplace(1 / epsilon)

As in the published code of VFLAIR-LLM, clusters come from k-means on the token embeddings, centres
learn, the distance is averaged over n (n + 1) / 2 pairs, and every value gets noise, in evaluation
too. Our departures: tokens that do not occur in training belong to the nearest centre (there, to
the first one), and k-means weights tokens by their counts in training (there, equally). Padding
gets noise too. H is not bounded, so the noise has no guarantee; its effect depends on the model.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.method import TEXTS, Method, MethodConfig, Site, Step, Trait
from simsplit.methods.noise import draw_laplace


class TextObfuscatorConfig(MethodConfig):
    """Noise, and similar data for all tokens of a cluster."""

    kind: Literal["text_obfuscator"] = "text_obfuscator"
    epsilon: float = Field(default=5.0, gt=0)
    """Inverse of the noise's scale. PIDI's runs use 10 (weakest) to 1."""
    clusters: int = Field(default=100, ge=2)
    """Number of clusters; at most one per token of the vocabulary."""
    close: float = Field(default=0.1, ge=0)
    """Weight of the mean squared distance between tokens and their centres."""
    away: float = Field(default=0.5, ge=0)
    """Weight of the mean distance between centres, which the loss rewards."""
    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES, Trait.VALUES})
    ended_traits = frozenset({Trait.ALONE})
    once = True
    reads_tokens = True
    works_in_sessions = True
    release: ClassVar[str] = (
        "what is sent is not clipped, so its noise does not surely hide a token"
    )

    def build(self, site: Site) -> Method:
        return TextObfuscator(self, site) if site.side == "client" else Method()


class TextObfuscator(Method):
    """The client's half; a step's memo holds the batch's clusters and the head's output."""

    def __init__(self, config: TextObfuscatorConfig, site: Site) -> None:
        self.config, self.tokens = config, site.tokens
        width = site.shape[-1]
        start = torch.zeros(config.clusters, width)
        self.module = self.centres = nn.Embedding(config.clusters, width, _weight=start)
        if site.tokens is not None:
            centres = site.tokens.get_clusters(config.clusters).centres
            with torch.no_grad():
                self.centres.weight[: len(centres)] = centres

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch unchanged, and store the clusters of its real tokens for the loss."""
        if step.training and self.tokens is not None:
            real = batch.real if batch.mask is None else batch.mask
            of = self.tokens.get_clusters(self.config.clusters).of
            step.memo[self] = [of[batch.inputs[real]], real]
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        if self in step.memo:
            step.memo[self].append(z)
        rng = step.make_rng("text_obfuscator", step.phase, device=z.device)
        noise = draw_laplace(z.shape, rng) / self.config.epsilon
        return z + noise.to(z)

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the terms that pull tokens towards their centres, and push centres apart."""
        if self.tokens is None:
            raise ProtocolError("text_obfuscator needs the model's vocabulary, got none")
        if self not in step.memo:
            return None
        of_N, real_BL, z = step.memo.pop(self)
        count = len(self.tokens.get_clusters(self.config.clusters).centres)
        to_centres = nn.functional.mse_loss(z[real_BL], self.centres(of_N))
        # The published divisor, although `count` centres have count (count - 1) / 2 pairs.
        between = torch.pdist(self.centres.weight[:count]).sum() / (count * (count + 1) / 2)
        term: Tensor = self.config.close * to_centres - self.config.away * between
        return term
