"""Flower's strategies as a scenario names them, with their papers, options and needs.

The robust strategies do not weight clients by samples, since a client could lie about them. Krum's
family does so among the updates that it has picked.
"""

import math
from abc import ABC
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Discriminator, Field

from simsplit.config import map_kinds
from simsplit.schedules.averaging import Memory, StrategyConfig


class FedAvg(StrategyConfig):
    """The mean weighted by samples (McMahan et al. 2017, arXiv:1602.05629)."""

    kind: Literal["fedavg"] = "fedavg"
    flower = "FedAvg"


class FedAvgM(StrategyConfig):
    """FedAvg with momentum on the server (Hsu et al. 2019, arXiv:1909.06335)."""

    kind: Literal["fedavgm"] = "fedavgm"
    server_learning_rate: float = Field(default=1.0, gt=0)
    """Step size from the current weights towards the average; 1 is the average itself."""
    server_momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum factor on the server."""
    flower = "FedAvgM"
    steps = True

    def remind(self, strategy: Any, current: Any, memory: Memory) -> None:  # noqa: ANN401
        strategy.current_arrays = current
        if memory:
            strategy.momentum_vector = [t.numpy() for t in memory["momentum_vector"].values()]

    def recall(self, strategy: Any, names: Sequence[str]) -> Memory:  # noqa: ANN401
        if strategy.momentum_vector is None:
            return {}
        tensors = (torch.from_numpy(array) for array in strategy.momentum_vector)
        return {"momentum_vector": dict(zip(names, tensors, strict=True))}


class AdaptiveConfig(StrategyConfig, ABC):
    """Options that FedAdam, FedYogi and FedAdagrad have in common."""

    eta: float = Field(default=0.1, gt=0)
    """Server learning rate."""
    eta_l: float = Field(default=0.1, gt=0)
    """Flower's client learning rate, which has no effect: see train.client."""
    tau: float = Field(default=1e-3, gt=0)
    """Added to the denominator; smaller is more adaptive."""
    steps = True

    def remind(self, strategy: Any, current: Any, memory: Memory) -> None:  # noqa: ANN401
        strategy.current_arrays = {name: array.numpy() for name, array in current.items()}
        for slot, tensors in memory.items():
            setattr(strategy, slot, {name: tensor.numpy() for name, tensor in tensors.items()})

    def recall(self, strategy: Any, names: Sequence[str]) -> Memory:  # noqa: ANN401
        return {
            slot: {name: torch.from_numpy(moments[name]) for name in names}
            for slot, moments in (("m_t", strategy.m_t), ("v_t", strategy.v_t))
        }


class ServerMomentsConfig(AdaptiveConfig, ABC):
    """Options that FedAdam and FedYogi have in common."""

    beta_1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta_2: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the second moment."""


class FedAdam(ServerMomentsConfig):
    """Adam on the server (Reddi et al. 2021, arXiv:2003.00295)."""

    kind: Literal["fedadam"] = "fedadam"
    flower = "FedAdam"


class FedYogi(ServerMomentsConfig):
    """Yogi on the server (Reddi et al. 2021, arXiv:2003.00295)."""

    kind: Literal["fedyogi"] = "fedyogi"
    eta: float = Field(default=0.01, gt=0)
    """Server learning rate."""
    eta_l: float = Field(default=0.0316, gt=0)
    """Flower's client learning rate, which has no effect: see train.client."""
    flower = "FedYogi"


class FedAdagrad(AdaptiveConfig):
    """Adagrad on the server (Reddi et al. 2021, arXiv:2003.00295)."""

    kind: Literal["fedadagrad"] = "fedadagrad"
    flower = "FedAdagrad"


class FedMedian(StrategyConfig):
    """Each value's median over the clients (Yin et al. 2018, arXiv:1803.01498)."""

    kind: Literal["fedmedian"] = "fedmedian"
    flower = "FedMedian"


class FedTrimmedAvg(StrategyConfig):
    """Each value's mean without its extremes (Yin et al. 2018, arXiv:1803.01498)."""

    kind: Literal["fedtrimmedavg"] = "fedtrimmedavg"
    beta: float = Field(default=0.2, ge=0, lt=0.5)
    """Share of clients that is trimmed at either end, rounded down."""
    flower = "FedTrimmedAvg"

    @property
    def needed(self) -> int:
        """The fewest clients of which at least one is trimmed at either end."""
        if self.beta == 0:
            return 1
        least = math.ceil(1 / self.beta)
        # Flower trims int(beta * n), and in floats beta * least may fall short of 1.
        return least if int(self.beta * least) else least + 1


class KrumConfig(StrategyConfig, ABC):
    """Options that Krum, MultiKrum and Bulyan have in common."""

    num_malicious_nodes: int = Field(default=0, ge=0)
    """Assumed number of malicious clients per round."""
    # Flower computes |a - b|^2 as |a|^2 + |b|^2 - 2ab, which in single precision loses the distance
    # of weights that lie close together.
    doubles = True

    @property
    def needed(self) -> int:
        """At least 2 f + 3 updates for f malicious clients (Blanchard et al., proposition 4.2)."""
        return 2 * self.num_malicious_nodes + 3


class Krum(KrumConfig):
    """The update that is closest to its neighbours (Blanchard et al. 2017, arXiv:1703.02757)."""

    kind: Literal["krum"] = "krum"
    flower = "Krum"


class MultiKrum(KrumConfig):
    """The mean of the updates closest to their neighbours (Blanchard et al. 2017)."""

    kind: Literal["multikrum"] = "multikrum"
    num_nodes_to_select: int = Field(default=1, ge=1)
    """Number of updates that are averaged; 1 is Krum."""
    flower = "MultiKrum"

    @property
    def needed(self) -> int:
        """The number of updates: as for Krum, and at least as many honest ones as are picked."""
        return max(super().needed, self.num_nodes_to_select + self.num_malicious_nodes)


class Bulyan(KrumConfig):
    """Krum's selection, averaged near each value's median (El Mhamdi et al. 2018)."""

    kind: Literal["bulyan"] = "bulyan"
    flower = "Bulyan"

    @property
    def needed(self) -> int:
        """At least 4 f + 3 updates; with fewer, Flower averages nothing."""
        return 4 * self.num_malicious_nodes + 3


Strategy = Annotated[
    FedAvg
    | FedAvgM
    | FedAdam
    | FedYogi
    | FedAdagrad
    | FedMedian
    | FedTrimmedAvg
    | Krum
    | MultiKrum
    | Bulyan,
    Discriminator("kind"),
]
STRATEGIES: dict[str, type[StrategyConfig]] = map_kinds(Strategy)
