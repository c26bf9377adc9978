"""This module chooses where clients live: the scenario's engine, or the one that `auto` chooses."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from simsplit.engine.engine_config import AutoEngine, HostsConfig, InlineEngine
from simsplit.errors import ScenarioError, format_count
from simsplit.legs import is_crowd
from simsplit.machine import count_processors, find_accelerator
from simsplit.scenario import Scenario

if TYPE_CHECKING:
    from simsplit.engine.ray_pool import Hosts

STORE_BYTES = 2**30
"""Shared memory for messages between processes, in addition to the data set's."""


def choose_engine(
    scenario: Scenario, available: int | None = None
) -> tuple[HostsConfig | None, str]:
    """Return the hosts' config, or None for this process; and a description of the choice."""
    engine = scenario.engine
    if isinstance(engine, InlineEngine):
        return None, "inline"
    number = count_hosts(engine, scenario.clients.count, available)
    threads = format_count(engine.threads, "thread")
    description = f"ray, {format_count(number, 'host')} of {threads}"
    if not isinstance(engine, AutoEngine):
        if find_spec("ray") is None:
            raise ScenarioError("engine.kind", "got ray, which is not installed; use inline")
        return engine, description
    if (reason := _find_obstacle(scenario, number)) is not None:
        return None, f"inline (auto: {reason})"
    return engine, f"{description} (auto)"


def count_hosts(engine: HostsConfig, clients: int, available: int | None = None) -> int:
    """Return the number of hosts, which is never above the number of clients."""
    if engine.hosts != "auto":
        return max(1, min(engine.hosts, clients))
    return max(1, min((available or count_processors()) // engine.threads, clients))


def _find_obstacle(scenario: Scenario, hosts: int) -> str | None:
    """Return why hosts would not save time; None if they can."""
    clients, device = scenario.clients, scenario.device
    uses_gpu = find_accelerator() is not None if device == "auto" else device != "cpu"
    reasons = {
        "Ray is not installed": find_spec("ray") is None,
        "a GPU is shared best within one process": uses_gpu,
        "there is one client": clients.count < 2,
        "a crowd rests in one process": is_crowd(clients.count),
        "there is room for one host": hosts < 2,
        "what clients share goes from one to the next, so none can work ahead": (
            scenario.aggregation.kind == "none" and scenario.shares
        ),
        "steps as they come are played one after another": scenario.schedule.kind == "asynchronous",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@contextmanager
def provide_hosts(scenario: Scenario, data_bytes: int) -> "Iterator[Hosts | None]":
    """Provide a run's hosts within a block; None if all clients live in this process."""
    config, _ = choose_engine(scenario)
    if config is None:
        yield None
        return
    count = count_hosts(config, scenario.clients.count)
    with keep_hosts() if _kept is None else nullcontext():
        yield _start_hosts(config, count, data_bytes)


@contextmanager
def keep_hosts() -> Iterator[None]:
    """Keep hosts alive within a block, so that its runs share them."""
    global _kept
    with ExitStack() as stack:
        _kept = stack, {}
        try:
            yield
        finally:
            _kept = None


_kept: "tuple[ExitStack, dict[tuple[str, int], Hosts]] | None" = None


def _start_hosts(config: HostsConfig, count: int, data_bytes: int) -> "Hosts":
    """Return the hosts that the config asks for, started now or kept from an earlier run."""
    from simsplit.engine.ray_pool import hosts_for

    assert _kept is not None, "called within hosts_kept only"
    stack, kept = _kept
    # the count replaces `hosts`: `auto` and a number that mean the same share hosts
    key = config.model_dump_json(exclude={"kind", "hosts"}), count
    if key in kept:
        kept[key].revive()
    else:
        kept[key] = stack.enter_context(hosts_for(config, count, STORE_BYTES + data_bytes))
    return kept[key]
