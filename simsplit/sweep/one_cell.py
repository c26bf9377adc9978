"""One cell of a sweep is trained to its end, and how it ended is told in plain values."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from simsplit import whole_run
from simsplit.errors import RunPrunedError, SimsplitError
from simsplit.progress import Observer
from simsplit.scenario import Scenario
from simsplit.sweep.pruning import GiveUp, Judge


class Ended(NamedTuple):
    """The end of a cell's training."""

    reason: str | None = None
    """The reason of a failure, or why the cell was given up; None if it finished."""
    warnings: Sequence[str] = ()
    pruned: bool = False
    """Whether a search gave the cell up."""

    @property
    def status(self) -> str:
        """How the cell ended."""
        if self.pruned:
            return "pruned"
        return "finished" if self.reason is None else "failed"


def train(scenario: Scenario, path: Path, judge: Judge | None = None) -> Ended:
    """Train or resume one cell to its end; an error is returned rather than raised.

    A judge may give the cell up on the way.
    """
    heard = _Warnings()
    observers = [heard] if judge is None else [heard, GiveUp(judge, path)]
    try:
        whole_run.run(scenario, path, resume=True, observers=observers)
    except RunPrunedError as error:
        return Ended(str(error), heard.messages, pruned=True)
    except SimsplitError as error:
        return Ended(str(error), heard.messages)
    except Exception as error:  # noqa: BLE001 - one cell must not take the others down
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Ended(reason, heard.messages)
    return Ended(None, heard.messages)


class _Warnings(Observer):
    """An observer that keeps a run's warnings for the sweep's observer."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


def explain_death(error: str) -> str:
    """Return why a worker died, from Ray's message, without Ray's numbers for it."""
    if "worker process has died" in error:
        return "its worker process died, as one does that is killed or has run out of memory"
    if "node it was running on" in error:
        return "its node was lost, as was each one on which it was begun again"
    return f"its worker failed: {' '.join(error.split())}"
