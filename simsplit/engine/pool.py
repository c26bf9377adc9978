"""Where clients live: a pool carries calls to several clients and gives back their answers."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from simsplit.detectors import Readings
from simsplit.engine.stacker import Stacker
from simsplit.errors import OutOfRangeError, RunFailedError, SimsplitError, format_list
from simsplit.legs import ClientId
from simsplit.packets import Packets
from simsplit.parties.calls import (
    Begin,
    BeginInterleaved,
    Call,
    CountSteps,
    Enter,
    Hear,
    LoadOwn,
    OwnState,
    Proceed,
)
from simsplit.parties.client import Client
from simsplit.parties.learner import Learner
from simsplit.parties.seats import Roster
from simsplit.phases import Phase
from simsplit.wire import Counts

Answer = TypeVar("Answer")
Weights = Mapping[str, Tensor]
Sent = Mapping[ClientId, Packets]
"""The packets of each client that is worked on."""
_ANYTHING = nullcontext()


class ClientError(Exception):
    """An exception that a client raised, with the client, the leg (or call) and the cause."""

    def __init__(self, client: ClientId, where: str, cause: str) -> None:
        self.client, self.where, self.cause = client, where, cause
        super().__init__(f"client {client}, {where}: {cause}")

    def __reduce__(self) -> tuple[type, tuple[ClientId, str, str]]:
        """Pickle the arguments: by default an exception is pickled by its message alone."""
        return ClientError, (self.client, self.where, self.cause)


NOBODY = -1
"""Stands for a host where none was lost, but the round is to be done again."""


class HostLost(RunFailedError):  # noqa: N818 - an event to go on from, where there is a checkpoint
    """A host's process is gone, and with it the state of its clients."""

    advice: ClassVar[str] = "Fewer hosts, a smaller batch or more memory may help"
    """What helps where it happens again and again."""
    since: int | None = None
    """The first earlier round that is to be undone too; None: only the round that is under way."""

    def __init__(self, host: int, clients: Sequence[ClientId], cause: str) -> None:
        self.host, self.cause = host, cause
        super().__init__(f"host {host} (clients {format_list(clients, 5)}) was lost: {cause}")


class ClientAtFault(OutOfRangeError):  # noqa: N818 - names who is to leave, where that is known
    """A remote client has spoilt the trunk; it is not always the one that is worked on."""

    def __init__(self, client: ClientId, what: str) -> None:
        self.client = client
        super().__init__(what)


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


Jobs = Mapping[ClientId, Job]


@dataclass(frozen=True)
class Outcome:
    """The result of such a round."""

    report: dict[str, float]
    counts: Counts
    """The packets and bytes that crossed the wire."""
    trunk: dict[str, Tensor] | None = None
    """The trunk's weights afterwards; None from a client that dropped out."""
    late: bool = False
    readings: Readings | None = None
    """The readings of a sensor on that wire."""


class Workshop(Protocol):
    """Where whole rounds of clients are done, one after another (see `TrunkCopies`)."""

    @property
    def draws(self) -> bool:
        """Whether it draws from torch's one global stream, so that one works at a time."""

    def train(self, client: ClientId, job: Job, trunk: Weights) -> Outcome:
        """Train one client's job, starting from these weights of the trunk."""

    def find_obstacle(self, job: Job) -> str | None:
        """Return why jobs such as this one cannot be taken lap by lap; None if they can."""

    def train_together(self, jobs: Jobs, trunk: Weights) -> Iterator[tuple[ClientId, Outcome]]:
        """Train several clients' jobs lap by lap, and yield outcomes in the order of `jobs`."""

    def make_another(self) -> "Workshop":
        """Make one with a trunk of its own, for another client's round at the same time."""

    def state(self) -> dict[str, Tensor]:
        """Return what it remembers from round to round."""

    def load(self, state: Weights) -> None:
        """Restore what `state` returned."""


class StepWatch(Protocol):
    """A watch over a trunk that remote clients train; it raises ClientAtFault."""

    def begin_round(self) -> None:
        """Note the trunk's size at the beginning of a round."""

    def end_round(self) -> None:
        """Check the trunk after the steps of a round that all clients take on it."""

    def begin_copy(self, client: ClientId) -> None:
        """Note that the trunk is now a client's own copy."""

    def end_copy(self) -> None:
        """Check a client's copy after its round."""

    def check_step(self, sent: Sent) -> None:
        """Check the trunk after a step on what these clients have sent."""

    def check_answers(self, answers: Sent, sent: Sent) -> None:
        """Check the server's answers to what these clients have sent."""


class Places(Protocol):
    """Processes that hold a run's clients; they may be lost, and come back."""

    def __len__(self) -> int:
        """Return how many of them take memory from the run's machine."""

    def pool(
        self, recipe_of: Callable[[str], Any], samples: Sequence[int], device: torch.device
    ) -> "Pool":
        """Build the clients there; `recipe_of` makes what they are built from on a device."""

    def give_up(self, host: int, why: str, round_number: int) -> bool:
        """Continue without a host that is lost again and again; return False if that cannot be."""

    @property
    def left_out(self) -> Collection[ClientId]:
        """The clients that the run continues without: expelled, or away for too long."""

    def revive(self) -> list[int]:
        """Replace the processes that were lost, and return which these are."""

    def resident_bytes(self) -> list[int | None]:
        """Return what each has in memory; None where that cannot be known."""


class Pool(ABC):
    """Clients, wherever they are."""

    remote: ClassVar[bool] = False
    """Whether clients are others' and keep outputs, labels and checkpoints to themselves."""
    clients: Mapping[ClientId, Client] = MappingProxyType({})
    """The clients that live in this process."""
    workshop: Workshop | None = None
    """Where this process trains whole rounds of clients (splitfed_v1)."""

    def work_on(self, sent: Sent) -> AbstractContextManager[object]:
        """Open a context in which the server works on what some clients have sent.

        Where clients are remote, an exception in it expels one of them; see `RemotePool`.
        """
        return _ANYTHING

    def watch(self, learner: Learner) -> StepWatch | None:
        """Return a watch over the trunk of a learner; None if clients are trusted."""
        return None

    def compare_weights(  # noqa: B027 - only remote clients may be hostile
        self, updates: Mapping[ClientId, Weights], held: Weights, *, of_trunk: bool
    ) -> None:
        """Compare the weights that clients have made with those that all of them began with.

        `of_trunk`: they are copies of the trunk. Where clients are remote, raise ClientAtFault.
        """

    def end_round(self, round_number: int) -> None:  # noqa: B027
        """Compare what clients have sent in the steps of a round; where they are remote, one whose
        numbers are far larger than the others' is expelled.
        """

    def keep(self, round_number: int) -> None:  # noqa: B027 - most pools have nothing to do
        """Have clients that keep their own state do so after a round."""

    def return_to(self, round_number: int) -> None:  # noqa: B027
        """Return such clients to what they kept after a round; 0: to before training."""

    def collect_carried(self) -> dict[str, Tensor]:
        """Return what is known of the weights that remote clients have handed to each other."""
        return {}

    def load_carried(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore what `collect_carried` returned."""

    def mark(self, round_number: int) -> None:  # noqa: B027
        """Have such clients remember their state when a round begins."""

    def undo(self, round_number: int) -> None:  # noqa: B027
        """Return such clients to what they remembered when this round began."""

    @abstractmethod
    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Call one client, and return its answer."""

    @abstractmethod
    def tell(self, client: ClientId, call: Call[object]) -> None:
        """Call one client, and wait for no answer."""

    @abstractmethod
    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """Call several clients, each with a call of its own; answers come in that order."""

    def ask_all(self, clients: Iterable[ClientId], call: Call[Answer]) -> dict[ClientId, Answer]:
        """Call several clients with the same call, and return their answers."""
        return self.ask_each(dict.fromkeys(clients, call))

    def enter(self, clients: Sequence[ClientId], call: Enter) -> None:
        """Start a round of a phase at all clients of the run."""
        self.ask_all(clients, call)

    def announce(self, clients: Sequence[ClientId], call: Hear) -> None:
        """Pass on to all these clients what methods announce."""
        self.ask_all(clients, call)

    def count_steps(self, clients: Sequence[ClientId], source: str) -> np.ndarray:
        """Count every client's batches in a pass over its data; 0 of one that does not answer."""
        counts = np.zeros(len(clients), np.int64)
        for client, count in self.ask_all(clients, CountSteps(source)).items():
            counts[client] = count
        return counts

    def collect_own(self, clients: Sequence[ClientId]) -> Mapping[ClientId, dict[str, Tensor]]:
        """Collect from the run's clients the states that no other client has.

        A client that is left out is in its state before training.
        """
        return self.ask_all(clients, OwnState())

    def load_own(
        self, clients: Sequence[ClientId], states: Mapping[ClientId, dict[str, Tensor]]
    ) -> None:
        """Restore what `collect_own` returned."""
        self.ask_each({client: LoadOwn(states.get(client, {})) for client in clients})

    rests_on_disk: bool = False
    """Whether clients' own states lie in rows on disk, to which checkpoints refer."""

    def collect_rested(self) -> dict[str, Tensor]:
        """Return where the rows of clients lie that rest on disk."""
        return {}

    def load_rested(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `collect_rested` returned, where clients rest on disk."""
        raise AssertionError(f"clients of a {type(self).__name__} do not rest on disk")

    def let_go(self, rounds: Collection[int]) -> None:  # noqa: B027
        """Forget what was kept after other rounds than these, which have checkpoints."""

    def expect(  # noqa: B027 - most pools do nothing ahead
        self, turns: Sequence[ClientId], round_number: int, *, has_interleaved: bool = False
    ) -> None:
        """Announce who will be asked to `Begin` next, in this order, so that a pool can work ahead.

        `has_interleaved`: every step is followed by a `BeginInterleaved`.
        """

    @abstractmethod
    def train_rounds(self, jobs: Jobs, trunk: Weights) -> Iterator[tuple[ClientId, Outcome]]:
        """Train every client's job from the same trunk; yield outcomes in the order of `jobs`."""

    def workshop_state(self) -> dict[str, Tensor]:
        """Return what the workshops of all clients remember."""
        return self.workshop.state() if self.workshop is not None else {}

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `workshop_state` returned."""
        if self.workshop is not None:
            self.workshop.load(state)


class AheadPool(Pool):
    """Clients in other processes, which begin their steps before they are asked for these."""

    most_early: float = math.inf
    """The most steps that may have begun before they are asked for."""

    def __init__(self) -> None:
        self._ahead: deque[ClientId] = deque()
        self._round = 0
        self._has_interleaved = False
        self._early: dict[ClientId, Any] = {}
        """What `_send` has returned for the steps that have begun ahead."""
        self._stepping: set[ClientId] = set()

    @abstractmethod
    def _send(self, client: ClientId, call: Call[Any]) -> Any:  # noqa: ANN401
        """Send a call, and return what its answer is received by."""

    @abstractmethod
    def _receive(self, client: ClientId, call: Call[Answer], sent: Any) -> Answer:  # noqa: ANN401
        """Wait for the answer to a call."""

    @abstractmethod
    def _tell(self, client: ClientId, call: Call[object]) -> None:
        """Send a call; a failure is raised with the next awaited answer."""

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Send a call, unless its answer is under way already, and wait for the answer."""
        early = isinstance(call, Begin) and client in self._early
        sent = self._early.pop(client) if early else self._send(client, call)
        answer = self._receive(client, call, sent)
        if isinstance(call, Begin | Proceed | BeginInterleaved) and answer == ():
            self._finish_step(client)
        return answer

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self._tell(client, call)
        if isinstance(call, Proceed) and not self._has_interleaved:
            self._finish_step(client)

    def expect(
        self, turns: Sequence[ClientId], round_number: int, *, has_interleaved: bool = False
    ) -> None:
        """Have the first clients begin their steps now, and others as these are used up."""
        self._ahead, self._round = deque(turns), round_number
        self._has_interleaved = has_interleaved
        self._work_ahead()

    def _finish_step(self, client: ClientId) -> None:
        """Note that a client's step is over, before anything else is done for the client."""
        self._stepping.discard(client)
        self._work_ahead()

    def _work_ahead(self) -> None:
        """Begin steps in the order of turns, up to a client that still has a step open."""
        # The order is kept although another client may be free: results must not depend on time.
        while self._ahead and len(self._early) < self.most_early:
            client = self._ahead[0]
            if client in self._stepping:
                return
            self._ahead.popleft()
            self._stepping.add(client)
            self._early[client] = self._send(client, Begin(self._round))


class InlinePool(Pool):
    """Every client in this process; the reference that other pools must equal bit for bit."""

    stacker: Stacker | None = None
    """Steps of a cohort that are taken as one; None: each client takes its own."""

    def __init__(self, clients: Mapping[ClientId, Client]) -> None:
        self.clients = clients

    def stack_steps(self, most: int | None) -> None:
        """Take the steps of a cohort as one, of at most so many clients; None: of all."""
        self.stacker = Stacker(self.clients, most)

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Call one client; an exception that is not ours becomes a `ClientError`."""
        with self._begin(client, call):
            return call.on(self.clients[client])

    @contextmanager
    def _begin(self, client: ClientId, call: Call[object]) -> Iterator[None]:
        """Take the client out of a stack, and name it and the call in errors."""
        if self.stacker is not None:
            self.stacker.let_out(client)
        try:
            yield
        except SimsplitError:
            raise
        except Exception as error:
            made = self.clients[client]
            leg = call.leg(made)
            where = type(call).__name__ if leg is None else f"leg {leg}"
            raise ClientError(made.number, where, f"{type(error).__name__}: {error}") from error

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self.ask(client, call)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """Call one client after another, or stacked ones at once."""
        if self.stacker is not None:
            return self.stacker.ask_each(calls, self.ask)
        return {client: self.ask(client, call) for client, call in calls.items()}

    def train_rounds(self, jobs: Jobs, trunk: Weights) -> Iterator[tuple[ClientId, Outcome]]:
        """Train one client's round after another, or those of stacked clients lap by lap."""
        workshop, stacker = self.workshop, self.stacker
        assert workshop is not None, "assembly gives one to every splitfed_v1"
        first = next(iter(jobs.values()), None)
        if stacker is not None and first is not None and workshop.find_obstacle(first) is None:
            for some in stacker.cut(jobs):
                yield from workshop.train_together({client: jobs[client] for client in some}, trunk)
            return
        for client, job in jobs.items():
            yield client, workshop.train(client, job, trunk)


class RestingPool(InlinePool):
    """Clients of whom few are live: what all are told each round needs no live client."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.roster = roster
        self.rests_on_disk = roster.rows is not None

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Call one client, for some calls without a seat for it."""
        with self._begin(client, call):
            return self.roster.ask(client, call)

    def enter(self, clients: Sequence[ClientId], call: Enter) -> None:
        """Start a round at all clients of the roster."""
        del clients
        if self.stacker is not None:
            self.stacker.settle()
        self.roster.enter(call)

    def announce(self, clients: Sequence[ClientId], call: Hear) -> None:
        """Check that nothing is announced: clients that rest have no methods."""
        del clients
        self.roster.announce(call)

    def count_steps(self, clients: Sequence[ClientId], source: str) -> np.ndarray:
        """Count batches without a live client, unless clients are asked that are not here."""
        if len(self.roster) == len(clients):
            return self.roster.count_steps(source)
        return super().count_steps(clients, source)

    def collect_own(self, clients: Sequence[ClientId]) -> Mapping[ClientId, dict[str, Tensor]]:
        """Collect states, of a crowd those of the clients that took part; none that lie on disk."""
        if self.rests_on_disk:
            return {}
        return self.roster.collect_own() if self.roster.sparse else super().collect_own(clients)

    def load_own(
        self, clients: Sequence[ClientId], states: Mapping[ClientId, dict[str, Tensor]]
    ) -> None:
        """Restore states, of a crowd those of the clients that took part."""
        if self.roster.sparse or self.rests_on_disk:
            self.roster.load_own(states)
        else:
            super().load_own(clients, states)

    def collect_rested(self) -> dict[str, Tensor]:
        return self.roster.write_rows().state() if self.rests_on_disk else {}

    def load_rested(self, state: Mapping[str, Tensor]) -> None:
        self.roster.load_rows(state)

    def keep(self, round_number: int) -> None:
        """Make the rows of all clients durable, for the checkpoint of a round to name them."""
        if self.rests_on_disk:
            self.roster.write_rows().keep(round_number)

    def let_go(self, rounds: Collection[int]) -> None:
        if self.roster.rows is not None:
            self.roster.rows.let_go(rounds)
