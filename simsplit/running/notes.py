"""A run directory's summary, the traceback of a failed run, and the figures are written here.

A run warns its user of likely mistakes before the first round, and of idle methods after it.
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simsplit.data.client_parts import count_rows
from simsplit.errors import PluginError, RunError
from simsplit.foreign import strip_controls
from simsplit.legs import is_crowd
from simsplit.methods import MethodConfig
from simsplit.privacy.accounting import (
    MISSING,
    choose_audit,
    choose_guarantee,
    count_in_round,
    count_packets,
    count_releases,
    explain_lack,
    lacks_accountant,
    list_guarantees,
    list_withheld_figures,
    summarise_privacy,
    void_repeated,
)
from simsplit.privacy.uncovered import list_uncovered
from simsplit.progress import Observer, RoundEnded, RunPlan, Status
from simsplit.results import HOLDINGS, SUMMARY, TRACEBACK, Run, RunWriter
from simsplit.results.read_tables import explain_misfits
from simsplit.results.summary import summarise
from simsplit.rows import WireRow
from simsplit.running.checkpointing import RETURNED
from simsplit.running.live import LiveRun
from simsplit.scenario.refusals import list_data_warnings, list_warnings

PRIVACY = "privacy"
"""The table of the privacy that noise guarantees to each client's samples."""


@dataclass(eq=False)
class Notes(Observer):
    """The observer that writes `summary.json`, and `traceback.txt` if the run fails."""

    live: LiveRun
    path: Path
    writer: RunWriter
    withheld: Sequence[str] = ()
    """Figures that clients do not send."""
    no_guarantee: str = ""
    """Why noise gives no guarantee."""

    def begin(self, plan: RunPlan) -> None:
        """Write into the summary that the run is running."""
        self._note("running")

    def end(self, status: Status) -> None:
        """Write the results of a finished or pruned run into the summary, or why it failed."""
        error = sys.exception()
        if status in ("finished", "pruned"):
            scenario = self.live.scenario
            with explain_misfits([self.path]):  # a resumed run's tables may have been changed
                figures = [name for name in scenario.figures if name not in self.withheld]
                results = summarise(Run.load(self.path), figures)
                resident = self.live.resident_bytes()
                wanted = self.live.parts.evaluator.wanted
                if wanted is not None:
                    results["attack_samples"] = len(wanted)
                results |= self._summarise_privacy(results.get("audit"))
            reason = {"reason": str(error)} if status == "pruned" else self._explain_stop()
            self._note(status, seed=scenario.seed, **results, resident_bytes=resident, **reason)
            self.writer.remove(TRACEBACK)  # of a failure before a resume
            if status == "finished" and is_crowd(scenario.clients.count):
                # Who holds what, of those that took part.
                clients = sorted({*map(int, Run.load(self.path).clients["client"])})
                self.writer.write_text(HOLDINGS, self.live.data.format_holdings(clients))
        elif status == "failed" and error is not None:
            ours = isinstance(error, RunError | PluginError)
            why = str(error) if ours else f"{type(error).__name__}: {error}"
            self._note(status, reason=why)
            self.writer.write_text(TRACEBACK, strip_controls(traceback.format_exc()))
        else:
            self._note(status)

    def _explain_stop(self) -> dict[str, str]:
        """Return the reason why a run ended before its last round, if that is a budget."""
        number = self.live.progress.round
        if not (spent := self.live.find_spent(number)):
            return {}
        client, epsilon = max(spent.items(), key=lambda each: (each[1], -each[0]))
        limit = self.live.scenario.epsilon_limit
        who = self.live.data.client_names.describe(client)
        where = f"round {number + 1}"
        return {"reason": f"{who} would reach epsilon {epsilon:.4g} in {where}, beyond {limit:g}"}

    def _summarise_privacy(self, audit: Mapping[str, Any] | None) -> dict[str, object]:
        """Return the summary's entry on privacy, and write the table by client.

        The bound of an audit stands beside each guarantee that its pairs are neighbours of.
        """
        live = self.live
        guarantees = list_guarantees(live.scenario)
        if not guarantees:
            return {}
        if self.no_guarantee:
            guarantees = [replace(each, lacks=self.no_guarantee) for each in guarantees]
        elif live.has_returned and live.parts.pool.remote:
            guarantees = void_repeated(guarantees)
        batches = live.program.steps_per_epoch["private"]
        run, steps = Run.load(self.path), dict(enumerate(batches.tolist()))
        samples = count_rows(live.data.parts).tolist()
        packets = count_packets(live.scenario, steps, samples)
        in_round = count_in_round(live.scenario, batches)
        times = count_releases(WireRow.in_frame(run.wire), packets, in_round)
        if "times_sent" in run.clients:  # what clients have counted themselves
            counted = run.clients.groupby("client")["times_sent"].max().dropna()
            times |= {int(str(client)): int(count) for client, count in counted.items()}
        every = [summarise_privacy(each, times, samples) for each in guarantees]
        if rows := [row for _, of_one in every for row in of_one]:
            self.writer.write_table(PRIVACY, rows)
        entries = [entry for entry, _ in every]
        if audit is not None:
            self._add_bounds(every, audit)
        uncovered = [asdict(each) for each in list_uncovered(live.scenario)]
        return {"uncovered": uncovered, "privacy": entries}

    def _add_bounds(
        self,
        every: Iterable[tuple[dict[str, object], Sequence[Mapping[str, object]]]],
        audit: Mapping[str, Any],
    ) -> None:
        """Add an audit's bound, and the epsilon of the client that holds the canaries."""
        scenario = self.live.scenario
        ours = next(each for each in scenario.attacks if each.title == audit["attack"])
        for entry, of_one in every:
            bound = choose_audit(scenario, entry, ours.audited, audit)
            if bound is not None:
                own = (r["epsilon"] for r in of_one if r["client"] == scenario.targets.client)
                entry |= {"audited": bound, "audited_against": next(own, entry["epsilon"])}

    def _note(self, status: Status, **more: object) -> None:
        """Write the summary, which replaces the previous one."""
        facts: dict[str, object] = {
            "status": status,
            "rounds_done": self.live.progress.round,
            "rounds": self.live.program.rounds,
            "flops": self.live.flops.to_dict(),
        }
        if self.live.has_returned and self.live.parts.pool.remote:
            facts[RETURNED] = True
        if self.live.copies:
            facts["copies"] = self.live.copies
        if figures := list_withheld_figures(self.live.scenario):
            # A simulation has them in its tables all the same, which no deployed run has.
            facts["withheld" if self.withheld else "simulators_view"] = figures
        self.writer.write_json(SUMMARY, {"name": self.live.scenario.name, **facts, **more})


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


def list_first_warnings(live: LiveRun, *, resumed: bool) -> Iterator[str]:
    """Yield the warnings about a scenario and its data; a resumed run repeats only `MISSING`."""
    scenario, data = live.scenario, live.data
    if lacks_accountant(scenario):
        yield MISSING
    if scenario.train.dp is not None and choose_guarantee(scenario) is None:
        yield f"train.dp: the run has no guarantee: {explain_lack(scenario)}"
    if resumed:
        return
    yield from list_warnings(scenario)
    if live.copies:
        yield live.copies
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
