"""Clients on hosts of their own: Ray actors, each of which holds many clients as data.

One call per host and barrier; a step's calls go to one host each. What does not depend on who has
trained meanwhile is computed ahead: the forward passes of clients whose turn is near, while the
server is busy with another. Answers are taken in the order in which they are asked for, never in
the order in which they arrive, so results are those of one process, bit for bit.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from simsplit.engine.cluster import (
    KEPT,
    LOOK_S,
    count_room,
    end_actors,
    refuse_dead_node,
    run_with_cluster,
)
from simsplit.engine.engine_config import HostsConfig
from simsplit.engine.host import Failure, Host, Recipe, move_to_device, register_numpy_transport
from simsplit.engine.pool import AheadPool, HostLost, Jobs, Outcome, Weights
from simsplit.errors import RunFailedError, ScenarioError, format_count, format_list
from simsplit.legs import ClientId
from simsplit.parties.calls import Call

AHEAD = 2
"""Forward passes, and whole rounds, that each host may have waiting."""
JOINING_S = 15.0
"""How long a cluster's nodes may take to join before hosts are refused."""
Answer = TypeVar("Answer")


class Hosts:
    """Actors without clients yet; they outlive a run, so that the next one need not start any."""

    def __init__(self, config: HostsConfig, count: int) -> None:
        import ray

        self._ray: Any = ray
        register_numpy_transport()
        self.gpus = config.gpus_per_host
        # which accelerator that is, each host finds where it runs
        self.device = "auto" if self.gpus else "cpu"
        self.joined = config.address is not None
        # in a cluster of its own the number of hosts is decided already: no CPUs are charged
        self.needs: dict[str, float] = {
            "CPU": config.threads if self.joined else 0,
            "GPU": self.gpus,
        }
        self._actor: Any = ray.remote(Host).options(
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs["GPU"],
            scheduling_strategy="SPREAD",
            max_restarts=0,
        )
        self.threads = config.threads
        if self.joined or self.gpus:
            self._refuse_more_than_fit(count)
        self.actors: list[Any] = [self._actor.remote(config.threads) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.actors)

    @property
    def left_out(self) -> tuple[ClientId, ...]:
        """No clients: those of one's own hosts are never left out."""
        return ()

    def give_up(self, host: int, why: str, round_number: int) -> bool:
        """Return False: a host has a part of the run's clients."""
        return False

    def pool(
        self, recipe_of: Callable[[str], Recipe], samples: Sequence[int], device: torch.device
    ) -> "RayPool":
        """Build a run's clients on these hosts."""
        recipe = recipe_of(self.device)
        return RayPool(self, recipe, place_clients(samples, len(self)), device)

    def _refuse_more_than_fit(self, count: int) -> None:
        """Refuse hosts for which Ray would wait for ever; nodes that are joining get a moment."""
        until = time.monotonic() + (JOINING_S if self.joined else 0)
        while count > (room := count_room(self.needs)) and time.monotonic() < until:
            time.sleep(0.2)
        if count > room:
            where = "the cluster" if self.joined else "this machine"
            raise ScenarioError(
                "engine.hosts", f"{where} has room for {self._describe(room)}, got {count}"
            )

    def resident_bytes(self) -> list[int | None]:
        """Return what each host has in memory; None for one that is gone."""
        try:
            held: list[int | None] = self._ray.get(
                [a.measure_resident_bytes.remote() for a in self.actors]
            )
        except self._ray.exceptions.RayError:
            return [None]
        return held

    def revive(self) -> list[int]:
        """Start new hosts where some were lost, and return which; RunFailedError without room."""
        refuse_dead_node()
        lost = [index for index, actor in enumerate(self.actors) if not self._lives(actor)]
        for index in lost:
            self.actors[index] = self._actor.remote(self.threads)
        if self.joined:
            self._wait_for(lost)
        return lost

    def _lives(self, actor: Any) -> bool:  # noqa: ANN401 - Ray's
        try:
            self._ray.get(actor.get_pid.remote())
        except self._ray.exceptions.RayError:
            return False
        return True

    def _wait_for(self, started: Sequence[int]) -> None:
        """Wait until hosts have started; Ray itself would wait for ever for a node with room."""
        waiting = [self.actors[index].get_pid.remote() for index in started]
        while waiting:
            # looked at again and again: Ray lists a lost node for some seconds
            if len(self) > (room := count_room(self.needs)):
                names = format_list([f"host {index}" for index in started], 4)
                fewer = f" and engine.hosts: {room}" if room else ", once there are nodes"
                raise RunFailedError(
                    f"the cluster has lost a node with {names}: it has room for "
                    f"{self._describe(room)} now, not for {len(self)}; {KEPT}{fewer}"
                )
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_S)

    def _describe(self, count: int) -> str:
        """Describe a number of hosts and what each reserves."""
        each = format_count(self.threads, "thread")
        each += f" and {self.gpus:g} GPUs" if self.gpus else ""
        return f"{format_count(count, 'host')} of {each}"

    def close(self) -> None:
        """End all host actors, and Ray where this run started it."""
        end_actors(self.actors)


@contextmanager
def hosts_for(config: HostsConfig, count: int, store_bytes: int) -> Iterator[Hosts]:
    """Start hosts at once, and end them with the block."""
    processors = math.ceil(count * config.threads) if config.address is None else None
    with run_with_cluster(config.address, processors, store_bytes):
        hosts = Hosts(config, count)
        try:
            yield hosts
        finally:
            hosts.close()


def place_clients(samples: Sequence[int], hosts: int) -> list[int]:
    """Choose a host for each client, the largest first, so that all hold about as many samples.

    Where a client lives changes nothing but time.
    """
    load = [0] * hosts
    where = [0] * len(samples)
    for client in sorted(range(len(samples)), key=lambda c: (-samples[c], c)):
        host = load.index(min(load))
        where[client] = host
        load[host] += samples[client] + 1  # those without samples are dealt out as well
    return where


class RayPool(AheadPool):
    """A run's clients on hosts."""

    def __init__(
        self, hosts: Hosts, recipe: Recipe, where: Sequence[int], device: torch.device
    ) -> None:
        """`where` names each client's host; `device` is the server's."""
        super().__init__()
        self._ray = hosts._ray
        self.hosts, self.where, self.device = hosts, list(where), device
        self.most_early = AHEAD * len(hosts)
        if recipe.imports is not None:
            for host, actor in enumerate(hosts.actors):
                self._get(actor.prepare.remote(recipe.imports), host)
        # recipe and data lie in shared memory once
        shared = self._ray.put(recipe)
        building = [
            actor.build.remote(shared, self._clients(host), hosts.device)
            for host, actor in enumerate(hosts.actors)
        ]
        for host, reference in enumerate(building):
            self._get(reference, host)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """Send one message per host."""
        by_host: dict[int, dict[ClientId, Call[Answer]]] = {}
        for client, call in calls.items():
            by_host.setdefault(self.where[client], {})[client] = call
        asked = {h: self.hosts.actors[h].ask_each.remote(each) for h, each in by_host.items()}
        answers: dict[ClientId, Answer] = {}
        for host, reference in asked.items():
            answers |= self._get(reference, host)
        return {client: move_to_device(answers[client], self.device) for client in calls}

    def _send(self, client: ClientId, call: Call[Any]) -> Any:  # noqa: ANN401 - Ray's
        return self.hosts.actors[self.where[client]].ask.remote(client, call)

    def _receive(self, client: ClientId, call: Call[Answer], sent: Any) -> Answer:  # noqa: ANN401
        answer: Answer = self._get(sent, self.where[client])
        return move_to_device(answer, self.device)

    def _tell(self, client: ClientId, call: Call[object]) -> None:
        self.hosts.actors[self.where[client]].tell.remote(client, call)

    def train_rounds(self, jobs: Jobs, trunk: Weights) -> Iterator[tuple[ClientId, Outcome]]:
        """Train on all hosts at once, a few jobs on each; yield in the order of `jobs`."""
        shared = self._ray.put(dict(trunk))
        waiting = [deque(c for c in jobs if self.where[c] == h) for h in range(len(self.hosts))]
        running: dict[Any, ClientId] = {}

        def start(host: int) -> None:
            if waiting[host]:
                client = waiting[host].popleft()
                actor = self.hosts.actors[host]
                running[actor.train_round.remote(client, jobs[client], shared)] = client

        for host in range(len(self.hosts)):
            for _ in range(AHEAD):
                start(host)
        done: dict[ClientId, Any] = {}
        for wanted in jobs:
            while wanted not in done:
                (ready,), _ = self._ray.wait(list(running))
                client = running.pop(ready)
                done[client] = ready  # read in its turn: the first failure is always the same
                start(self.where[client])
            yield wanted, self._get(done.pop(wanted), self.where[wanted])

    def workshop_state(self) -> dict[str, Tensor]:
        """Return the workshop states of all hosts, merged."""
        asked = [actor.get_workshop_state.remote() for actor in self.hosts.actors]
        return {k: t for host, ref in enumerate(asked) for k, t in self._get(ref, host).items()}

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Send each host the state of its clients."""
        for host, actor in enumerate(self.hosts.actors):
            own = {k: t for k, t in state.items() if self.where[int(k.split("/")[0])] == host}
            self._get(actor.load_workshop.remote(own), host)

    def _get(self, reference: Any, host: int) -> Any:  # noqa: ANN401 - Ray's, and any answer
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except (errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError) as error:
            raise HostLost(host, self._clients(host), _shorten(error)) from None
        if isinstance(answer, Failure):
            answer.error.add_note(answer.trace)
            raise answer.error
        return answer

    def _clients(self, host: int) -> list[ClientId]:
        return [client for client, place in enumerate(self.where) if place == host]


def _shorten(error: Exception) -> str:
    """Return Ray's reason, without the identifiers before it and the advice after it."""
    text = " ".join(str(error).split())
    for before in ("The actor is dead because ", "Worker exit detail: "):
        text = text.rpartition(before)[2]
    reason = text.partition(" Some common causes")[0]
    return re.split(r"(?<=[a-z])\. ", reason)[0].rstrip(".")
