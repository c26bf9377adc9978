"""Aggregations: what is averaged at the end of a round, and by which rule."""

from abc import ABC
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, field_validator

from simsplit.config import Config, expand_kind, map_kinds
from simsplit.legs import Leg
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.schedules.strategies import FedAvg, Strategy


class NoAggregation(Config):
    """No averaging: a shared head is handed from client to client, and there is one trunk."""

    kind: Literal["none"] = "none"

    @property
    def needs(self) -> Needs:
        """A segment that clients can hand to each other, or no shared segment."""
        return (Need(Given.HANDED_ROUND),)


class AveragingConfig(Config, ABC):
    """Each client trains a copy of what clients share; the copies are averaged every round."""

    strategy: Strategy = FedAvg()
    """One of Flower's strategies; a bare word such as `fedmedian` stands for its defaults."""
    proximal: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """FedProx's mu: each client's loss gets mu / 2 times the squared distance of its averaged
    weights from the average that the round began with."""

    bits: int | None = Field(default=None, ge=1, le=16)
    """Bits for each value of shared weights, down and up: each side sends the differences from the
    last broadcast, rounded at random over the range of each row. A client that missed that
    broadcast gets whole weights. null: always whole weights."""

    # What a kind needs beside what all averages do.
    own_needs: ClassVar[Needs] = ()

    @property
    def needs(self) -> Needs:
        """The needs: enough updates a round for the strategy, and a shared segment for `bits`."""
        asked = Need(Given.ASKED, "strategy", least=self.strategy.needed)
        shared = () if self.bits is None else (Need(Given.SHARED, "bits"),)
        return (asked, *shared, *self.own_needs)

    _expand_kind = field_validator("strategy", mode="before")(expand_kind)


class SplitFedV1(AveragingConfig):
    """SplitFed v1 (Thapa et al., 2022): the server trains a copy of the trunk for each client, and
    averages the copies.
    """

    kind: Literal["splitfed_v1"] = "splitfed_v1"
    moments: Literal["keep", "reset"] = "keep"
    """Whether the optimizer moments of a client's trunk copy are kept for its next round, or reset
    each round (which saves the memory of a trunk per client)."""
    # A trunk that learns, and a barrier at the end of the round, where copies are averaged.
    own_needs = (need_leg(Leg.SMASHED), Need(Given.BARRIER))


class SplitFedV2(AveragingConfig):
    """SplitFed v2 (Thapa et al., 2022): one trunk, stepped by one client's batch after another."""

    kind: Literal["splitfed_v2"] = "splitfed_v2"
    own_needs = (Need(Given.SHARED),)


class Fused(AveragingConfig):
    """One trunk, stepped once for all batches of a lap together; not SplitFed's algorithm.

    It needs `schedule: parallel`. The trunk's loss is the mean over all rows of the lap.
    """

    kind: Literal["fused"] = "fused"
    # Laps, and batches that can be concatenated, as texts and mixtures cannot.
    own_needs = (
        Need(Given.LAPS),
        Need(Given.NUMBERS),
        need_leg(Leg.SMASHED),
        Need(Given.SAMPLES, leg=Leg.SMASHED),
    )


Aggregation = Annotated[NoAggregation | SplitFedV1 | SplitFedV2 | Fused, Discriminator("kind")]
AGGREGATIONS: dict[str, type[Config]] = map_kinds(Aggregation)
