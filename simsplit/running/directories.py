"""The run directory is chosen here, and described by the files that exist from a run's start.

The columns of its tables follow from the scenario.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from simsplit.client_names import NO_NAMES
from simsplit.data import Prepared
from simsplit.detectors.watch import Watch
from simsplit.errors import RunError
from simsplit.evaluation.evaluator import ATTACK_SUCCESS_ALL
from simsplit.legs import is_crowd
from simsplit.privacy.departures import SPENDING_COLUMNS, counts_spending
from simsplit.results import DATA, HOLDINGS, SCENARIO, SWEEP, Run, RunWriter
from simsplit.results.directory import ENVIRONMENT
from simsplit.results.environment import add_resumption, describe_environment
from simsplit.results.ledger import TableColumns
from simsplit.results.locking import lock, refuse_locked
from simsplit.results.run import suggest_run
from simsplit.rows import DetectionRow
from simsplit.scenario import Scenario


def refuse_misspelt(path: Path, kind: Literal["run", "sweep"] = "run") -> None:
    """Raise RunError for a folder that is not there, beside one with a name like its own."""
    file = SWEEP if kind == "sweep" else SCENARIO
    if not path.exists() and (near := suggest_run(path, file)):
        raise RunError(f"{path}: no such folder, and --resume goes on with a {kind}{near}")


def choose_run_directory(scenario: Scenario, out: str | Path | None, *, resume: bool) -> Path:
    """Return the directory of a run.

    Raise RunError if it holds another run, if another process writes it, or if it cannot exist.
    """
    path = scenario.output.root / scenario.name if out is None else Path(out)
    with explain_path_errors(path):
        if out is None:
            path = choose_free_name(path, resume=resume, foreign=SWEEP)
        refuse_locked(path)
        if not resume:
            refuse_existing(path)
    return path


@contextmanager
def claim(path: Path, *, resume: bool) -> Iterator[None]:
    """Open a context in which this process alone writes a run directory.

    Raise RunError if another process writes it, or has written a run meanwhile.
    """
    with lock(path):
        if not resume:
            refuse_existing(path)
        yield


def holds_run(path: Path) -> bool:
    """Return whether a directory holds a run."""
    return (path / SCENARIO).exists()


def refuse_existing(path: Path) -> None:
    """Raise RunError if a directory holds a run."""
    if holds_run(path):
        raise RunError(
            f"{path} already holds a run; give another --out, or --resume to go on with it"
        )


@contextmanager
def explain_path_errors(path: Path) -> Iterator[None]:
    """Open a context in which a path that cannot exist, or is a file, becomes a RunError."""
    try:
        yield
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; give another --out")
    except OSError as error:
        raise RunError(f"cannot use {path}: {error.strerror}; give another --out") from None


def choose_free_name(base: Path, *, resume: bool, foreign: str) -> Path:
    """Return `base`, or a numbered form of it that does not exist.

    To resume, return the last existing one, without directories that have a `foreign` file.
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
    parts = scenario.plugins.describe_origins(), scenario.model.describe_own_weights()
    writer.start(scenario.yaml(), describe_environment(device, *parts))
    writer.write_json(DATA, data.to_dict())
    if not is_crowd(scenario.clients.count):
        writer.write_text(HOLDINGS, data.format_holdings())


def describe_resumption(
    writer: RunWriter, scenario: Scenario, path: Path, device: torch.device
) -> None:
    """Write the resumed run's scenario; add the resuming command and machine to the environment."""
    writer.describe(scenario.yaml())
    before: Mapping[str, object] = {}
    with suppress(RunError):  # a lost note must not stop a run
        before = Run.load(path).environment
    writer.write_json(ENVIRONMENT, add_resumption(before, device))


def drop_late_names(path: Path, data: Prepared) -> Prepared:
    """Return data without clients' names if the run in a directory began without them."""
    # Data give names now that gave none when the run began; its tables have no column for them.
    table = path / "clients.csv"
    if not table.is_file():  # a pipe would be waited for
        return data
    with suppress(OSError), table.open("rb") as opened:
        if "name" not in opened.readline().decode(errors="replace").strip().split(","):
            return replace(data, client_names=NO_NAMES)
    return data


def table_columns(
    scenario: Scenario, *, named: bool = False, withheld: Sequence[str] = ()
) -> TableColumns:
    """Return the columns that this scenario adds to those of every run.

    `named`: clients have names. `withheld` are figures that clients keep to themselves.
    """
    # A mean over all clients is no figure of a client's own model.
    own_figures = [name for name in scenario.figures if name != ATTACK_SUCCESS_ALL]
    return TableColumns(
        scenario.figures,
        own_figures=own_figures if scenario.has_own_models else [],
        named=named,
        handed=scenario.shares,
        methods=bool(scenario.method),
        cohort=not scenario.cohort.whole,
        staleness=scenario.schedule.kind == "asynchronous",
        malicious=bool(scenario.detectors or scenario.clients.malicious),
        signals=Watch.list_columns(scenario.detectors),
        detections=DetectionRow.columns() if scenario.detectors else (),
        reported=[
            *(name for method in scenario.method for name in method.columns),
            *(SPENDING_COLUMNS if counts_spending(scenario) else ()),
        ],
        attacked=bool(scenario.attacks),
        withheld=withheld,
        joint=bool(scenario.parties),
    )
