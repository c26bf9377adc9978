"""The run directory is chosen here, and described by the files that exist from a run's start."""

from contextlib import suppress
from pathlib import Path

import torch

from simsplit.data import Prepared
from simsplit.errors import RunError
from simsplit.results import DATA, HOLDINGS, SCENARIO, SWEEP, Run, RunWriter
from simsplit.results.directory import ENVIRONMENT
from simsplit.results.environment import add_resumption, describe_environment
from simsplit.scenario import Scenario


def choose_run_directory(scenario: Scenario, out: str | Path | None, *, resume: bool) -> Path:
    """Return the directory of a run; raise RunError if it holds another run."""
    if out is None:
        return choose_free_name(scenario.output.root / scenario.name, resume=resume, foreign=SWEEP)
    path = Path(out)
    if not resume and (path / SCENARIO).exists():
        raise RunError(
            f"{path} already holds a run; give another --out, or --resume to go on with it"
        )
    return path


def choose_free_name(base: Path, *, resume: bool, foreign: str) -> Path:
    """Return `base`, or a numbered form of it that does not exist.

    To resume, return the last existing one, without those that have a `foreign` file.
    """
    last, candidate, number = None, base, 1
    while candidate.exists():
        last = last if (candidate / foreign).exists() else candidate
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return last if resume and last is not None else candidate


def describe_start(
    writer: RunWriter, scenario: Scenario, data: Prepared, device: torch.device
) -> None:
    """Write the files that describe a run: scenario, environment, data and clients' shares."""
    writer.start(scenario.yaml(), describe_environment(device, scenario.plugins.describe_origins()))
    writer.write_json(DATA, data.to_dict())
    writer.write_text(HOLDINGS, data.format_holdings())


def describe_resumption(writer: RunWriter, scenario: Scenario, path: Path) -> None:
    """Write the resumed run's scenario, and add the resuming command to the environment."""
    writer.describe(scenario.yaml())
    with suppress(RunError):  # a lost note must not stop a run
        writer.write_json(ENVIRONMENT, add_resumption(Run.load(path).environment))
