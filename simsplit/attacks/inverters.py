"""Inverters: models that read tokens from a head's output, and their training.

The recurrent one is SIP's, with the published settings of SplitLLM (Chen et al., CCS 2024): 256
units, a dropout of .1, Adam at 1e-3 with a weight decay of 1e-5, 20 epochs of batches of 6. The
Gaussian one is ours: normal distributions
around mapped embeddings, fitted in closed form within seconds.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, linear

from simsplit.attacks.attack import TextAttackConfig, descend
from simsplit.attacks.threat import Knows, Threat
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig, OptimizerConfig

NOTHING = -1
"""Label of padding, and of positions that an attack does not read."""
LEAST = 1e-12
"""Smallest divisor, against division by zero."""
UNREADABLE = -1e4
"""Score of a token that an inverter cannot read. It is finite, so that scores can be added up."""


class InverterConfig(TextAttackConfig):
    """Base class of the fields of an inverter and its training."""

    threat: ClassVar[Threat] = Threat(knows=(Knows.HEAD, Knows.PUBLIC))
    inverter: Literal["recurrent", "gaussian"] = "recurrent"
    """recurrent: SIP's recurrent network. gaussian: a normal distribution for each token, fitted in
    closed form within seconds."""
    hidden: int = Field(default=256, ge=1)
    """Width of the recurrent layer."""
    bidirectional: bool = False
    """Whether the recurrent layer reads backwards too."""
    words: Literal["all", "seen"] = "all"
    """Tokens that the recurrent network scores. all: the whole vocabulary, as published. seen:
    those of the public texts. It reads hardly any others in either case, and if the vocabulary is
    large, training takes a tenth of the time."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout rate between the recurrent layer and the logits; published: 0.1."""
    iterations: int | None = Field(default=None, ge=1)
    """Training steps, each on a batch of public texts; null: as many as `epochs` takes (gaussian:
    one epoch)."""
    epochs: int = Field(default=20, ge=1)
    """Passes over the public texts, if `iterations` is not set; published: 20."""
    batch_size: int | None = Field(default=None, ge=1)
    """Number of public texts per training step; published: 6; null: the size of a client's batch.
    """
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""
    weight_decay: float = Field(default=1e-5, ge=0)
    """Adam's weight decay."""
    patience: int = Field(default=0, ge=0)
    """Training stops after this many epochs without a better accuracy on held-out public texts (a
    tenth), and the best weights are kept; 0: it never stops early."""
    aware: bool = True
    """true: it learns from the head's outputs for public texts after the scenario's methods, which
    it simulates (their noise and clipping, but not mixing). false: it learns from the head's plain
    outputs."""
    penalty: float = Field(default=0.1, gt=0)
    """Ridge penalty of the normal distributions, relative to the mean square of a value."""
    effort: ClassVar[tuple[str, ...]] = ("iterations", "epochs")


class Inverter(nn.Module, ABC):
    """A model that scores all tokens at every position of levelled texts."""

    reads_padding: ClassVar[bool] = False
    """Whether it learns to recognise padding."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """The optimizer of its weights, if any are trained by gradient descent."""
        return AdamConfig()

    @abstractmethod
    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        """Take a training step on a batch."""

    @abstractmethod
    def features(self, z_BLD: Tensor) -> Tensor:
        """Compute the features from which tokens are scored, B x L x E."""

    @abstractmethod
    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Score all tokens, or the given ones, from features of any number of positions."""

    @abstractmethod
    def sureness(self, features: Tensor, best: Tensor) -> Tensor:
        """Compute the confidence at each position, given the two best tokens there."""

    def sure(self, features: Tensor, scores: Tensor) -> Tensor:
        """Compute the confidence in each row, as the mean over positions."""
        return self.sureness(features, scores.topk(2).indices).mean(-1)

    def forward(self, z_BLD: Tensor) -> Tensor:
        """Score all tokens at every position, B x L x V."""
        return self.scores(self.features(z_BLD))


class RecurrentInverter(Inverter):
    """SIP's inverter: a recurrent layer, and logits over tokens at every position."""

    places: Tensor | None

    def __init__(
        self, width: int, vocabulary: int, config: InverterConfig, seen_K: Tensor | None = None
    ) -> None:
        """Make it for all tokens of the vocabulary, or for the tokens `seen_K` only."""
        super().__init__()
        self.config = config
        places = None
        if seen_K is not None:
            places = torch.full((vocabulary,), NOTHING, device=seen_K.device)
            places[seen_K] = torch.arange(len(seen_K), device=seen_K.device)
            vocabulary = len(seen_K)
        # Public texts tell which tokens are scored, so no checkpoint need hold it.
        self.register_buffer("places", places, persistent=False)
        self.recurrent = nn.GRU(
            width, config.hidden, batch_first=True, bidirectional=config.bidirectional
        )
        self.words = nn.Linear(config.hidden * (1 + config.bidirectional), vocabulary)

    @property
    def optimizer(self) -> OptimizerConfig:
        return AdamConfig(lr=self.config.lr, weight_decay=self.config.weight_decay)

    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        learner.train(True)
        real = tokens_BL != NOTHING  # scores of all tokens are costly, and padding needs none
        seen_NE = dropout(self.features(z_BLD)[real], self.config.dropout)
        scores_NK, tokens_N = self.words(seen_NE), tokens_BL[real]
        right_N = tokens_N if self.places is None else self.places[tokens_N]
        descend(learner, cross_entropy(scores_NK, right_N))

    def features(self, z_BLD: Tensor) -> Tensor:
        out: Tensor = self.recurrent(z_BLD)[0]
        return out

    def scores(self, features: Tensor, tokens: Tensor | None = None) -> Tensor:
        if self.places is not None:
            places = self.places if tokens is None else self.places[tokens]
            scores: Tensor = self.words(features)[..., places]
            return scores.masked_fill(places == NOTHING, UNREADABLE)
        if tokens is None:
            out: Tensor = self.words(features)
            return out
        return linear(features, self.words.weight[tokens], self.words.bias[tokens])

    def sureness(self, features: Tensor, best: Tensor) -> Tensor:
        """Compute the margin of the best token's score over the second."""
        best = best if self.places is None else self.places[best]
        near = torch.einsum("...e,...ke->...k", features, self.words.weight[best])
        first, second = (near + self.words.bias[best]).unbind(-1)
        return first - second


class GaussianInverter(Inverter):
    """A model of hidden states as normal around a linear map of their token's embedding.

    All tokens share one map and one covariance, so it also reads tokens that public texts lack
    (linear discriminant analysis with means tied to embeddings). Scores are log-likelihoods up to a
    constant that is the same for all tokens.
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
        # Scaled to the size of the ones beside them, so that one penalty suits both.
        scale = centred.square().mean().sqrt().clamp_min(LEAST)
        self.register_buffer("table", _with_one(centred / scale))
        tokens = self.table.shape[1]
        for name, shape in (
            ("of_tokens", (tokens, tokens)),
            ("cross", (tokens, width)),
            ("of_states", (width, width)),
            ("of_padding", (width + 1,)),
        ):
            # The residuals are differences of large sums, of which float32 would leave few digits.
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self._solved: tuple[float, _Fit] | None = None

    def learn(self, z_BLD: Tensor, tokens_BL: Tensor, learner: Learner) -> None:
        del learner
        self.add(z_BLD, tokens_BL)

    def add(self, z_BLD: Tensor, tokens_BL: Tensor) -> None:
        """Add a batch to the sums from which the map and the covariance are solved."""
        real = tokens_BL != NOTHING
        z_ND, y_NE = z_BLD[real].double(), self.table[tokens_BL[real]].double()
        self.of_tokens += y_NE.T @ y_NE
        self.cross += y_NE.T @ z_ND
        self.of_states += z_ND.T @ z_ND
        self.of_padding += _with_one(z_BLD[~real].double()).sum(0)

    @property
    def fit(self) -> "_Fit":
        """The solution, which is computed anew after tokens have been added."""
        count = float(self.of_tokens[-1, -1])
        if self._solved is None or self._solved[0] != count:
            self._solved = (count, self._solve(max(1.0, count)))
        return self._solved[1]

    def _solve(self, count: float) -> "_Fit":
        """Solve for the map, the precision and the scores' weights, from `count` tokens."""
        map_ED = torch.linalg.solve(_add_ridge(self.of_tokens, self.penalty), self.cross)
        explained_DD = map_ED.T @ self.cross
        # the residuals' sum of squares, of a map that the penalty keeps from the least-squares one
        left = self.of_states - explained_DD - explained_DD.T
        left = left + map_ED.T @ self.of_tokens @ map_ED
        precision_DD = torch.linalg.inv(_add_ridge(left / count, self.penalty)).to(self.table)
        means_VD = self.table @ map_ED.to(self.table)
        if self.of_padding[-1] > 0:
            # Padding's states do not follow from its embedding, so their own mean replaces the
            # map's.
            means_VD[self.pad] = self.of_padding[:-1] / self.of_padding[-1]
        mean_D = (self.cross[-1] / count).to(self.table)
        weight_VD, weight_D = means_VD @ precision_DD, precision_DD @ mean_D
        # The log-likelihood without the state's own square, which is the same for all tokens.
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
        """Compute the share of each state that the best token explains; see `explained_share`."""
        fit, first = self.fit, best[..., 0]
        score = (features * fit.weight[first]).sum(-1) + fit.offset[first]
        of_mean = features @ fit.weight_of_mean + fit.offset_of_mean
        return measure_explained_share(
            score, of_mean, ((features @ fit.precision) * features).sum(-1)
        )


class _Fit(NamedTuple):
    """The weights of the scores. The mean state is scored like a token."""

    weight: Tensor
    offset: Tensor
    precision: Tensor
    weight_of_mean: Tensor
    offset_of_mean: Tensor


def measure_explained_share(score: Tensor, of_mean: Tensor, square: Tensor) -> Tensor:
    """Compute the share of a state's squared distance from the mean that its best token explains.

    The likelihood alone is not enough: an average of texts is near the mean state, and so near to
    some token. Nor is the gap to the second best token, which grows with the size of the states.
    """
    left, all_of_it = (square - 2 * each for each in (score, of_mean))
    return (1 - left / all_of_it.clamp_min(LEAST)).clamp_min(0)


def _add_ridge(square: Tensor, penalty: float) -> Tensor:
    """Add a penalty to the diagonal, relative to its mean."""
    size = (penalty * square.diagonal().mean()).clamp_min(LEAST)
    return square + size * torch.eye(len(square), dtype=square.dtype, device=square.device)


def build_inverter(
    width: int,
    embeddings_VE: Tensor,
    pad: int,
    config: InverterConfig,
    seen_K: Tensor | None = None,
) -> Inverter:
    """Build an untrained inverter of the config's kind; a recurrent one may be of `seen_K`."""
    if config.inverter == "gaussian":
        return GaussianInverter(width, embeddings_VE, pad, config)
    return RecurrentInverter(width, len(embeddings_VE), config, seen_K)


def divide_by_level(x_RLD: Tensor) -> Tensor:
    """Divide each row by its level, so that payloads of unknown scale can be read."""
    return x_RLD / level(x_RLD.detach().square().mean(-1).sqrt())[:, None, None]


def level(rms_RL: Tensor) -> Tensor:
    """Compute the upper quartile of the root mean squares of each row's tokens.

    Unlike a mean it does not depend on single huge tokens, nor on padding of zeros.
    """
    place = max(1, rms_RL.shape[-1] * 3 // 4)
    return rms_RL.kthvalue(place, -1).values.clamp_min(LEAST)


def _with_one(z: Tensor) -> Tensor:
    """Append a column of ones, for the intercept."""
    return torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
