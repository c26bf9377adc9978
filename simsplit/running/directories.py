"""The run directory: where it is made, and what it says from the start of how the run was made."""

from contextlib import suppress
from pathlib import Path

import torch

from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.results import DATA, HOLDINGS, SCENARIO, SWEEP, Run, RunWriter
from simsplit.results.directory import ENVIRONMENT
from simsplit.results.environment import describe_environment, resumed
from simsplit.scenario import Scenario


def run_directory(scenario: Scenario, out: str | Path | None, *, resume: bool) -> Path:
    """Return the directory of a run; RunError if it holds another run."""
    if out is None:
        return numbered(scenario.output.root / scenario.name, resume=resume, foreign=SWEEP)
    path = Path(out)
    if not resume and (path / SCENARIO).exists():
        raise RunError(
            f"{path} already holds a run; give another --out, or --resume to go on with it"
        )
    return path


def numbered(base: Path, *, resume: bool, foreign: str) -> Path:
    """A free form of `base`, numbered if need be; to resume, the last without a foreign file."""
    last, candidate, number = None, base, 1
    while candidate.exists():
        last = last if (candidate / foreign).exists() else candidate
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return last if resume and last is not None else candidate


def describe_start(
    writer: RunWriter, scenario: Scenario, data: Prepared, device: torch.device
) -> None:
    """Write what a run is made of: scenario, environment, data and who holds which of them."""
    writer.start(scenario.yaml(), describe_environment(device, scenario.plugins.told()))
    writer.write_json(DATA, data.told())
    writer.write_text(HOLDINGS, data.holdings())


def describe_resumption(writer: RunWriter, scenario: Scenario, path: Path) -> None:
    """Write the scenario as it is resumed, and that another command goes on with the run."""
    writer.describe(scenario.yaml())
    with suppress(RunError):  # a run is no worse for a note that was lost
        writer.write_json(ENVIRONMENT, resumed(Run.load(path).environment))
