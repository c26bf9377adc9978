"""All that a client can be asked: a closed set of small frozen calls, each with its answer's type.

Pools carry calls to the place where a client lives. A deployed client accepts only some of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes
from simsplit.legs import Leg
from simsplit.packets import Packet, Packets
from simsplit.parties.client import Client
from simsplit.phases import Phase

Answer = TypeVar("Answer", covariant=True)
Report = dict[str, float]


class Call(ABC, Generic[Answer]):
    """A request to one client, and the type of its answer."""

    @abstractmethod
    def on(self, client: Client) -> Answer:
        """Carry out the request on a client."""

    def leg(self, client: Client) -> Leg | None:
        """Return the leg that the call concerns, for messages."""
        return None

    def to_device(self, device: torch.device) -> Self:
        """Return the call with its packets on a device."""
        return self


# training


@dataclass(frozen=True)
class Enter(Call[None]):
    """Start a round of a phase."""

    phase: Phase
    lr_factor: float

    def on(self, client: Client) -> None:
        client.training.enter(self.phase, self.lr_factor)


@dataclass(frozen=True)
class _Beginning(Call[Packets]):
    """A call that begins a step."""

    round: int
    batch: int | None = None
    """The number of the batch, where all parties take the same; None: the client's next one."""

    def leg(self, client: Client) -> Leg:
        return client.training.turns[0].leg


@dataclass(frozen=True)
class Begin(_Beginning):
    """Take the next batch and begin a step."""

    def on(self, client: Client) -> Packets:
        return client.training.begin(self.round, self.batch)


@dataclass(frozen=True)
class BeginInterleaved(_Beginning):
    """Begin a step of the interleaved phase; nothing is sent if none is due."""

    def on(self, client: Client) -> Packets:
        return client.training.begin_interleaved(self.round)


@dataclass(frozen=True)
class Abandon(_Beginning):
    """Begin a step and drop out of it."""

    def on(self, client: Client) -> Packets:
        return client.training.abandon(self.round, self.batch)


@dataclass(frozen=True)
class _Answering:
    """A call with the server's packets, and the leg of the expected answer."""

    packets: Packets
    making: Leg

    def leg(self, client: Client) -> Leg:
        """Return the leg that the client answers on, or the last one that it receives."""
        return self.making

    def to_device(self, device: torch.device) -> Self:
        """Return the call with its packets on a device."""
        return replace(self, packets=tuple(packet.to_device(device) for packet in self.packets))


@dataclass(frozen=True)
class Proceed(_Answering, Call[Packets]):
    """Continue a step; an empty answer means that it is over."""

    def on(self, client: Client) -> Packets:
        return client.training.proceed(self.packets)


@dataclass(frozen=True)
class ReportRound(Call[Report]):
    """Get the sums of the client's steps in this round."""

    def on(self, client: Client) -> Report:
        return client.training.report()


@dataclass(frozen=True)
class Plan(Call[tuple[list[Phase], Phase]]):
    """Get what the client's methods ask for: phases before training, and training itself."""

    rounds: int

    def on(self, client: Client) -> tuple[list[Phase], Phase]:
        return client.training.plan(self.rounds)


@dataclass(frozen=True)
class CountSteps(Call[int]):
    """Get the number of batches in one pass over the client's data."""

    source: str

    def on(self, client: Client) -> int:
        return client.training.steps_per_epoch(self.source)


# examination


class _Passing(Call[Packets]):
    """A call that begins a pass from which nobody learns."""

    def leg(self, client: Client) -> Leg:
        return client.examination.legs[0]


@dataclass(frozen=True)
class Probe(_Passing):
    """Begin the evaluation of a batch of a held-out split."""

    split: str
    round: int
    number: int
    reading: str = ""
    """The control that it is for; empty: none."""

    def on(self, client: Client) -> Packets:
        return client.examination.probe(self.split, self.round, self.number, self.reading)


@dataclass(frozen=True)
class ProbeTexts(_Passing):
    """Begin a pass over texts in generation."""

    texts: Batch
    round: int
    number: int
    reading: str = ""
    """The control that it is for; empty: none."""

    def on(self, client: Client) -> Packets:
        return client.examination.begin_text(self.texts, self.round, self.number, self.reading)


@dataclass(frozen=True)
class ContinueTexts(_Passing):
    """Begin a pass of a session: over prompts, or over one more token of each text."""

    session: int
    position: int
    texts: Batch
    round: int
    number: int
    left: Tensor | None = None
    """The rows that go on, if some have ended since the pass before."""
    reading: str = ""
    """The control that it is for; empty: none."""

    def on(self, client: Client) -> Packets:
        at, step = (self.session, self.position), (self.round, self.number, self.reading)
        return client.examination.begin_pass(at, self.texts, self.left, step)


@dataclass(frozen=True)
class CloseSession(Call[None]):
    """Forget what the client keeps of a session, whether its texts have ended or not."""

    session: int

    def on(self, client: Client) -> None:
        client.examination.close(self.session)


@dataclass(frozen=True)
class Predict(_Answering, Call[Tensor]):
    """Get the model's outputs for the returned features."""

    def on(self, client: Client) -> Tensor:
        return client.examination.predict(self.packets)


@dataclass(frozen=True)
class Note(_Answering, Call[None]):
    """Keep the model's outputs for the returned features, for `Assess`."""

    def on(self, client: Client) -> None:
        client.examination.note(self.packets)


@dataclass(frozen=True)
class Assess(Call[Report]):
    """Get the figures of the outputs kept since the last time; they stay at the client."""

    split: str
    reading: str = ""
    """The control that it is for; empty: none."""

    def on(self, client: Client) -> Report:
        return client.examination.assess(self.split)


@dataclass(frozen=True)
class Write(_Passing):
    """Begin to write texts that stay with the client, until `Assess` asks for their figures."""

    split: str
    round: int
    session: int
    reading: str = ""
    """The control that it is for; empty: none."""

    def on(self, client: Client) -> Packets:
        author = client.examination.require_author()
        return author.begin(self.split, self.round, self.session, self.reading)


@dataclass(frozen=True)
class WriteOn(_Answering, Call[Packets]):
    """Go on with them; an empty answer means that they are written."""

    def on(self, client: Client) -> Packets:
        return client.examination.require_author().go_on(self.packets)


# exposure


@dataclass(frozen=True)
class CountExposures(Call[int]):
    """Get the number of batches in which the client exposes a split."""

    split: str

    def on(self, client: Client) -> int:
        return client.exposure.batches(self.split)


@dataclass(frozen=True)
class Expose(_Passing):
    """Send the packets that a step on a batch of a split would begin with."""

    split: str
    round: int
    number: int
    as_in_training: bool

    def on(self, client: Client) -> Packets:
        where = (self.split, self.round, self.number)
        return client.exposure.expose(*where, as_in_training=self.as_in_training)


@dataclass(frozen=True)
class ExposeAnswer(_Answering, Call[Packets]):
    """Send the packets that would answer the server's next ones."""

    def on(self, client: Client) -> Packets:
        return client.exposure.answer(self.packets)


@dataclass(frozen=True)
class OwnTokens(Call[Tensor | None]):
    """Only for scoring attacks: get the mask of the texts' own tokens; None: all."""

    split: str
    round: int
    number: int
    as_in_training: bool

    def on(self, client: Client) -> Tensor | None:
        where = (self.split, self.round, self.number)
        return client.exposure.own_tokens(*where, as_in_training=self.as_in_training)


@dataclass(frozen=True)
class InputsOf(Call[Tensor]):
    """Only for upper bounds of attacks: get what went into the head in a step of training."""

    step: int

    def on(self, client: Client) -> Tensor:
        # Drawn from the seed again: nobody keeps the inputs of past steps.
        batch, rows = client.training.locate(self.step)
        return client.training.feeds["private"].batch(batch).inputs[rows]


@dataclass(frozen=True)
class RowsOf(Call[Tensor]):
    """Only for the truth of a simulator's transcripts: get the rows of a step's samples."""

    step: int

    def on(self, client: Client) -> Tensor:
        batch, rows = client.training.locate(self.step)
        return client.training.feeds["private"].indices(batch)[rows].cpu()


@dataclass(frozen=True)
class HeadWeights(Call[dict[str, Tensor]]):
    """Only for upper bounds of attacks: get the weights of the head and of the methods."""

    def on(self, client: Client) -> dict[str, Tensor]:
        end = client.training.end
        parts = {"head": end.head, "methods": end.stack.modules}
        return {
            f"{name}/{key}": tensor.detach().clone()
            for name, module in parts.items()
            for key, tensor in module.state_dict().items()
        }


@dataclass(frozen=True)
class LabelsOf(Call[Tensor]):
    """Only for scoring attacks: get each sample's class in a step of training."""

    step: int

    def on(self, client: Client) -> Tensor:
        batch, rows = client.training.locate(self.step)
        return get_classes(client.training.feeds["private"].batch(batch).labels)[rows]


# sharing


@dataclass(frozen=True)
class Hear(Call[None]):
    """Pass on what the methods announce."""

    announced: Sequence[tuple[Tensor, ...]]

    def leg(self, client: Client) -> Leg:
        return Leg.BROADCAST

    def on(self, client: Client) -> None:
        client.sharing.hear(self.announced)


@dataclass(frozen=True)
class HandOver(Call[Packet]):
    """Send the segments that are shared with other clients."""

    round: int

    def leg(self, client: Client) -> Leg:
        return Leg.HANDOVER

    def on(self, client: Client) -> Packet:
        return client.sharing.hand_over(self.round)


@dataclass(frozen=True)
class Receive(Call[None]):
    """Copy in segments that another client, or the server, has handed over."""

    packet: Packet

    def leg(self, client: Client) -> Leg:
        return Leg.HANDOVER

    def to_device(self, device: torch.device) -> Self:
        return replace(self, packet=self.packet.to_device(device))

    def on(self, client: Client) -> None:
        client.sharing.receive(self.packet)


@dataclass(frozen=True)
class SharedState(Call[dict[str, Tensor]]):
    """Get the shared tensors that the client now holds."""

    def on(self, client: Client) -> dict[str, Tensor]:
        return client.sharing.state()


@dataclass(frozen=True)
class LoadShared(Call[None]):
    """Restore what `SharedState` returned."""

    state: Mapping[str, Tensor]

    def on(self, client: Client) -> None:
        client.sharing.load(self.state)


# keeping


@dataclass(frozen=True)
class OwnState(Call[dict[str, Tensor]]):
    """Get the state that no other client has."""

    def on(self, client: Client) -> dict[str, Tensor]:
        return client.keeping.state()


@dataclass(frozen=True)
class LoadOwn(Call[None]):
    """Restore what `OwnState` returned."""

    state: Mapping[str, Tensor]

    def on(self, client: Client) -> None:
        client.keeping.load(self.state)
