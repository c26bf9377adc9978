"""Where clients live. A pool carries calls to several clients and gives back their answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from simsplit.detectors import Readings
from simsplit.errors import RunFailedError, SimsplitError, listed
from simsplit.packets import ClientId
from simsplit.parties.calls import Call
from simsplit.parties.client import Client
from simsplit.parties.seats import Roster
from simsplit.phases import Phase
from simsplit.wire import Counts

Answer = TypeVar("Answer")


class ClientError(Exception):
    """Something that a client raised: whose it was, on which leg (or in which call), and what."""

    def __init__(self, client: ClientId, where: str, cause: str) -> None:
        self.client, self.where, self.cause = client, where, cause
        super().__init__(f"client {client}, {where}: {cause}")

    def __reduce__(self) -> tuple[type, tuple[ClientId, str, str]]:
        """As exceptions are pickled by what they say, not by what they were made of."""
        return ClientError, (self.client, self.where, self.cause)

    @classmethod
    def of(cls, client: Client, call: Call[object], cause: Exception) -> "ClientError":
        """From an exception of this process."""
        leg = call.leg(client)
        where = type(call).__name__ if leg is None else f"leg {leg}"
        return cls(client.number, where, f"{type(cause).__name__}: {cause}")


class HostLost(RunFailedError):  # noqa: N818 - an event to go on from, where there is a checkpoint
    """A host's process is gone, and with it the state of its clients."""

    advice: ClassVar[str] = "Fewer hosts, a smaller batch or more memory may help"
    """What to do where it happens again and again."""

    def __init__(self, host: int, clients: Sequence[ClientId], cause: str) -> None:
        self.host = host
        super().__init__(f"host {host} (clients {listed(clients, 5)}) was lost: {cause}")


@dataclass(frozen=True)
class Job:
    """One client's whole round against a trunk of its own."""

    round: int
    steps: int
    phase: Phase
    lr_factor: float
    drops: bool = False
    """Whether the client drops out at the last of these steps."""
    spent_s: float = 0.0
    """Simulated seconds of its own that the client has spent in the round before these steps."""


@dataclass(frozen=True)
class Outcome:
    """What such a round came to."""

    report: dict[str, float]
    counts: Counts
    """What crossed the wire meanwhile."""
    trunk: dict[str, Tensor] | None = None
    """The trunk's weights afterwards; None from a client that dropped out."""
    late: bool = False
    readings: Readings | None = None
    """What a sensor on that wire has read."""


class Workshop(Protocol):
    """Where whole rounds of clients are done, one after another (see schedules/copies.py)."""

    def train(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> Outcome:
        """Do one client's job from these weights of the trunk."""

    @property
    def draws(self) -> bool:
        """Whether it draws from torch's one global stream, so that one works at a time."""

    def another(self) -> "Workshop":
        """One with a trunk of its own, for another client's round at the same time."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers from round to round."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""


@dataclass
class Crew:
    """Clients that live in one process, and where their whole rounds are done there."""

    clients: Mapping[ClientId, Client]
    workshop: Workshop | None = field(default=None)

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        try:
            if isinstance(self.clients, Roster):
                return self.clients.ask(client, call)
            return call.on(self.clients[client])
        except SimsplitError:
            raise
        except Exception as error:
            raise ClientError.of(self.clients[client], call, error) from error


class Places(Protocol):
    """Where a run's clients are, if not in its process; they may be lost, and come back."""

    def __len__(self) -> int:
        """How many of them take memory from the run's machine."""

    def pool(
        self, recipe_of: Callable[[str], Any], samples: Sequence[int], device: torch.device
    ) -> "Pool":
        """The clients there; `recipe_of` makes what they are built from on a device."""

    def revive(self) -> list[int]:
        """Put others where some were lost; which these are."""

    def resident_bytes(self) -> list[int | None]:
        """What each has in memory; None where that cannot be known."""

    @property
    def expelled(self) -> Collection[ClientId]:
        """Clients that may not come back, because of what they sent."""


class Pool(ABC):
    """Clients, wherever they are."""

    remote: ClassVar[bool] = False
    """Whether clients are others' and keep to themselves: outputs, labels, checkpoints."""

    def __init__(self, crew: Crew) -> None:
        """`crew` is what of it lives in this process."""
        self.crew = crew

    def keep(self, round_number: int) -> None:  # noqa: B027 - nothing to do is an answer
        """Have clients that keep their own state do so, as it is after a round."""

    def back_to(self, round_number: int) -> None:  # noqa: B027
        """Bring them back to what they kept after a round; 0: as before training."""

    def mark(self, round_number: int) -> None:  # noqa: B027
        """Have such clients remember how they are when a round begins."""

    def undo(self, round_number: int) -> None:  # noqa: B027
        """Bring them back to what they remembered when this round began."""

    @abstractmethod
    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Call one client, and return its answer."""

    @abstractmethod
    def tell(self, client: ClientId, call: Call[object]) -> None:
        """As `ask`, where nobody waits for an answer."""

    @abstractmethod
    def each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """The answers of several clients, each to a call of its own, in that order."""

    def all(self, clients: Iterable[ClientId], call: Call[Answer]) -> dict[ClientId, Answer]:
        """The answers of several clients to the same call."""
        return self.each(dict.fromkeys(clients, call))

    def expect(  # noqa: B027 - nothing to do is an answer
        self, turns: Sequence[ClientId], round_number: int, *, asides: bool = False
    ) -> None:
        """Be told who will be asked to `Begin` next, in this order: a chance to work ahead.

        `asides`: every step is followed by a `BeginAside`.
        """

    @abstractmethod
    def whole_rounds(
        self, jobs: Mapping[ClientId, Job], trunk: Mapping[str, Tensor]
    ) -> Iterator[tuple[ClientId, Outcome]]:
        """Do every client's job, each from the same trunk; outcomes in the order of `jobs`."""

    @abstractmethod
    def workshop_state(self) -> dict[str, Tensor]:
        """What the workshops remember, of all clients."""

    @abstractmethod
    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `workshop_state` gave."""


class InlinePool(Pool):
    """Every client in this process; the reference that other pools must equal bit for bit."""

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """This is every step's path."""
        return self.crew.ask(client, call)

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self.crew.ask(client, call)

    def each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """One client after another."""
        return {client: self.crew.ask(client, call) for client, call in calls.items()}

    def whole_rounds(
        self, jobs: Mapping[ClientId, Job], trunk: Mapping[str, Tensor]
    ) -> Iterator[tuple[ClientId, Outcome]]:
        """The clients' rounds, one after another."""
        for client, job in jobs.items():
            yield client, self._workshop().train(client, job, trunk)

    def workshop_state(self) -> dict[str, Tensor]:
        return self.crew.workshop.state() if self.crew.workshop else {}

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        if self.crew.workshop is not None:
            self.crew.workshop.load(state)

    def _workshop(self) -> Workshop:
        assert self.crew.workshop is not None, "assembly gives one to every splitfed_v1"
        return self.crew.workshop
