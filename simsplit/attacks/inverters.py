"""Inverters: what reads tokens off a head's output, and how they are trained.

The recurrent one is SIP's; the published settings are those of SplitLLM (Chen et al., CCS 2024):
256 units, Adam at 1e-3 with a weight decay of 1e-5, 20 epochs of batches of 6. The linear one is
ours: ridge regression on token embeddings, in closed form and in seconds.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from simsplit.attacks.base import TextAttackConfig, descend
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig, OptimizerConfig

NOTHING = -1
"""Label of padding: nothing is learned there."""
LEAST = 1e-12


class InverterConfig(TextAttackConfig):
    """Options of the inverter and its training."""

    inverter: Literal["recurrent", "ridge"] = "recurrent"
    """What reads tokens: SIP's recurrent network, or a linear map in closed form (seconds)."""
    hidden: int = Field(default=256, ge=1)
    """Width of the recurrent layer."""
    bidirectional: bool = False
    """Whether the recurrent layer reads backwards too."""
    iterations: int | None = Field(default=None, ge=1)
    """Training steps, a batch of public texts each; null: `epochs` of them (ridge: one epoch)."""
    epochs: int = Field(default=20, ge=1)
    """Passes over the public texts, if `iterations` is not set; published: 20."""
    batch_size: int | None = Field(default=None, ge=1)
    """Public texts of a training step; published: 6; null: as many as a client's batch has."""
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""
    weight_decay: float = Field(default=1e-5, ge=0)
    """Adam's weight decay."""
    patience: int = Field(default=0, ge=0)
    """Epochs without a better accuracy on a tenth of the public texts, held out, after which
    training stops with the best weights; 0: it never stops early."""
    aware: bool = True
    """Whether it learns from what the scenario's methods, simulated, make of public texts (their
    noise and clipping; mixing is not simulated); false: from what the head puts out."""
    penalty: float = Field(default=1e-3, gt=0)
    """Ridge's penalty, relative to the mean square of a value."""
    effort: ClassVar[tuple[str, ...]] = ("iterations", "epochs")


class Inverter(nn.Module, ABC):
    """Scores of all tokens at every position of levelled texts."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """What its weights learn by, if any do by descent."""
        return AdamConfig()

    @abstractmethod
    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        """Take a training step on a batch; `NOTHING` is learned of padding."""

    @abstractmethod
    def features(self, z_BLD: Tensor) -> Tensor:
        """What tokens are scored by, B x L x E."""

    @abstractmethod
    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Scores of all tokens, or of those named, by features of any number of positions."""

    def forward(self, z_BLD: Tensor) -> Tensor:
        """Scores, B x L x V."""
        return self.scores(self.features(z_BLD))


class RecurrentInverter(Inverter):
    """A recurrent layer, and logits over tokens at every position."""

    def __init__(self, width: int, vocabulary: int, config: InverterConfig) -> None:
        super().__init__()
        self.config = config
        self.recurrent = nn.GRU(
            width, config.hidden, batch_first=True, bidirectional=config.bidirectional
        )
        self.words = nn.Linear(config.hidden * (1 + config.bidirectional), vocabulary)

    @property
    def optimizer(self) -> OptimizerConfig:
        """Adam with weight decay, by default at the published rates."""
        return AdamConfig(lr=self.config.lr, weight_decay=self.config.weight_decay)

    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        learner.train(True)
        scores = self(z_BLD)
        loss = cross_entropy(scores.flatten(0, 1), tokens_BL.flatten(), ignore_index=NOTHING)
        descend(learner, loss)

    def features(self, z_BLD: Tensor) -> Tensor:
        out: Tensor = self.recurrent(z_BLD)[0]
        return out

    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        if tokens is None:
            out: Tensor = self.words(features)
            return out
        return linear(features, self.words.weight[tokens], self.words.bias[tokens])


class RidgeInverter(Inverter):
    """A linear map to embeddings; a token's score is how near its embedding is.

    Embeddings rather than tokens are predicted, so that tokens can be read that public texts lack.
    """

    gram: Tensor
    cross: Tensor
    table: Tensor
    weight: Tensor

    def __init__(self, width: int, embeddings_VE: Tensor, config: InverterConfig) -> None:
        super().__init__()
        self.penalty = config.penalty
        centred = embeddings_VE.detach() - embeddings_VE.detach().mean(0)
        self.register_buffer("table", centred / centred.square().mean().sqrt().clamp_min(LEAST))
        self.register_buffer("gram", torch.zeros(width + 1, width + 1, dtype=torch.float64))
        shape = (width + 1, self.table.shape[1])
        self.register_buffer("cross", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(shape))

    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        """Add a batch to the sums that the map is solved from, and solve."""
        del learner
        told = tokens_BL != NOTHING
        z_ND = _with_one(z_BLD[told]).double()
        self.gram += z_ND.T @ z_ND
        self.cross += z_ND.T @ self.table[tokens_BL[told]].double()
        size = self.penalty * self.gram.diagonal().mean()
        eye = torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        self.weight.copy_(torch.linalg.solve(self.gram + size * eye, self.cross))

    def features(self, z_BLD: Tensor) -> Tensor:
        return _with_one(z_BLD) @ self.weight

    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        table = self.table if tokens is None else self.table[tokens]
        return linear(features, table, -table.square().sum(1) / 2)


def inverter_of(width: int, embeddings_VE: Tensor, config: InverterConfig) -> Inverter:
    """An untrained inverter of the kind that the config names."""
    if config.inverter == "ridge":
        return RidgeInverter(width, embeddings_VE, config)
    return RecurrentInverter(width, len(embeddings_VE), config)


def levelled(x_RLD: Tensor) -> Tensor:
    """Rows whose middle token has a root mean square of 1; single huge tokens change nothing."""
    sizes_RL = x_RLD.detach().square().mean(-1).sqrt()
    return x_RLD / sizes_RL.median(1).values.clamp_min(LEAST)[:, None, None]


def surety(scores_RLV: Tensor) -> Tensor:
    """How sure an inverter is of each row: the mean gap between a position's two best scores."""
    first, second = scores_RLV.topk(2).values.unbind(-1)
    return (first - second).mean(-1)


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
