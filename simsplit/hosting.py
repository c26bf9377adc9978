"""Where a scenario's clients live: the engine that it names, or the one that `auto` chooses."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from simsplit.engine.config import AutoEngine, HostsConfig, InlineEngine
from simsplit.errors import ScenarioError
from simsplit.machine import processors
from simsplit.scenario import Scenario

if TYPE_CHECKING:
    from simsplit.engine.ray_pool import Hosts

STORE_BYTES = 2**30
"""Shared memory for what is on its way between processes; the data set's comes on top."""


def engine_of(scenario: Scenario, available: int | None = None) -> tuple[HostsConfig | None, str]:
    """The hosts that a scenario asks for, or None for this process; and in words which, and why."""
    engine = scenario.engine
    if isinstance(engine, InlineEngine):
        return None, "inline"
    number = num_hosts(engine, scenario.clients.count, available)
    words = f"ray, {number} host{'s' if number > 1 else ''} of {_threads(engine.threads)}"
    if not isinstance(engine, AutoEngine):
        if find_spec("ray") is None:
            raise ScenarioError("engine.kind", "got ray, which is not installed; use inline")
        return engine, words
    if (why := _cannot_help(scenario, number)) is not None:
        return None, f"inline (auto: {why})"
    return engine, f"{words} (auto)"


def num_hosts(engine: HostsConfig, clients: int, available: int | None = None) -> int:
    """How many hosts; never more than clients."""
    if engine.hosts != "auto":
        return max(1, min(engine.hosts, clients))
    return max(1, min((available or processors()) // engine.threads, clients))


def _cannot_help(scenario: Scenario, hosts: int) -> str | None:
    """Why hosts would only cost time, or None where they can save some."""
    clients = scenario.clients
    reasons = {
        "Ray is not installed": find_spec("ray") is None,
        "a GPU is shared best within one process": _on_gpu(scenario.device),
        "there is one client": clients.count < 2,
        "there is room for one host": hosts < 2,
        "what clients share goes from one to the next, so none can work ahead": (
            scenario.aggregation.kind == "none" and scenario.shares
        ),
        "steps as they come are played one after another": scenario.schedule.kind == "asynchronous",
    }
    return next((why for why, so in reasons.items() if so), None)


def _on_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


@contextmanager
def hosts_of(scenario: Scenario, data_bytes: int) -> "Iterator[Hosts | None]":
    """The hosts of a run, for its length; None where all clients live in this process."""
    config, _ = engine_of(scenario)
    if config is None:
        yield None
        return
    count = num_hosts(config, scenario.clients.count)
    if _kept is None:
        with hosts_kept():
            yield _started(config, count, data_bytes)
    else:
        yield _started(config, count, data_bytes)


@contextmanager
def hosts_kept() -> Iterator[None]:
    """A block whose runs share hosts: those of one run wait for the next, until the block ends."""
    global _kept
    with ExitStack() as stack:
        _kept = stack, {}
        try:
            yield
        finally:
            _kept = None


_kept: "tuple[ExitStack, dict[tuple[str, int], Hosts]] | None" = None


def _started(config: HostsConfig, count: int, data_bytes: int) -> "Hosts":
    """Hosts as the config asks for, new or kept from the run before."""
    from simsplit.engine.ray_pool import hosts_for

    assert _kept is not None, "asked for within hosts_kept only"
    stack, kept = _kept
    key = config.model_dump_json(exclude={"kind", "hosts"}), count
    if key in kept:
        kept[key].revive()
    else:
        kept[key] = stack.enter_context(hosts_for(config, count, STORE_BYTES + data_bytes))
    return kept[key]


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
