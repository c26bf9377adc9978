"""A scenario is run whole: its data are prepared, its parts rehearsed, its attacks tuned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.data import Prepared
from simsplit.experiment import Experiment
from simsplit.hosting import provide_hosts
from simsplit.machine import find_device, pin_threads
from simsplit.opened_run import OpenedRun
from simsplit.plugins import Given
from simsplit.plugins.gathering import list_changed
from simsplit.plugins.tracing import blame_plugins
from simsplit.progress import Observer, Observers
from simsplit.results import Run
from simsplit.running.directories import choose_run_directory
from simsplit.running.rehearsing import rehearse
from simsplit.running.tuning import tune_attacks
from simsplit.scenario import Scenario, own, scenario_of
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import refuse
from simsplit.showing import show_run


def run(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    data: Any = None,  # noqa: ANN401 - many forms
    model: Any = None,  # noqa: ANN401
    plugins: Given = (),
    progress: bool = False,
    **columns: Any,  # noqa: ANN401
) -> OpenedRun:
    """Run a scenario, and return its run directory, opened.

    Args:
        scenario: A file, its fields as a dict, or a scenario from `load_scenario`.
        out: The run directory; by default a new one named after the scenario.
        resume: Whether to continue from the directory's last checkpoint (or start, if there is
            none).
        observers: Objects that are notified of progress and of each round's rows, in addition to
            the scenario's observers.
        data: Arrays, texts, a Dataset, a frame, ... in place of the scenario's data (see `own`).
        model: A `SplitModel`, or head, trunk and tail, in place of the scenario's model.
        plugins: Modules with parts of your own; a loaded scenario has its own plugins already.
        progress: Whether to show on stderr how the run goes on, as the command does.
        columns: How `data` are read: a frame's `target`, texts' `task`, ... (see `own`).

    >>> run("scenarios/quickstart.yaml", out="runs/first")  # doctest: +SKIP
    """
    scenario = scenario_of(scenario, own(data, model, **columns), plugins)
    refuse(Occasion.PACKAGES, scenario)
    path = choose_run_directory(scenario, out, resume=resume)
    watching = [*observers, *(config.build(path) for config in scenario.observers)]
    if progress:
        watching.insert(0, show_run())
    # One for all warnings: it drops a dispensable observer that fails, as the run does later.
    observed = Observers(watching)
    for warning in list_changed(path, scenario.plugins) if resume else ():
        observed.warn(warning)
    with pin_threads(scenario.threads), blame_plugins():
        data = scenario.prepare_data()
        for warning in rehearse(scenario, data, find_device(scenario.device)):
            observed.warn(warning)
        scenario = tune_attacks(scenario, data, path, train=_run_simulated, tell=observed.warn)
        with provide_hosts(scenario, data.nbytes) as hosts:
            experiment = Experiment(scenario, path, observed.observers, data, hosts)
            experiment.run(resume=resume)
    return OpenedRun.load(path, scenario.plugins)


def _run_simulated(scenario: Scenario, data: Prepared, path: Path) -> Run:
    """Run a scenario on an attacker's own data, in this process."""
    Experiment(scenario, path, data=data).run(resume=False)
    return Run.load(path)
