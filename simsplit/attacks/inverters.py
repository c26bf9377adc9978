"""Inverters: what reads tokens off a head's output, and how they are trained.

The recurrent one is SIP's; the published settings are those of SplitLLM (Chen et al., CCS 2024):
256 units, Adam at 1e-3 with a weight decay of 1e-5, 20 epochs of batches of 6. The other is
ours: normal distributions about what embeddings are mapped to, in closed form and in seconds.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from simsplit.attacks.base import TextAttackConfig, descend
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig, OptimizerConfig

NOTHING = -1
"""Label of padding."""
LEAST = 1e-12


class InverterConfig(TextAttackConfig):
    """Options of the inverter and its training."""

    inverter: Literal["recurrent", "gaussian"] = "recurrent"
    """What reads tokens: SIP's recurrent network, or a normal distribution for each token, in
    closed form (seconds)."""
    hidden: int = Field(default=256, ge=1)
    """Width of the recurrent layer."""
    bidirectional: bool = False
    """Whether the recurrent layer reads backwards too."""
    iterations: int | None = Field(default=None, ge=1)
    """Training steps, a batch of public texts each; null: `epochs` of them (gaussian: 1)."""
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
    penalty: float = Field(default=0.1, gt=0)
    """The normal distributions' ridge penalty, relative to the mean square of a value."""
    effort: ClassVar[tuple[str, ...]] = ("iterations", "epochs")


class Inverter(nn.Module, ABC):
    """Scores of all tokens at every position of levelled texts."""

    reads_padding: ClassVar[bool] = False
    """Whether it learns what padding looks like."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """What its weights learn by, if any do by descent."""
        return AdamConfig()

    @abstractmethod
    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        """Take a training step on a batch."""

    @abstractmethod
    def features(self, z_BLD: Tensor) -> Tensor:
        """What tokens are scored by, B x L x E."""

    @abstractmethod
    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Scores of all tokens, or of those named, by features of any number of positions."""

    @abstractmethod
    def sureness(self, features: Tensor, best: Tensor) -> Tensor:
        """How sure it is of each position, by the two tokens of the highest scores there."""

    def sure(self, features: Tensor, scores: Tensor) -> Tensor:
        """How sure it is of each row: the mean over positions."""
        return self.sureness(features, scores.topk(2).indices).mean(-1)

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
        told = tokens_BL != NOTHING  # scores of all tokens are dear, and padding needs none
        scores_NV = self.scores(self.features(z_BLD)[told])
        descend(learner, cross_entropy(scores_NV, tokens_BL[told]))

    def features(self, z_BLD: Tensor) -> Tensor:
        out: Tensor = self.recurrent(z_BLD)[0]
        return out

    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        if tokens is None:
            out: Tensor = self.words(features)
            return out
        return linear(features, self.words.weight[tokens], self.words.bias[tokens])

    def sureness(self, features: Tensor, best: Tensor) -> Tensor:
        """By how much the first token's score exceeds the second's."""
        near = torch.einsum("...e,...ke->...k", features, self.words.weight[best])
        first, second = (near + self.words.bias[best]).unbind(-1)
        return first - second


class GaussianInverter(Inverter):
    """Hidden states are taken as normal about a linear map of their token's embedding.

    All tokens have one map and one covariance, so that tokens can be read that public texts lack
    (linear discriminant analysis with its means tied to embeddings). Scores are log-likelihoods but
    for what all tokens have in common.
    """

    reads_padding = True
    of_tokens: Tensor
    of_padding: Tensor
    cross: Tensor
    of_states: Tensor
    table: Tensor

    def __init__(self, width: int, embeddings_VE: Tensor, pad: int, config: InverterConfig) -> None:
        super().__init__()
        self.penalty = config.penalty
        self.pad = pad
        centred = embeddings_VE.detach() - embeddings_VE.detach().mean(0)
        scale = centred.square().mean().sqrt().clamp_min(LEAST)
        self.register_buffer("table", _with_one(centred / scale))
        tokens = self.table.shape[1]
        for name, shape in (
            ("of_tokens", (tokens, tokens)),
            ("cross", (tokens, width)),
            ("of_states", (width, width)),
            ("of_padding", (width + 1,)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self._solved: tuple[float, _Fit] | None = None

    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        """Add a batch to the sums that the map and the covariance are solved from."""
        del learner
        told = tokens_BL != NOTHING
        z_ND, y_NE = z_BLD[told].double(), self.table[tokens_BL[told]].double()
        self.of_tokens += y_NE.T @ y_NE
        self.cross += y_NE.T @ z_ND
        self.of_states += z_ND.T @ z_ND
        self.of_padding += _with_one(z_BLD[~told].double()).sum(0)

    @property
    def fit(self) -> "_Fit":
        """Solved for anew where tokens have been added since."""
        count = float(self.of_tokens[-1, -1])
        if self._solved is None or self._solved[0] != count:
            self._solved = (count, self._solve(max(1.0, count)))
        return self._solved[1]

    def _solve(self, count: float) -> "_Fit":
        map_ED = torch.linalg.solve(_ridged(self.of_tokens, self.penalty), self.cross)
        told = map_ED.T @ self.cross
        left = self.of_states - told - told.T + map_ED.T @ self.of_tokens @ map_ED
        precision_DD = torch.linalg.inv(_ridged(left / count, self.penalty)).to(self.table)
        means_VD = self.table @ map_ED.to(self.table)
        if self.of_padding[-1] > 0:
            means_VD[self.pad] = self.of_padding[:-1] / self.of_padding[-1]
        mean_D = (self.cross[-1] / count).to(self.table)
        weight_VD, weight_D = means_VD @ precision_DD, precision_DD @ mean_D
        offset_V = -(weight_VD * means_VD).sum(1) / 2
        return _Fit(weight_VD, offset_V, precision_DD, weight_D, -(weight_D @ mean_D) / 2)

    def features(self, z_BLD: Tensor) -> Tensor:
        return z_BLD

    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        fit = self.fit
        if tokens is None:
            return linear(features, fit.weight, fit.offset)
        return linear(features, fit.weight[tokens], fit.offset[tokens])

    def sureness(self, features: Tensor, best: Tensor) -> Tensor:
        """How much of a state the first token explains; see `explained`."""
        fit, first = self.fit, best[..., 0]
        score = (features * fit.weight[first]).sum(-1) + fit.offset[first]
        of_mean = features @ fit.weight_of_mean + fit.offset_of_mean
        return explained(score, of_mean, ((features @ fit.precision) * features).sum(-1))


class _Fit(NamedTuple):
    """What scores are by; the mean state is scored as if it were a token's."""

    weight: Tensor
    offset: Tensor
    precision: Tensor
    weight_of_mean: Tensor
    offset_of_mean: Tensor


def explained(score: Tensor, of_mean: Tensor, square: Tensor) -> Tensor:
    """The share of a state's squared distance from the mean state that its best token explains.

    Likelihood alone would not do: an average of texts is near the mean state, and so near to some
    token, and the gap to the second best token grows where a direction makes states huge.
    """
    left, all_of_it = (square - 2 * each for each in (score, of_mean))
    return (1 - left / all_of_it.clamp_min(LEAST)).clamp_min(0)


def _ridged(square: Tensor, penalty: float) -> Tensor:
    size = (penalty * square.diagonal().mean()).clamp_min(LEAST)
    return square + size * torch.eye(len(square), dtype=square.dtype, device=square.device)


def inverter_of(width: int, embeddings_VE: Tensor, pad: int, config: InverterConfig) -> Inverter:
    """An untrained inverter of the kind that the config names."""
    if config.inverter == "gaussian":
        return GaussianInverter(width, embeddings_VE, pad, config)
    return RecurrentInverter(width, len(embeddings_VE), config)


def levelled(x_RLD: Tensor) -> Tensor:
    """Rows of level 1: single huge tokens change nothing, nor does padding that is nothing."""
    return x_RLD / level(x_RLD.detach().square().mean(-1).sqrt())[:, None, None]


def level(rms_RL: Tensor) -> Tensor:
    """The upper quartile of a row's tokens' root mean squares."""
    place = max(1, rms_RL.shape[-1] * 3 // 4)
    return rms_RL.kthvalue(place, -1).values.clamp_min(LEAST)


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
