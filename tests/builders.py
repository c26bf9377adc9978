"""Small scenarios and runs that many tests need; each test says what it changes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from simsplit.experiment import Experiment
from simsplit.parties.calls import OwnState
from simsplit.progress import Observer
from simsplit.scenario import Scenario, load_scenario, load_sweep, parse
from simsplit.scenario.files import merge, read
from simsplit.schedules.cohort import Lineup

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "data": {"source": "digits", "train_samples": 90, "test_samples": 40},
    "model": {"kind": "simplecnn"},
    "clients": {"count": 3},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {"batch_size": 16},
    "threads": 1,
    "output": {"figures": False},  # a second each, and few tests look at them
}


def scenario(**changes: Any) -> Scenario:
    """Build a tiny scenario on scikit-learn's digits, with fields merged over it."""
    return parse(merge(TINY, changes))


def load_shipped(path: Path) -> list[Scenario]:
    """Load the scenario of a file, or a sweep's cells of its first seed."""
    if "sweep" in read(path, {}):
        cells = [cell.scenario for cell in load_sweep(path).cells]
        return [cell for cell in cells if cell.seed == cells[0].seed]
    return [load_scenario(path)]


def experiment(given: Scenario, path: Path) -> Experiment:
    """Build the parts of a run, without starting it."""
    return Experiment(given, path)


def run_to_end(given: Scenario, path: Path) -> Experiment:
    """Run an experiment to its end, and return it."""
    made = experiment(given, path)
    made.run(resume=False)
    return made


def enter_round(run: Experiment, number: int) -> Lineup:
    """Start a round and return who takes part; all parts of the run know it."""
    lineup, moment = run.live.program.choose_lineup(number), run.parts.exchange.moment
    moment.round, moment.phase, moment.counted_phase = number, lineup.phase, lineup.phase.name
    run.live.enter(lineup)
    return lineup


class StopAt(Observer):
    """Presses Ctrl-C after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.done = 0

    def step(self, done: int, total: int) -> None:
        before = self.done if done > self.done else 0  # a new round, else
        self.left -= done - before  # a course may tell of several at once
        self.done = done
        if self.left < 0:
            raise KeyboardInterrupt


def image_folder(
    path: Path, *, channels: int = 3, size: int = 32, classes: int = 4, each: int = 10
) -> Path:
    """Write random images to train/ and test/, a folder for each class."""
    rng = np.random.default_rng(0)
    for part, count in (("train", each), ("test", 2)):
        for label in range(classes):
            folder = path / part / f"class{label}"
            folder.mkdir(parents=True)
            for index in range(count):
                shape = (size, size) if channels == 1 else (size, size, channels)
                pixels = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return path


def read_party_weights(run: Experiment) -> dict[str, torch.Tensor]:
    """Return the weights of all parties and of the server."""
    weights = {f"server.{n}": t for n, t in run.parts.server.learner.weights().items()}
    for party in run.clients:
        state = run.parts.pool.ask(party, OwnState())
        weights |= {f"{party}.{n.removeprefix('own.0.')}": t for n, t in state.items()}
    kept = ("head.", "tail.", "trunk.")
    return {n: t.detach() for n, t in weights.items() if n.split(".", 1)[1].startswith(kept)}
