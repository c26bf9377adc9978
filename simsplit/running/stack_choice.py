"""Whether a run's clients train as one tensor where the scenario leaves it open (`stack: auto`).

Both ways are timed before the first round, on clients that are built for it and then dropped. The
ways differ by rounding, so the choice is part of the run: `environment.json` has it, and a resumed
run keeps it.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from simsplit.assembly import Assembler
from simsplit.data import Prepared
from simsplit.engine.pool import Job
from simsplit.errors import RunError
from simsplit.parties.calls import Enter
from simsplit.parties.stackable import find_obstacle
from simsplit.program import Program
from simsplit.results import Run
from simsplit.results.directory import ENVIRONMENT, RunWriter
from simsplit.running.live import LiveRun
from simsplit.scenario import Scenario
from simsplit.scenario.stacking import list_obstacles
from simsplit.schedules.cohort import Lineup

STEPS = 4
"""Steps that are timed each way; the first one warms up."""
SEARCHED = 100
"""Rounds that are looked through for a cohort: the first may be empty."""
KEY = "stack"
"""The choice's name in `environment.json`."""


def settle_stack(live: LiveRun, path: Path, writer: RunWriter) -> str:
    """Let a run's clients train the way that it chose, or chooses now; return it in words."""
    choice: object = None
    with suppress(RunError):
        choice = Run.load(path).environment.get(KEY)
    if not isinstance(choice, dict) or not choice:  # the run is not resumed, or made none
        lineup = _find_lineup(live.program)
        choice = choose_stack(live.scenario, live.data, live.device, lineup)
        writer.write_json(ENVIRONMENT, {**Run.load(path).environment, KEY: choice})
    if not choice["stacked"]:
        live.take_one_by_one()
    return describe_choice(choice)


def _find_lineup(program: Program) -> Lineup:
    """Return the first of some rounds in which clients could be stacked, or else the first one."""
    lineups = map(program.choose_lineup, range(1, min(program.rounds, SEARCHED) + 1))
    several = (each for each in lineups if sum(map(bool, each.steps.values())) > 1)
    return next(several, program.choose_lineup(1))


def choose_stack(
    scenario: Scenario, data: Prepared, device: torch.device, lineup: Lineup
) -> dict[str, object]:
    """Choose how the clients of a run train, by a measurement or by what they cannot do."""
    if (why := next(list_obstacles(scenario), None)) is not None:
        return {"stacked": False, "why": why}
    stacked, alone = (_prepare(scenario, data, device, lineup, stacks=way) for way in (True, False))
    if isinstance(stacked, str):
        return {"stacked": False, "why": stacked}
    assert not isinstance(alone, str), "one after another needs nothing"
    times = [(stacked(), alone()) for _ in range(STEPS)][1:]
    faster = compare_ways(times)
    return {"stacked": faster > 1, "times_as_fast": round(faster, 2)}


def compare_ways(times: Sequence[tuple[float, float]]) -> float:
    """Return how many times as fast stacks are: the middle one of the steps' ratios."""
    return sorted(other / one for one, other in times)[len(times) // 2]


def describe_choice(choice: Mapping[str, object]) -> str:
    """Describe a choice for the line in which a run names its engine."""
    way = "clients stacked" if choice["stacked"] else "one client after another"
    why = choice.get("why") or f"stacks are {choice['times_as_fast']} times as fast"
    return f"inline, {way} (auto: {why})"


def _prepare(
    scenario: Scenario, data: Prepared, device: torch.device, lineup: Lineup, *, stacks: bool
) -> Callable[[], float] | str:
    """Build clients of their own, and return what times one step; or why they cannot be stacked."""
    parts = Assembler(scenario, data, device, stacks=stacks).assemble()
    clients = [client for client in lineup.clients if lineup.steps[client]]
    if len(clients) < 2:
        return "a cohort has fewer than two clients"
    parts.exchange.moment.phase = lineup.phase
    parts.exchange.announce(clients, counted=False)
    parts.server.enter(lineup.phase, lineup.lr_factor)
    parts.pool.enter(clients, Enter(lineup.phase, lineup.lr_factor))
    if stacks and len(reasons := [find_obstacle(parts.pool.clients[c]) for c in clients]):
        alone = [why for why in reasons if why is not None]
        if len(clients) - len(alone) < 2:
            return alone[0] if alone else "a cohort has fewer than two clients"
    phase, lr_factor, workshop = lineup.phase, lineup.lr_factor, parts.workshop
    jobs = {c: Job(1, min(STEPS, lineup.steps[c]), phase, lr_factor) for c in clients}
    why = workshop.find_obstacle(jobs[clients[0]]) if stacks and workshop is not None else None
    if why is not None:
        return why

    trunk = {name: tensor.clone() for name, tensor in parts.server.learner.weights().items()}

    def step() -> float:
        begun = time.perf_counter()
        if workshop is not None:
            # Of copies a short round is timed: each round makes them anew.
            deque(parts.pool.train_rounds(jobs, trunk), maxlen=0)
        else:
            parts.exchange.step_together(clients)
        return time.perf_counter() - begun

    return step
