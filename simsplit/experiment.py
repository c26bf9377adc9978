"""An experiment turns a scenario into a run directory: it prepares data and drives the rounds.

One round consists of every client's turns, the evaluation and the attacks' judgement if they are
due, and the rows of the tables. Observers are notified of it; the ones that write the run directory
come first. If a run stops (a kill, a full disk, an infinite loss, Ctrl-C), the last checkpoint and
the tables up to it remain, and `resume` continues with equal results. A run that loses hosts
resumes in the running process.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simsplit.assembly import Assembly
from simsplit.data import Prepared
from simsplit.engine.pool import Places
from simsplit.errors import (
    OutOfRangeError,
    PluginError,
    PluginFailedError,
    RunFailedError,
    RunPrunedError,
)
from simsplit.hosting import choose_engine, provide_hosts
from simsplit.machine import find_device, pin_threads
from simsplit.packets import ClientId, is_crowd
from simsplit.phases import EVALUATE
from simsplit.plugins import Given
from simsplit.plugins.gathering import list_changed
from simsplit.progress import Observer, Observers, RoundEnded, RunPlan, show_run
from simsplit.rehearsal import rehearse
from simsplit.results import CHECKPOINTS, TRACEBACK, Run
from simsplit.results.ledger import Ledger, Round
from simsplit.running.checkpointing import Checkpoints, LostHosts, Stopping
from simsplit.running.directories import (
    choose_run_directory,
    claim,
    describe_resumption,
    describe_start,
    drop_late_names,
    table_columns,
)
from simsplit.running.live import LiveRun
from simsplit.running.notes import CrowdHoldings, Idle, Notes, Pictures, list_first_warnings
from simsplit.running.tuning import tune_attacks
from simsplit.scenario import Scenario, own, scenario_of
from simsplit.scenario.lacking import refuse_lacking

Figures = Mapping[str, float]


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
) -> Run:
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
    refuse_lacking(scenario)
    path = choose_run_directory(scenario, out, resume=resume)
    watching = [*observers, *(config.build(path) for config in scenario.observers)]
    if progress:
        watching.insert(0, show_run())
    for warning in list_changed(path, scenario.plugins) if resume else ():
        Observers(watching).warn(warning)
    with pin_threads(scenario.threads):
        data = scenario.prepare_data()
        rehearse(scenario, data, find_device(scenario.device))
        tell = Observers(watching).warn
        scenario = tune_attacks(scenario, data, path, train=_run_simulated, tell=tell)
        with provide_hosts(scenario, data.nbytes) as hosts:
            experiment = Experiment(scenario, path, watching, data, hosts)
            experiment.run(resume=resume)
    return Run.load(path, scenario.plugins)


def _run_simulated(scenario: Scenario, data: Prepared, path: Path) -> Run:
    """Run a scenario on an attacker's own data, in this process."""
    Experiment(scenario, path, data=data).run(resume=False)
    return Run.load(path)


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
    ) -> None:
        """Build the run's parts; clients run on `hosts`, named by `engine`, or in this process.

        The clients in `left_out` take part in no round.
        """
        self.scenario, self.path = scenario, path
        self.clients = range(scenario.clients.count)
        self.engine = engine or choose_engine(scenario)[1]
        self.data = drop_late_names(path, data or scenario.prepare_data())
        scenario.shapes(self.data.info)  # raises ScenarioError before anything is written
        self.live = live = LiveRun(
            scenario,
            self.data,
            find_device(scenario.device),
            hosts,
            left_out,
            folder=path / CHECKPOINTS,
        )
        names = self.data.client_names
        columns = table_columns(scenario, named=bool(names))
        self.ledger = Ledger(path, columns, live.clock, names)
        writer = self.ledger.writer
        self.stopping = Stopping(scenario.stop, live)
        self.checkpoints = Checkpoints(live, path, writer, self.stopping)
        idle = Idle(scenario.method, self._warn)
        holdings = CrowdHoldings(live, path, writer)
        own = (Notes(live, path, writer), holdings, self.stopping, self.checkpoints, idle)
        pictures = [Pictures(path, self._warn)] if scenario.output.figures else []
        # Trackers come last: they upload the pictures, and may wait for a server.
        last = [observer for observer in observers if observer.dispensable]
        first = [observer for observer in observers if not observer.dispensable]
        self.observers = Observers([*own, *first, *pictures, *last])
        self.lost_hosts = LostHosts(live, self.checkpoints, self.observers)

    @property
    def parts(self) -> Assembly:
        """The current live parts, which are replaced after a loss of hosts."""
        return self.live.parts

    def run(self, *, resume: bool) -> None:
        """Train until the last round, and notify observers of the end, however it comes.

        Raise RunError if another process writes the run directory, or has written a run into it.
        """
        with claim(self.path, resume=resume):
            resumed = resume and self._resume()
            if not resumed:
                describe_start(self.ledger.writer, self.scenario, self.data, self.live.device)
            with self._notify_of_end():
                with self.lost_hosts.recover(self.live.progress.round):
                    self._announce(self.live.progress.round, counted=not resumed)
                self.observers.begin(self._make_plan())
                for warning in list_first_warnings(self.scenario, self.data, resumed=resumed):
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
            yield
        except KeyboardInterrupt:
            self.observers.end("interrupted")
            raise
        except RunPrunedError:
            self.observers.end("pruned")
            raise
        except PluginError as error:
            self.observers.end("failed")
            raise PluginFailedError(error.fault, self._advise()) from error
        except Exception:
            self.observers.end("failed")
            raise
        self.observers.end("finished")

    def _announce(self, number: int, *, counted: bool) -> None:
        """Send clients the methods' announcements, after a reset if training is to begin."""
        with self.parts.exchange.name_failures():
            if not number:
                self.parts.pool.return_to(0)
            self.parts.exchange.announce(self.live.list_present(), counted=counted)

    def _warn(self, message: str) -> None:
        self.observers.warn(message)

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
            # Detectors judge first, so that the weights of an undone round are not scored.
            judged, undo = live.detection.judge_round(number)
            if undo and mark is not None:
                live.undo(mark)
            trained = time.perf_counter()
            figures, own = self._evaluate(number)
            attacked = self._attack(number)
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
            attacked=attacked,
            malicious=frozenset(self.scenario.malicious),
            barred=frozenset(live.detection.guard.barred),
        )
        row, clients = self.ledger.enter(entry, parts.wire, progress.simulated_s)
        self.ledger.time(number, trained - started, evaluated - trained, progress.elapsed_s)
        progress.simulated_s = row.simulated_total_s or 0.0
        progress.round = number
        main = live.program.is_last(lineup.phase)
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
            attacked = self._attack(0)
        spent = time.perf_counter() - started
        entry = Round(
            number=0,
            phase=phase.name,
            everybody=self._list_rows(own),
            figures=figures,
            own=own,
            attacked=attacked,
            malicious=frozenset(self.scenario.malicious),
        )
        row, clients = self.ledger.enter(entry, self.parts.wire, 0.0)
        self.live.progress.elapsed_s = spent
        self.ledger.time(0, 0.0, spent, spent)
        self.observers.round(RoundEnded(0, row, clients, figures, spent))

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
        return RunPlan(
            path=self.path,
            name=self.scenario.name,
            rounds=self.live.program.rounds,
            done=self.live.progress.round,
            clients=len(self.clients),
            samples=len(self.data.train),
            memory=str(self.live.estimate),
            engine=self.engine,
            client_names=self.data.client_names.names,
        )

    def _evaluate(self, number: int) -> tuple[Figures, Mapping[ClientId, Figures]]:
        """Return the round's figures, and those of each client that has a model of its own."""
        if not self.scenario.evaluate.due(number, self.live.program.rounds):
            return {}, {}
        evaluator = self.parts.evaluator
        self.observers.work("evaluation", 0, 0)
        with self._without_training(evaluator.clients_to_score):
            return evaluator.evaluate(number)

    def _attack(self, number: int) -> Mapping[str, Sequence[Mapping[str, object]]]:
        """Return the attacks' rows by table, if attacks are scored in this round."""
        scenario, attacking, observers = self.scenario, self.live.attacking, self.observers
        if not (scenario.attacks and scenario.targets.is_due(number, self.live.program.rounds)):
            return {}
        with self._without_training([scenario.targets.client]):
            judged = attacking.judge(
                number, lambda name, done, total: observers.work(f"attack {name}", done, total)
            )
        judged.save(self.path, number)
        return judged.tables

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
