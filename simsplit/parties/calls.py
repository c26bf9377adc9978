"""All that may be asked of a client: a closed set of small frozen calls, each with its answer.

Pools carry calls to wherever a client lives; a deployed client accepts some of the types alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.packets import Leg, Packet, Packets
from simsplit.parties.client import Client
from simsplit.phases import Aside, Phase

Answer = TypeVar("Answer", covariant=True)
Report = dict[str, float]


class Call(ABC, Generic[Answer]):
    """Something that is asked of one client."""

    @abstractmethod
    def on(self, client: Client) -> Answer:
        """Let the client answer."""

    def leg(self, client: Client) -> Leg | None:
        """Which leg it deals with, for messages."""
        del client
        return None

    def moved(self, device: torch.device) -> Self:
        """The same call with its packets on the client's device."""
        del device
        return self


# training


@dataclass(frozen=True)
class Enter(Call[None]):
    """Start a round of a phase."""

    phase: Phase
    lr_factor: float

    def on(self, client: Client) -> None:
        """Let the client answer."""
        client.training.enter(self.phase, self.lr_factor)


@dataclass(frozen=True)
class _Beginning(Call[Packets]):
    """The first turn of a step."""

    round: int

    def leg(self, client: Client) -> Leg:
        """What a step begins with."""
        return client.training.turns[0].leg


@dataclass(frozen=True)
class Begin(_Beginning):
    """Take the next batch and begin a step."""

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.training.begin(self.round)


@dataclass(frozen=True)
class BeginAside(_Beginning):
    """Begin a step of another phase in between; nothing is sent where none is due."""

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.training.begin_aside(self.round)


@dataclass(frozen=True)
class Abandon(_Beginning):
    """Begin a step and drop out of it."""

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.training.abandon(self.round)


@dataclass(frozen=True)
class _Answering:
    """Packets that the server sent, and what the client is expected to make of them."""

    packets: Packets
    making: Leg

    def leg(self, client: Client) -> Leg:
        """What it makes, or where nothing is made what it takes."""
        del client
        return self.making

    def moved(self, device: torch.device) -> Self:
        """Its packets on a device."""
        return replace(self, packets=tuple(packet.on(device) for packet in self.packets))


@dataclass(frozen=True)
class Proceed(_Answering, Call[Packets]):
    """Go on with a step; an empty answer says that it is over."""

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.training.proceed(self.packets)


@dataclass(frozen=True)
class ReportRound(Call[Report]):
    """The sums of the client's steps in this round."""

    def on(self, client: Client) -> Report:
        """Let the client answer."""
        return client.training.report()


@dataclass(frozen=True)
class Plan(Call[tuple[list[Phase], Aside | None]]):
    """What the client's methods want beside training proper."""

    rounds: int

    def on(self, client: Client) -> tuple[list[Phase], Aside | None]:
        """Let the client answer."""
        return client.training.plan(self.rounds)


@dataclass(frozen=True)
class CountSteps(Call[int]):
    """Batches in one pass over the client's data from a source."""

    source: str

    def on(self, client: Client) -> int:
        """Let the client answer."""
        return client.training.steps_per_epoch(self.source)


# examination


@dataclass(frozen=True)
class Probe(Call[Packets]):
    """Send a batch of a held-out split."""

    split: str
    round: int
    number: int

    def leg(self, client: Client) -> Leg:
        """What it begins with."""
        return client.examination.legs[0]

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.examination.probe(self.split, self.round, self.number)


@dataclass(frozen=True)
class ProbeTexts(Call[Packets]):
    """Send texts that are to be continued."""

    texts: Batch
    round: int
    number: int

    def leg(self, client: Client) -> Leg:
        """What it begins with."""
        return client.examination.legs[0]

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.examination.begin_text(self.texts, self.round, self.number)


@dataclass(frozen=True)
class Predict(_Answering, Call[Tensor]):
    """The model's outputs for what came back."""

    def on(self, client: Client) -> Tensor:
        """Let the client answer."""
        return client.examination.predict(self.packets)


# exposure


@dataclass(frozen=True)
class CountExposures(Call[int]):
    """In how many batches the client exposes a split."""

    split: str

    def on(self, client: Client) -> int:
        """Let the client answer."""
        return client.exposure.batches(self.split)


@dataclass(frozen=True)
class Expose(Call[Packets]):
    """Send what a step on a batch of a split would begin with."""

    split: str
    round: int
    number: int
    as_in_training: bool

    def leg(self, client: Client) -> Leg:
        """What it begins with."""
        return client.examination.legs[0]

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        where = (self.split, self.round, self.number)
        return client.exposure.expose(*where, as_in_training=self.as_in_training)


@dataclass(frozen=True)
class ExposeAnswer(_Answering, Call[Packets]):
    """Send what the client would answer the server's next packets with."""

    def on(self, client: Client) -> Packets:
        """Let the client answer."""
        return client.exposure.answer(self.packets)


@dataclass(frozen=True)
class OwnTokens(Call[Tensor | None]):
    """For the judge: which of the exposed tokens are the texts' own; None: all."""

    split: str
    round: int
    number: int
    as_in_training: bool

    def on(self, client: Client) -> Tensor | None:
        """Let the client answer."""
        where = (self.split, self.round, self.number)
        return client.exposure.own_tokens(*where, as_in_training=self.as_in_training)


# sharing


@dataclass(frozen=True)
class Hear(Call[None]):
    """Take in what the methods announce."""

    announced: Sequence[tuple[Tensor, ...]]

    def leg(self, client: Client) -> Leg:
        del client
        return Leg.BROADCAST

    def on(self, client: Client) -> None:
        """Let the client answer."""
        client.sharing.hear(self.announced)


@dataclass(frozen=True)
class HandOver(Call[Packet]):
    """Send what is shared with other clients."""

    round: int

    def leg(self, client: Client) -> Leg:
        del client
        return Leg.HANDOVER

    def on(self, client: Client) -> Packet:
        """Let the client answer."""
        return client.sharing.hand_over(self.round)


@dataclass(frozen=True)
class Receive(Call[None]):
    """Take over what another client, or the server, has handed on."""

    packet: Packet

    def leg(self, client: Client) -> Leg:
        del client
        return Leg.HANDOVER

    def moved(self, device: torch.device) -> Self:
        """Its packet on a device."""
        return replace(self, packet=self.packet.on(device))

    def on(self, client: Client) -> None:
        """Let the client answer."""
        client.sharing.receive(self.packet)


@dataclass(frozen=True)
class SharedState(Call[dict[str, Tensor]]):
    """What the client shares with others and now holds."""

    def on(self, client: Client) -> dict[str, Tensor]:
        """Let the client answer."""
        return client.sharing.state()


@dataclass(frozen=True)
class LoadShared(Call[None]):
    """Take over what `SharedState` gave."""

    state: Mapping[str, Tensor]

    def on(self, client: Client) -> None:
        """Let the client answer."""
        client.sharing.load(self.state)


# keeping


@dataclass(frozen=True)
class OwnState(Call[dict[str, Tensor]]):
    """What the client alone owns."""

    def on(self, client: Client) -> dict[str, Tensor]:
        """Let the client answer."""
        return client.keeping.state()


@dataclass(frozen=True)
class LoadOwn(Call[None]):
    """Take over what `OwnState` gave."""

    state: Mapping[str, Tensor]

    def on(self, client: Client) -> None:
        """Let the client answer."""
        client.keeping.load(self.state)


CALLS: tuple[type[Call[object]], ...] = (
    *(Enter, Begin, BeginAside, Abandon, Proceed, ReportRound, Plan, CountSteps),
    *(Probe, ProbeTexts, Predict),
    *(CountExposures, Expose, ExposeAnswer, OwnTokens),
    *(Hear, HandOver, Receive, SharedState, LoadShared),
    *(OwnState, LoadOwn),
)
"""Every one of them, room by room."""
