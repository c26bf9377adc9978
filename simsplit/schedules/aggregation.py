"""What is averaged at the end of a round, and by which rule."""

from abc import ABC
from typing import Annotated, Literal

from pydantic import Discriminator, field_validator

from simsplit.config import Config
from simsplit.schedules.strategies import FedAvg, Strategy


class NoAggregation(Config):
    """Nothing: a shared head is handed from client to client, the trunk is one."""

    kind: Literal["none"] = "none"


class AveragingConfig(Config, ABC):
    """Each client trains a copy of what clients share; the copies are averaged every round."""

    strategy: Strategy = FedAvg()
    """How: one of Flower's strategies; a bare word such as `fedmedian` stands for its defaults."""

    @field_validator("strategy", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value


class SplitFedV1(AveragingConfig):
    """SplitFed v1 (Thapa et al., 2022): the server trains a copy of the trunk for each client, and
    averages the copies as well.
    """

    kind: Literal["splitfed_v1"] = "splitfed_v1"
    moments: Literal["keep", "reset"] = "keep"
    """The optimizer moments of a client's trunk copy live on into its next round, or start anew in
    each (which saves the memory of a trunk per client)."""


class SplitFedV2(AveragingConfig):
    """SplitFed v2 (Thapa et al., 2022): one trunk, stepped by one client's batch after another."""

    kind: Literal["splitfed_v2"] = "splitfed_v2"


class Fused(AveragingConfig):
    """One trunk, stepped once for all batches of a lap together: another algorithm than SplitFed's.

    It needs `schedule: parallel`. The trunk's loss is the mean over all rows of the lap.
    """

    kind: Literal["fused"] = "fused"


Aggregation = Annotated[NoAggregation | SplitFedV1 | SplitFedV2 | Fused, Discriminator("kind")]
AGGREGATIONS: dict[str, type[Config]] = {
    "none": NoAggregation,
    "splitfed_v1": SplitFedV1,
    "splitfed_v2": SplitFedV2,
    "fused": Fused,
}
