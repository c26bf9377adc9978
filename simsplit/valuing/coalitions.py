"""A coalition of clients trains without the others, and is scored as the run was.

It is a run of its own in a folder that is removed. Whoever takes part draws what it drew in the
run, so that two coalitions differ in who is there, and in nothing else. Its data keep their scale.
Values are kept in the run directory, so that an interrupted command goes on, and Shapley values
have what leaving one out has measured.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simsplit.data import Prepared
from simsplit.engine.engine_config import InlineEngine
from simsplit.errors import RunError
from simsplit.experiment import Experiment
from simsplit.foreign import MOST_TABLE, read_facts
from simsplit.metrics import find_better, is_lower_better
from simsplit.results import CHECKPOINTS, SCENARIO, Run
from simsplit.results.directory import CONTRIBUTIONS, make_folder, replace, writing
from simsplit.results.read_tables import explain_read_errors
from simsplit.results.row_file import link_rows
from simsplit.running.directories import claim, describe_start
from simsplit.scenario import Scenario
from simsplit.scenario.declared_fields import CheckpointConfig, OutputConfig
from simsplit.valuing.estimating import Members, Scores

VALUES, _WORK = "scores", "work"


class CoalitionRun(Experiment):
    """A run of a coalition; it knows which evaluation samples its model gets right."""

    def run_untrained(self) -> None:
        """Evaluate the untrained model, and train nobody."""
        with claim(self.path, resume=False):
            describe_start(self.ledger.writer, self.scenario, self.data, self.live.device)
            self._announce(0, counted=True)
            self.evaluate_untrained()

    def evaluate_checkpoint(self) -> Mapping[str, float]:
        """Return the figures of the model of the last checkpoint, and train nobody."""
        with claim(self.path, resume=True):
            self._resume()
            number, phase = self.live.progress.round, self.live.program.phases[-1]
            self._announce(number, counted=False)
            evaluator = self.parts.evaluator
            with (
                self.parts.exchange.moment.enter_round(number, phase),
                self._without_training(evaluator.clients_to_score),
            ):
                figures, _ = evaluator.evaluate(number)
        return figures

    def find_hits(self, split: str) -> Scores | None:
        """Return how many models get each sample of a split right; None if that is not known."""
        number, phase = self.live.progress.round, self.live.program.phases[-1]
        evaluator = self.parts.evaluator
        with (
            self.parts.exchange.moment.enter_round(number, phase),
            self._without_training(evaluator.clients_to_score),
        ):
            hits = evaluator.find_hits(split, number)
        return None if hits is None else hits.numpy()


class Coalitions:
    """The values of coalitions of one run's clients, each computed once."""

    def __init__(
        self, run: Run, scenario: Scenario, data: Prepared, column: str, start: int
    ) -> None:
        """Value coalitions by a column of `rounds`, of which the last figure is the score.

        They go on from the run's checkpoint after the round `start`; 0: from the beginning.
        """
        self.run, self.scenario, self.data = run, scenario, data
        self.column, self.start = column, start
        self.folder = run.path / CONTRIBUTIONS
        self.clients = frozenset(range(scenario.clients.count))
        self._known: dict[tuple[Members, int], Scores] = {}

    def value(self, members: Members, seed: int) -> Scores:
        """Return a coalition's scores; it is trained unless they are known."""
        key = members, seed
        if key not in self._known:
            file = self._choose_file(members, seed)
            if not file.exists():
                self._write(file, members, self._measure(members, seed))
            self._known[key] = self._read(file, members)
        return self._known[key]

    def is_known(self, members: Members, seed: int) -> bool:
        """Return whether a coalition need not be trained."""
        own = members == self.clients and seed == self.scenario.seed
        return own or self._choose_file(members, seed).exists()

    def _choose_file(self, members: Members, seed: int) -> Path:
        digest = hashlib.blake2b(_write_members(members).encode(), digest_size=8).hexdigest()
        # A run that was made longer has other values.
        rounds = f"{self.start}-to-{self.run.summary['rounds_done']}"
        name = f"{self.column}-seed-{seed}-rounds-{rounds}-{digest}.json"
        return self.folder / VALUES / name

    def _write(self, file: Path, members: Members, scores: Scores) -> None:
        facts = {"members": _write_members(members), "scores": scores.tolist()}
        with writing(file):
            make_folder(file.parent.parent)
            make_folder(file.parent)
            replace(file, json.dumps(facts).encode())

    def _read(self, file: Path, members: Members) -> Scores:
        """Read scores; raise RunError if the file is damaged, or another coalition's."""
        with explain_read_errors(file):
            facts = read_facts(file, MOST_TABLE)
            scores: Scores = np.array(facts["scores"], dtype=np.float64)
            if scores.ndim != 1 or not scores.size or not np.isfinite(scores).all():
                raise ValueError("its scores are not finite numbers")
            if facts["members"] != _write_members(members):
                raise ValueError("it is of another coalition")
        return scores

    def _measure(self, members: Members, seed: int) -> Scores:
        """Train a coalition in a folder of its own, and return its scores."""
        own = members == self.clients and seed == self.scenario.seed
        folder = self.folder / _WORK
        shutil.rmtree(folder, ignore_errors=True)
        try:
            # Everybody's own run is there: its last checkpoint is evaluated again.
            if own and (self.run.path / CHECKPOINTS).is_dir():
                return self._resume(folder, members, self.run.summary["rounds_done"])
            if self.start:
                return self._resume(folder, members, self.start)
            return self._train(folder, members, seed)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _train(self, folder: Path, members: Members, seed: int) -> Scores:
        """Train from the beginning; nobody's value is that of the untrained model."""
        scenario = simplify(self.scenario, seed, evaluates=not members)
        left_out = self.clients - members if members else ()
        made = CoalitionRun(scenario, folder, data=self.data, left_out=left_out)
        if members:
            made.run(resume=False)
        else:
            made.run_untrained()
        return self._score(made, self._read_last(made))

    def _resume(self, folder: Path, members: Members, number: int) -> Scores:
        """Go on from the run's checkpoint after a round; nobody's value is that of its model."""
        copy_checkpoint(self.run.path, folder, number)
        values = {
            "output": OutputConfig(figures=False),
            "checkpoint": CheckpointConfig(every=0),
            "engine": InlineEngine(stack=self.scenario.inline_engine.stack),
            "observers": (),
        }
        scenario = self.scenario.model_copy(update=values)
        left_out = self.clients - members if members else ()
        made = CoalitionRun(scenario, folder, data=self.data, left_out=left_out)
        if not members:
            return self._score(made, made.evaluate_checkpoint().get(self.column))
        made.run(resume=True)
        return self._score(made, self._read_last(made))

    def _read_last(self, made: CoalitionRun) -> float | None:
        """Return the last figure of a coalition's run, or None if it was never evaluated."""
        figures = Run.load(made.path).rounds[self.column].dropna()
        return None if figures.empty else float(figures.iloc[-1])

    def _score(self, made: CoalitionRun, score: float | None) -> Scores:
        """Return a figure, sample by sample if that is known; more is better."""
        if score is None:
            raise RunError(f"{self.column} was not evaluated at the end of {self.run.path}")
        split, _, metric = self.column.partition("_")
        hits = made.find_hits(split) if metric == "accuracy" else None
        if hits is not None and abs(float(hits.mean()) - score) < 1e-9:
            return hits
        less = is_lower_better(self.column) or find_better(self.column) == "less"
        return np.array([-score if less else score])


def simplify(scenario: Scenario, seed: int, *, evaluates: bool) -> Scenario:
    """Return a scenario without what changes no weight; who is malicious stays.

    `evaluates`: in each round, not after the last one alone.
    """
    clients = scenario.clients.model_copy(update={"quorum": None})
    if clients.malicious is not None and (bad := tuple(scenario.malicious)):
        # They are drawn by the seed, and a client is to be the same with another seed.
        chosen = clients.malicious.model_copy(update={"fraction": None, "ids": bad})
        clients = clients.model_copy(update={"malicious": chosen})
    update: dict[str, Any] = {
        "seed": seed,
        "clients": clients,
        "attacks": tuple(each for each in scenario.attacks if each.threat.acts),
        "detectors": tuple(each for each in scenario.detectors if each.response != "none"),
        "output": OutputConfig(figures=False),
        "checkpoint": CheckpointConfig(every=0, keep=1),
        "engine": InlineEngine(stack=scenario.inline_engine.stack),
        "observers": (),
    }
    if scenario.stop is None:
        update["evaluate"] = scenario.evaluate.model_copy(update={"every": int(evaluates)})
    return scenario.model_copy(update=update)


def copy_checkpoint(path: Path, folder: Path, number: int) -> None:
    """Copy a run's checkpoint of a round, and its tables, into a new folder, or raise RunError."""
    name = f"round-{number:06d}"
    if not (path / CHECKPOINTS / name).is_dir():
        known = sorted(int(each.name[6:]) for each in (path / CHECKPOINTS).glob("round-??????"))
        rounds = ", ".join(map(str, known)) or "none"
        raise RunError(
            f"{path} has no checkpoint after round {number}, but after: {rounds}. More are kept by "
            "checkpoint.keep; without --from, coalitions train from the beginning"
        )
    make_folder(folder.parent)
    make_folder(folder)
    shutil.copytree(path / CHECKPOINTS / name, folder / CHECKPOINTS / name)
    link_rows(path / CHECKPOINTS, folder / CHECKPOINTS)
    shutil.copyfile(path / SCENARIO, folder / SCENARIO)
    for table in path.glob("*.csv"):
        shutil.copyfile(table, folder / table.name)


def _write_members(members: Members) -> str:
    return " ".join(map(str, sorted(members)))
