"""The figures that a client may report: their names, and the range of each.

A client says how many batches it has, what it has learned in a round, and how good the outputs are
that it has kept. All of it enters tables and weights averages, so it is held against the samples
that the client greeted with.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from simsplit.deploy.frames import LARGEST, MOST_COUNT
from simsplit.errors import ProtocolError
from simsplit.packets import ClientId
from simsplit.parties.feed import count_batches
from simsplit.phases import Phase
from simsplit.scenario import Scenario

SHARES = frozenset(
    {
        *("accuracy", "balanced_accuracy", "macro_f1", "top5", "answers", "exact_answers"),
        *("rouge_l", "meteor", "code_bleu"),
    }
)
"""The metrics that lie in [0, 1]."""
_COUNTED = frozenset({"steps", "samples", "method_loss"})
_LEARNED = frozenset({"train_loss", "train_accuracy"})


@dataclass(frozen=True)
class Holdings:
    """The number of samples that each party of a run has."""

    private: Mapping[ClientId, int] = field(default_factory=dict)
    """Each client's training samples."""
    held_out: Mapping[str, int] = field(default_factory=dict)
    """The samples of each split that all clients have."""


class FigureBounds:
    """The names and ranges of one run's figures."""

    def __init__(self, scenario: Scenario, holdings: Holdings, *, client_scores: bool) -> None:
        """Make the bounds; `client_scores` if clients compute the task's loss in training."""
        self.scenario, self.holdings, self.client_scores = scenario, holdings, client_scores
        reported = {name for method in scenario.method for name in method.columns}
        self._reported: frozenset[str] = frozenset(reported)

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
        return self.scenario.schedule.count_local_steps({client: batches})[client]

    def count_begun(self, client: ClientId, phase: Phase) -> int:
        """Return how often a client is asked in a round to begin: once for each part of a step."""
        return self.count_steps(client, phase) * self.scenario.train.accumulate

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
        required = _COUNTED if self.client_scores and phase and steps else frozenset[str]()
        allowed = (_COUNTED | _LEARNED) if self.client_scores else frozenset({"method_loss"})
        _check_names(report, required, allowed | {"plain_bytes"} | self._reported)
        samples = steps * self._get_batch_size("private" if phase is None else phase.source)
        counts = {"steps": steps, "samples": samples * stacked, "plain_bytes": MOST_COUNT}
        for name, value in report.items():
            if name in counts:
                # Not isinstance, as True is an int too.
                good = type(value) is int and 0 <= value <= counts[name]
            else:
                low, high = (0.0, 1.0) if name == "train_accuracy" else (-LARGEST, LARGEST)
                good = low <= value <= high
            if not good:
                raise ProtocolError(f"the figure {name} of {str(value)[:40]}, which cannot be true")

    def check_scores(self, figures: Mapping[str, float]) -> None:
        """Raise ProtocolError unless the figures are the scenario's metrics, in their ranges."""
        metrics = frozenset(self.scenario.metrics)
        _check_names(figures, metrics, metrics)
        ranges = dict.fromkeys(SHARES, (0.0, 1.0))
        ranges |= {"bleu": (0.0, 100.0), "perplexity": (0.0, math.inf), "loss": (0.0, LARGEST)}
        for name, value in figures.items():
            low, high = ranges.get(name, (-LARGEST, LARGEST))
            # So written that NaN, for which all comparisons are false, is in no range.
            if not low <= value <= high:
                raise ProtocolError(f"the figure {name} of {str(value)[:40]}, which cannot be true")


def _check_names(
    figures: Mapping[str, float], required: Collection[str], allowed: Collection[str]
) -> None:
    """Raise ProtocolError unless all required figures are there, and only allowed ones."""
    if missing := set(required) - figures.keys():
        raise ProtocolError(f"figures without {min(missing)}")
    if others := figures.keys() - set(allowed):
        raise ProtocolError(f"a figure {min(others)[:40]!r}, which the scenario does not have")
