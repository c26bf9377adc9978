"""The figures that a client may report: their names, and the range of each.

A client says how many batches it has, what it has learned in a round, and how good the outputs are
that it has kept. All of it enters tables and weights averages, so it is held against the samples
that the client greeted with.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simsplit.deploy.frames import LARGEST, MOST_COUNT
from simsplit.deploy.trunk_watch import MOST_NORM
from simsplit.errors import OutOfRangeError, ProtocolError
from simsplit.legs import ClientId
from simsplit.parties.calls import Assess, ReportRound
from simsplit.parties.feed import count_batches
from simsplit.phases import Phase
from simsplit.privacy.accounting import list_withheld_figures
from simsplit.privacy.departures import SPENDING_COLUMNS, counts_spending
from simsplit.results.directory import append
from simsplit.rows import LEARNED
from simsplit.scenario import Scenario

SHARES = frozenset(
    {
        *("accuracy", "balanced_accuracy", "macro_f1", "top5", "answers", "exact_answers"),
        *("rouge_l", "meteor", "code_bleu"),
    }
)
"""The metrics that lie in [0, 1]."""
MOST_GAIN = 1e4
"""How many times as large as its features a logit may be; a trained tail stays far below it."""
_COUNTED = frozenset({"steps", "samples", "method_loss"})


class FigureTooLargeError(OutOfRangeError):
    """A figure that no network has that learns; it may be true of one that is spoilt."""


@dataclass(frozen=True)
class Holdings:
    """The number of samples that each party of a run has."""

    private: Mapping[ClientId, int] = field(default_factory=dict)
    """Each client's training samples."""
    held_out: Mapping[str, int] = field(default_factory=dict)
    """The samples of each split that all clients have."""


class FigureBounds:
    """The names and ranges of one run's figures."""

    def __init__(
        self,
        scenario: Scenario,
        holdings: Holdings,
        *,
        classes: int,
        client_scores: bool,
        reader: ClientId | None = None,
    ) -> None:
        """Make the bounds; `client_scores` if clients compute the task's loss in training.

        `classes` are the labels among which a prediction chooses: classes, or tokens of texts.
        """
        self.scenario, self.holdings, self.client_scores = scenario, holdings, client_scores
        self.reader = reader
        """The party that has the labels; None if all clients have some."""
        self.withheld = frozenset(list_withheld_figures(scenario))
        self.classes = max(1, classes)
        self._norms: dict[ClientId, float] = {}
        """The largest norm of features that each client got since it last reported figures."""
        self._reported = {name for method in scenario.method for name in method.columns}
        self._spending = frozenset(SPENDING_COLUMNS if counts_spending(scenario) else ())
        self.metrics = () if self.withheld & {*scenario.figures} else scenario.metrics
        """The metrics of which clients report figures."""

    def note_features(self, client: ClientId, norm: float) -> None:
        """Note the largest norm of the packets that are sent to a client."""
        self._norms[client] = max(norm, self._norms.get(client, 1.0))

    def _bound_loss(self, client: ClientId) -> float:
        """Return the largest cross-entropy that the features sent since the last call can make."""
        return math.log(self.classes) + 2 * MOST_GAIN * self._norms.pop(client, 1.0)

    def count_batches(self, client: ClientId, source: str) -> int:
        """Return the number of batches in a pass over a client's private or public samples."""
        samples = self.holdings.private.get(client, 0)
        if source == "public":
            samples = self.holdings.held_out.get("auxiliary", 0)
        size, drop_last = self._get_batch_size(source), self.scenario.train.drop_last
        return count_batches(samples, size, drop_last=drop_last)

    def _get_batch_size(self, source: str) -> int:
        """Return the number of samples of a step."""
        public = [each.public_batch_size for each in self.scenario.method if source == "public"]
        return next(filter(None, public), self.scenario.train.batch_size)

    def count_steps(self, client: ClientId, phase: Phase) -> int:
        """Return the number of steps that a client takes in a round of a phase."""
        batches = self.count_batches(client, phase.source)
        return int(self.scenario.schedule.limit_steps(np.array(batches)))

    def count_begun(self, client: ClientId, phase: Phase) -> int:
        """Return how often a client is asked in a round to begin: once for each part of a step."""
        return self.count_steps(client, phase) * self.scenario.train.accumulate

    def count_taken(self, client: ClientId, phase: Phase) -> int:
        """Return how many steps a client takes in a round at most, those in between included."""
        return self.count_begun(client, phase) * (1 if phase.interleaved is None else 2)

    def count_exam(self, split: str) -> int:
        """Return the number of batches in which a held-out split is evaluated."""
        return -(-self.holdings.held_out.get(split, 0) // self.scenario.evaluate.batch_size)

    def check_batches(self, client: ClientId, source: str, answer: int) -> None:
        """Raise ProtocolError unless a client has as many batches as its samples make."""
        if answer != (known := self.count_batches(client, source)):
            raise ProtocolError(f"{answer} {source} batches; it greeted with {known}")

    def check_report(
        self, client: ClientId, phase: Phase | None, report: Mapping[str, float], stacked: int
    ) -> None:
        """Raise ProtocolError unless the sums of a client's round can be true.

        `stacked` are the most rows that methods make of a sample; `phase` is None where it is not
        known.
        """
        steps = MOST_COUNT if phase is None else self.count_steps(client, phase)
        scores = self.client_scores and self.reader in (None, client)
        must = scores and phase and steps and self.reader is None
        required = _COUNTED if must else frozenset[str]()
        allowed = _COUNTED.union(LEARNED) if scores else frozenset({"method_loss"})
        allowed |= {"plain_bytes"} | self._reported | self._spending
        _check_names(report, required - self.withheld, allowed - self.withheld)
        is_private = phase is None or phase.source == "private"
        train = self.scenario.train
        rows = train.count_most_rows() if is_private else self._get_batch_size("public")
        counts = {"steps": steps, "samples": steps * rows * stacked}
        counts |= dict.fromkeys(("plain_bytes", "times_sent"), MOST_COUNT)
        ranges = {"train_accuracy": (0.0, 1.0), "train_loss": (0.0, self._bound_loss(client))}
        ranges |= dict.fromkeys(("epsilon", "epsilon_next"), (0.0, LARGEST))
        for name, value in report.items():
            if name not in counts:
                # A method's own terms are sums over values, and may have either sign.
                _check_range(name, value, *ranges.get(name, (-MOST_NORM, MOST_NORM)))
            # Not isinstance, as True is an int too.
            elif not (type(value) is int and 0 <= value <= counts[name]):
                raise ProtocolError(f"the figure {name} of {str(value)[:40]}, which cannot be true")

    def withhold_from(
        self, call: ReportRound | Assess, figures: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the figures of an answer that may leave the client."""
        if isinstance(call, Assess):
            return {name: value for name, value in figures.items() if name in self.metrics}
        return {name: value for name, value in figures.items() if name not in self.withheld}

    def check_scores(self, client: ClientId, figures: Mapping[str, float]) -> None:
        """Raise ProtocolError unless the figures are the scenario's metrics, in their ranges."""
        _check_names(figures, self.metrics, self.metrics)
        ranges = dict.fromkeys(SHARES, (0.0, 1.0))
        ranges |= {"bleu": (0.0, 100.0), "perplexity": (1.0, math.inf)}
        ranges["loss"] = (0.0, self._bound_loss(client))
        for name, value in figures.items():
            _check_range(name, value, *ranges.get(name, (-LARGEST, LARGEST)))


def _check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise OutOfRangeError unless a figure lies in its range.

    Raise FigureTooLargeError for a larger one, which is true where another has spoilt the trunk.
    """
    # So written that NaN, for which all comparisons are false, is in no range.
    if not low <= value <= high:
        kind = FigureTooLargeError if high < value < math.inf else OutOfRangeError
        raise kind(f"the figure {name} of {str(value)[:40]}, which is not in [{low:g}, {high:g}]")


def _check_names(
    figures: Mapping[str, float], required: Collection[str], allowed: Collection[str]
) -> None:
    """Raise ProtocolError unless all required figures are there, and only allowed ones."""
    if missing := set(required) - figures.keys():
        raise ProtocolError(f"figures without {min(missing)}")
    if others := figures.keys() - set(allowed):
        raise ProtocolError(f"a figure {min(others)[:40]!r}, which the scenario does not have")


def append_figures(file: Path, round_number: int, figures: Mapping[str, float]) -> None:
    """Append a round's figures to a table; of a round that was done again, the last rows count."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = "" if file.exists() else "round,figure,value\n"
    append(file, header + "".join(f"{round_number},{n},{v}\n" for n, v in figures.items()))
