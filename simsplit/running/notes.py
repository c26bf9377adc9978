"""A run directory's summary, the traceback of a failed run, and the figures are written here.

A run warns its user of likely mistakes before the first round, and of idle methods after it.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simsplit.data import Prepared
from simsplit.data.parts import count_rows
from simsplit.errors import PluginError, RunError
from simsplit.foreign import strip_controls
from simsplit.methods import MethodConfig
from simsplit.packets import is_crowd
from simsplit.progress import Observer, RoundEnded, RunPlan, Status
from simsplit.results import HOLDINGS, SUMMARY, TRACEBACK, Run, RunWriter
from simsplit.results.stored import explain_misfits
from simsplit.results.summary import summarise
from simsplit.rows import WireRow
from simsplit.running.accounting import (
    MISSING,
    count_releases,
    lacks_accountant,
    list_guarantees,
    summarise_privacy,
)
from simsplit.running.live import LiveRun
from simsplit.scenario import Scenario
from simsplit.scenario.warnings import list_data_warnings, list_warnings

PRIVACY = "privacy"
"""The table of the privacy that noise guarantees to each client's samples."""


class Notes(Observer):
    """The observer that writes `summary.json`, and `traceback.txt` if the run fails."""

    def __init__(self, live: LiveRun, path: Path, writer: RunWriter) -> None:
        self.live, self.path, self.writer = live, path, writer

    def begin(self, plan: RunPlan) -> None:
        """Write into the summary that the run is running."""
        self._note("running")

    def end(self, status: Status) -> None:
        """Write the results of a finished or pruned run into the summary, or why it failed."""
        error = sys.exception()
        if status in ("finished", "pruned"):
            scenario = self.live.scenario
            with explain_misfits([self.path]):  # a resumed run's tables may have been changed
                results = summarise(Run.load(self.path), scenario.figures)
                resident = self.live.resident_bytes()
                wanted = self.live.parts.evaluator.wanted
                if wanted is not None:
                    results["attack_samples"] = len(wanted)
                results |= self._summarise_privacy()
            reason = {"reason": str(error)} if status == "pruned" else {}
            self._note(status, seed=scenario.seed, **results, resident_bytes=resident, **reason)
        elif status == "failed" and error is not None:
            ours = isinstance(error, RunError | PluginError)
            why = str(error) if ours else f"{type(error).__name__}: {error}"
            self._note(status, reason=why)
            self.writer.write_text(TRACEBACK, strip_controls(traceback.format_exc()))
        else:
            self._note(status)

    def _summarise_privacy(self) -> dict[str, object]:
        """Return the summary's entry on privacy, and write the table by client."""
        live = self.live
        guarantees = list_guarantees(live.scenario)
        if not guarantees:
            return {}
        steps = live.program.steps_per_epoch["private"]
        times = count_releases(WireRow.in_frame(Run.load(self.path).wire), steps)
        samples = count_rows(live.data.parts).tolist()
        every = [summarise_privacy(each, times, samples) for each in guarantees]
        if rows := [row for _, of_one in every for row in of_one]:
            self.writer.write_table(PRIVACY, rows)
        return {"privacy": [entry for entry, _ in every]}

    def _note(self, status: Status, **more: object) -> None:
        """Write the summary, which replaces the previous one."""
        facts: dict[str, object] = {
            "status": status,
            "rounds_done": self.live.progress.round,
            "rounds": self.live.program.rounds,
            "flops": self.live.flops.to_dict(),
        }
        self.writer.write_json(SUMMARY, {"name": self.live.scenario.name, **facts, **more})


class CrowdHoldings(Observer):
    """The observer that writes who holds what, of a crowd's clients that took part."""

    def __init__(self, live: LiveRun, path: Path, writer: RunWriter) -> None:
        self.live, self.path, self.writer = live, path, writer

    def end(self, status: Status) -> None:
        """Write the table of a run that has come to an end."""
        if status == "finished" and is_crowd(self.live.scenario.clients.count):
            clients = sorted({*map(int, Run.load(self.path).clients["client"])})
            self.writer.write_text(HOLDINGS, self.live.data.format_holdings(clients))


class Pictures(Observer):
    """The observer that draws the figures of a finished run; a figure that fails is a warning."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self._warn = path, warn

    def end(self, status: Status) -> None:
        """Draw the figures, if the run finished."""
        if status == "finished":
            from simsplit.report.run_figures import draw_figures

            for failure in draw_figures(Run.load(self.path)):
                self._warn(failure)


def list_first_warnings(scenario: Scenario, data: Prepared, *, resumed: bool) -> Iterator[str]:
    """Yield the warnings about a scenario and its data; a resumed run repeats only `MISSING`."""
    if lacks_accountant(scenario):
        yield MISSING
    if resumed:
        return
    yield from list_warnings(scenario)
    if data.has_samples:
        yield from list_data_warnings(scenario, data)


class Idle(Observer):
    """The observer that warns of methods that changed no token or label in their first round.

    Such a defence is listed in the scenario and protects nothing.
    """

    def __init__(self, methods: Sequence[MethodConfig], warn: Callable[[str], None]) -> None:
        self.methods, self._warn, self._checked = methods, warn, False

    def round(self, ended: RoundEnded) -> None:
        """Check the methods' shares of changes in the first round of training."""
        if self._checked or not ended.main:
            return
        self._checked = True
        for index, method in enumerate(self.methods):
            column = method.changed_share_column
            # Clients that took no step report no share.
            shares = [row[column] for row in ended.clients if column is not None and column in row]
            if shares and not any(shares):
                self._warn(
                    f"scenario.method.{index}: {column} is 0 in round {ended.number}: the method "
                    "changed nothing, so it hides nothing; a lower epsilon changes more"
                )
