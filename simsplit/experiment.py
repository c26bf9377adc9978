"""An experiment turns a scenario into a run directory: it prepares data and drives the rounds.

One round consists of every client's turns, the evaluation and the attacks' judgement if they are
due, and the rows of the tables. Observers are notified of it; the ones that write the run directory
come first. If a run stops (a kill, a full disk, an infinite loss, Ctrl-C), the last checkpoint and
the tables up to it remain, and `resume` continues with equal results. A run that loses hosts
resumes in the running process.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import ref

from simsplit.assembly import Assembly
from simsplit.data import Prepared
from simsplit.data.client_parts import count_rows
from simsplit.engine.pool import Places
from simsplit.errors import (
    OutOfRangeError,
    PluginError,
    PluginFailedError,
    RunFailedError,
    RunPrunedError,
)
from simsplit.hosting import choose_engine
from simsplit.legs import ClientId, is_crowd
from simsplit.machine import find_device
from simsplit.phases import EVALUATE
from simsplit.plugins.tracing import FAILURES, blame_plugins
from simsplit.privacy.spending import refuse_small_budgets
from simsplit.progress import Observer, Observers, RoundEnded, RunPlan, Status
from simsplit.results import CHECKPOINTS, TRACEBACK
from simsplit.results.ledger import Ledger, Round
from simsplit.running.checkpointing import Checkpoints, LostHosts, Stopping
from simsplit.running.directories import (
    claim,
    describe_resumption,
    describe_start,
    drop_late_names,
    table_columns,
)
from simsplit.running.live import LiveRun
from simsplit.running.notes import Idle, Notes, Pictures, list_first_warnings
from simsplit.running.stack_choice import settle_stack
from simsplit.scenario import Scenario
from simsplit.wire import WireObserver

Figures = Mapping[str, float]


def _warn_weakly(experiment: "Experiment") -> Callable[[str], None]:
    """Return a function that warns through a run's observers, for these observers themselves.

    A run that they held would keep its weights after its end, until Python looks for circles.
    """
    held = ref(experiment)

    def warn(message: str) -> None:
        if (running := held()) is not None:
            running.observers.warn(message)

    return warn


_DIVERGES = 1e3
"""The training loss that is warned of; guessing among 50,000 tokens costs 11."""


class Experiment:
    """A run in progress."""

    def __init__(
        self,
        scenario: Scenario,
        path: Path,
        observers: Sequence[Observer] = (),
        data: Prepared | None = None,
        hosts: Places | None = None,
        *,
        engine: str = "",
        left_out: Collection[ClientId] = (),
        withheld: Sequence[str] = (),
        no_guarantee: str = "",
    ) -> None:
        """Build the run's parts; clients run on `hosts`, named by `engine`, or in this process.

        The clients in `left_out` take part in no round. `withheld` are figures that clients keep to
        themselves. `no_guarantee` says why the methods' noise gives none here.
        """
        self.scenario, self.path = scenario, path
        self.clients = range(scenario.clients.count)
        self.engine = engine or choose_engine(scenario)[1]
        self.data = drop_late_names(path, data or scenario.prepare_data())
        scenario.shapes(self.data.info)  # raises ScenarioError before anything is written
        refuse_small_budgets(scenario, self.data.parts)
        self.live = live = LiveRun(
            scenario,
            self.data,
            find_device(scenario.device),
            hosts,
            left_out,
            folder=path / CHECKPOINTS,
            recorders=[each for each in observers if isinstance(each, WireObserver)],
        )
        names = self.data.client_names
        columns = table_columns(scenario, named=bool(names), withheld=withheld)
        self.ledger = Ledger(path, columns, live.clock, names)
        writer = self.ledger.writer
        self.stopping = Stopping(scenario.stop, live)
        self.checkpoints = Checkpoints(live, path, writer, self.stopping)
        warn = _warn_weakly(self)
        idle = Idle(scenario.method, warn)
        notes = Notes(live, path, writer, withheld, no_guarantee)
        own = (notes, self.checkpoints, idle)
        pictures = [Pictures(path, warn)] if scenario.output.figures else []
        # Trackers come last: they upload the pictures, and may wait for a server.
        last = [observer for observer in observers if observer.dispensable]
        first = [observer for observer in observers if not observer.dispensable]
        self.observers = Observers([*own, *first, *pictures, *last])
        self.lost_hosts = LostHosts(live, self.checkpoints, self.observers)
        self._has_warned = False
        """Whether the run has warned that training diverges."""

    @property
    def parts(self) -> Assembly:
        """The current live parts, which are replaced after a loss of hosts."""
        return self.live.parts

    def run(self, *, resume: bool) -> None:
        """Train until the last round, and notify observers of the end, however it comes.

        Raise RunError if another process writes the run directory, or has written a run into it.
        """
        with claim(self.path, resume=resume):
            resumed = resume and self._resume_with_hosts()
            if not resumed:
                describe_start(self.ledger.writer, self.scenario, self.data, self.live.device)
            if self.scenario.inline_engine.stack == "auto":
                self.engine = settle_stack(self.live, self.path, self.ledger.writer)
            with self._notify_of_end():
                with self.lost_hosts.recover(self.live.progress.round):
                    self._announce(self.live.progress.round, counted=not resumed)
                self.observers.begin(self._make_plan())
                for warning in list_first_warnings(self.live, resumed=resumed):
                    self.observers.warn(warning)
                evaluated = resumed or self.live.program.rounds > 0
                while not evaluated:
                    with self.lost_hosts.recover(0):
                        self.evaluate_untrained()
                        evaluated = True
                while not self.stopping.is_over:
                    number = self.live.progress.round + 1
                    with self.lost_hosts.recover(number):
                        self.round(number)

    @contextmanager
    def _notify_of_end(self) -> Iterator[None]:
        """Notify observers of the end of training within a block, however it comes."""
        try:
            with blame_plugins():
                yield
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except RunPrunedError:
            self._end("pruned")
            raise
        except PluginError as error:
            self._end("failed")
            raise PluginFailedError(error.fault, self._advise()) from error
        except FAILURES:
            self._end("failed")
            raise
        try:
            self.observers.end("finished")
        except PluginError as error:
            raise PluginFailedError(error.fault, "the run has finished, and is kept") from error

    def _end(self, status: Status) -> None:
        """Notify observers of an end by an error, which counts more than their own."""
        with suppress(PluginError):
            self.observers.end(status)

    def _announce(self, number: int, *, counted: bool) -> None:
        """Send clients the methods' announcements, after a reset if training is to begin."""
        with self.parts.exchange.name_failures():
            if not number:
                self.parts.pool.return_to(0)
            self.parts.exchange.announce(self.live.list_present(), counted=counted)

    def round(self, number: int) -> None:
        """Train one round, enter it in the tables, and notify observers."""
        live, progress, parts = self.live, self.live.progress, self.live.parts
        started = time.perf_counter()
        live.refuse_too_few(number)
        lineup = live.detection.guard.admit(live.program.choose_lineup(number))
        with parts.exchange.moment.enter_round(number, lineup.phase, lineup.clients):
            live.enter(lineup)
            mark = live.mark(number) if live.detection.undoes else None
            done = parts.course.run(lineup, self.observers.step)
            self._refuse_infinite_losses(number, done.reports)
            self._warn_of_divergence(number, done.reports)
            # Detectors judge first, so that the weights of an undone round are not scored.
            judged, undo = live.detection.judge_round(number)
            if undo and mark is not None:
                live.undo(mark)
            trained = time.perf_counter()
            main = lineup.phase is live.program.phases[-1]
            # The last round is evaluated and attacked, be it the last one by a budget or a figure.
            self.stopping.note_spending(done.reports)
            figures, own = self._evaluate(number)
            self.stopping.note_figures(figures, main=main)
            leaks = self._attack(number)
        evaluated = time.perf_counter()
        progress.elapsed_s += evaluated - started
        entry = Round(
            number=number,
            phase=lineup.phase.name,
            everybody=self._list_rows(done.reports, own, judged.clients),
            reports=done.reports,
            dropped=done.dropped,
            late=done.late,
            figures=figures,
            own=own,
            signals=judged.clients,
            detections=judged.detections,
            leaks=leaks,
            malicious=frozenset(self.scenario.malicious),
            barred=frozenset(live.detection.guard.barred),
        )
        row, clients = self.ledger.enter(entry, parts.wire, progress.simulated_s)
        self.ledger.time(number, trained - started, evaluated - trained, progress.elapsed_s)
        progress.simulated_s = row.simulated_total_s or 0.0
        progress.round = number
        self.observers.round(RoundEnded(number, row, clients, figures, progress.elapsed_s, main))

    def _list_rows(self, *tables: Collection[ClientId]) -> Sequence[ClientId]:
        """List the clients with rows in a round's tables: all, or of a crowd those in `tables`."""
        if not is_crowd(len(self.clients)):
            return self.clients
        return sorted({client for table in tables for client in table})

    def evaluate_untrained(self) -> None:
        """Evaluate and attack the untrained model, and report it as round 0 without steps."""
        phase, started = self.live.program.phases[-1], time.perf_counter()
        with self.parts.exchange.moment.enter_round(0, phase):
            figures, own = self._evaluate(0)
            leaks = self._attack(0)
        spent = time.perf_counter() - started
        entry = Round(
            number=0,
            phase=phase.name,
            everybody=self._list_rows(own),
            figures=figures,
            own=own,
            leaks=leaks,
            malicious=frozenset(self.scenario.malicious),
        )
        row, clients = self.ledger.enter(entry, self.parts.wire, 0.0)
        self.live.progress.elapsed_s = spent
        self.ledger.time(0, 0.0, spent, spent)
        self.observers.round(RoundEnded(0, row, clients, figures, spent))

    def _resume_with_hosts(self) -> bool:
        """Resume, and begin anew if a host is lost meanwhile; return whether there was anything."""
        while True:
            with self.lost_hosts.recover(self.live.progress.round):
                return self._resume()

    def _resume(self) -> bool:
        """Resume from the newest checkpoint, and return whether there is one."""
        complaints = self.checkpoints.resume()
        if complaints is None:
            return False
        for complaint in complaints:
            self.observers.warn(complaint)
        self.live.leave_out(self.live.absent)
        describe_resumption(self.ledger.writer, self.scenario, self.path, self.live.device)
        return True

    def _make_plan(self) -> RunPlan:
        """Return the facts that observers get before the first round."""
        samples = len(self.data.train)
        if self.scenario.parties:  # they hold columns of the same samples
            samples = int(count_rows(self.data.parts).max())
        return RunPlan(
            path=self.path,
            name=self.scenario.name,
            rounds=self.live.program.rounds,
            done=self.live.progress.round,
            clients=len(self.clients),
            samples=samples,
            memory=str(self.live.estimate),
            engine=self.engine,
            client_names=self.data.client_names.names,
        )

    def _find_last_round(self, number: int) -> int:
        """Return the run's last round, by what is noted after round `number`."""
        return number if self.stopping.ends_after(number) else self.live.program.rounds

    def _evaluate(self, number: int) -> tuple[Figures, Mapping[ClientId, Figures]]:
        """Return the round's figures, and those of each client that has a model of its own."""
        if not self.scenario.evaluate.due(number, self._find_last_round(number)):
            return {}, {}
        evaluator = self.parts.evaluator
        self.observers.work("evaluation", 0, 0)
        with self._without_training(evaluator.clients_to_score):
            return evaluator.evaluate(number)

    def _attack(self, number: int) -> Sequence[Mapping[str, object]]:
        """Return the rows of what attacks recovered, if they are scored in this round."""
        scenario, attacking, observers = self.scenario, self.live.attacking, self.observers
        last = self._find_last_round(number)
        if not (scenario.attacks and scenario.targets.is_due(number, last)):
            return []
        with self._without_training([scenario.targets.client]):
            judged = attacking.judge(
                number, lambda name, done, total: observers.work(f"attack {name}", done, total)
            )
        judged.save(self.path, number)
        for note in judged.notes:
            observers.warn(note)
        return judged.leaks

    @contextmanager
    def _without_training(self, clients: Sequence[ClientId]) -> Iterator[None]:
        """Open a context without training, in which these clients have the shared weights."""
        parts = self.parts
        with parts.exchange.moment.count_as(EVALUATE), parts.exchange.name_failures():
            (parts.federation or parts.exchange).settle(clients)
            yield

    def _advise(self) -> str:
        """Return what remains of a run that a plugin's part has ended, and what to do."""
        kept = f"the run's state after round {self.checkpoints.kept} is kept"
        return f"{kept}: mend the plugin and resume; traceback: {self.path / TRACEBACK}"

    def _warn_of_divergence(self, number: int, reports: Mapping[ClientId, Figures]) -> None:
        """Warn once of a loss so large that training diverges, though it is finite."""
        losses = {client: report.get("train_loss", 0.0) for client, report in reports.items()}
        worst = max(losses, key=losses.__getitem__, default=0)
        if losses.get(worst, 0.0) > _DIVERGES and not self._has_warned:
            self._has_warned = True
            self.observers.warn(
                f"round {number}: {self.data.client_names.describe(worst)}'s training loss is "
                f"{losses[worst]:.3g}: training diverges. A smaller train.client.lr and "
                "train.server.lr, or train.clip_norm, may help"
            )

    def _refuse_infinite_losses(self, number: int, reports: Mapping[ClientId, Figures]) -> None:
        """Raise RunFailedError if a loss is not finite, before it enters tables and checkpoints."""
        for client, report in reports.items():
            with self.parts.pool.work_on({client: ()}):
                losses = report.get("train_loss", 0.0) + report.get("method_loss", 0.0)
                if math.isfinite(losses):
                    continue
                if self.parts.pool.remote:
                    raise OutOfRangeError("a training loss that is not finite")
                who = self.data.client_names.describe(client)
                raise RunFailedError(
                    f"round {number}: {who}'s training loss is no longer finite; the "
                    f"run's state after round {self.checkpoints.kept} is kept. A smaller learning "
                    "rate or train.clip_norm may help"
                )
